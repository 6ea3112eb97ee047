"""Proposed commands work when they are pasted: each program by its name where the shell finds it, else by its path."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tuner.cli import program
from tuner.cli.program import find_pip, find_program, find_tool, spell_commands

KNOWN = frozenset({"tune", "verify", "calibrate"})
SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A shell that finds no program at all, in an empty folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment that has the program in a folder of its own."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    _make_program(folder / "rooftune")
    monkeypatch.setattr(program.sysconfig, "get_path", lambda _: str(folder))
    return folder


def _make_program(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_on_path_it_is_called_by_its_name(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(scripts))
    assert find_program() == "rooftune"


def test_off_path_it_is_called_by_where_it_lies(bare: Path, scripts: Path) -> None:
    """As one would type it from here."""
    assert find_program() == ".venv/bin/rooftune"


def test_another_one_of_that_name_is_not_meant(bare: Path, scripts: Path) -> None:
    _make_program(bare / "rooftune")
    assert find_program() == ".venv/bin/rooftune"


def test_without_a_script_python_runs_it(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.sysconfig, "get_path", lambda _: str(bare / "none"))
    assert find_program() == f"{sys.executable} -m tuner"


def test_the_form_through_python_works() -> None:
    done = subprocess.run([sys.executable, "-m", "tuner", "--version"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_pip_is_the_one_of_this_python(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pip of another environment would install where nobody looks."""
    assert find_pip() == f"{sys.executable} -m pip"
    if shutil.which("pip", path=str(SCRIPTS)):
        monkeypatch.setenv("PATH", str(SCRIPTS))
        assert find_pip() == "pip"


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("verify it: rooftune verify a.yaml", "verify it: .venv/bin/rooftune verify a.yaml"),
        ("Run `rooftune calibrate`.", "Run `.venv/bin/rooftune calibrate`."),
        ("Go on with: rooftune tune --resume s", "Go on with: .venv/bin/rooftune tune --resume s"),
        ("a result of rooftune for you", "a result of rooftune for you"),
        ("usage: rooftune COMMAND", "usage: rooftune COMMAND"),
        ("see /opt/rooftune tune", "see /opt/rooftune tune"),
    ],
)
def test_only_commands_are_spelled(text: str, spelled: str, bare: Path, scripts: Path) -> None:
    assert spell_commands(text, KNOWN) == spelled


def test_a_tool_is_looked_for_on_path_and_beside_the_build(bare: Path) -> None:
    """None where it must be installed first."""
    beside = bare / "with space" / "llama-server"
    beside.parent.mkdir()
    _make_program(beside)
    tools = {"llama-server": str(beside)}
    assert find_tool("llama-server", tools) == "'with space/llama-server'"
    assert find_tool("llama-bench", tools) is None
    _make_program(bare / "llama-server")
    assert find_tool("llama-server", tools) == "llama-server"
