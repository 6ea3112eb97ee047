"""What `rooftune tune` proposes when it is done works when it is pasted, or says what it lacks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.builders.reports import report
from tuner.cli.commands.tune import list_commands
from tuner.hardware import build
from tuner.session.request import TuneRequest
from tuner.session.saving import Saved, save_report


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, and a shell without llama.cpp."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path


@pytest.fixture
def saved(here: Path) -> Saved:
    return save_report(report(), TuneRequest(demo=True, output="best.yaml"))


def have_tools(monkeypatch: pytest.MonkeyPatch, tools: dict[str, str]) -> None:
    monkeypatch.setattr(build, "find_tools", lambda: tools)


def find_line(saved: Saved, start: str) -> str:
    (line,) = (line for line in list_commands(saved) if line.startswith(start))
    return line


def test_programs_beside_the_build_are_named_by_their_path(saved: Saved, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "bin"
    have_tools(monkeypatch, {name: str(folder / name) for name in ("llama-server", "llama-bench")})
    assert find_line(saved, "serve it").startswith("serve it: bin/llama-server --model ")
    assert find_line(saved, "reproduce it").endswith(f'--to llama-bench | PATH="{folder}:$PATH" sh')


def test_programs_that_are_not_there_are_told_to_be_missing(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    have_tools(monkeypatch, {})
    assert "(llama-server of llama.cpp was not found here; it must be installed and on PATH): llama-server" in find_line(
        saved, "serve it"
    )
    assert "llama-bench of llama.cpp was not found here" in find_line(saved, "reproduce it")


def test_verifying_is_understood_when_it_is_pasted(saved: Saved, here: Path) -> None:
    """With a shell that finds nothing: the file is read, and its model, which this test never had, is missed."""
    _, _, command = find_line(saved, "verify it").partition(": ")
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, cwd=here, timeout=60)
    assert done.returncode == 3
    assert "The model of best.yaml is not at" in done.stderr


def test_a_script_for_llama_bench_is_made_when_it_is_pasted(saved: Saved, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs in it are those that the line names."""
    bench = here / "bin" / "llama-bench"
    bench.parent.mkdir()
    bench.write_text('#!/bin/sh\necho "$@" >> ran.txt\n')
    bench.chmod(0o755)
    have_tools(monkeypatch, {"llama-bench": str(bench)})
    _, _, command = find_line(saved, "reproduce it").partition(": ")
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, cwd=here, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len((here / "ran.txt").read_text().splitlines()) == 2
