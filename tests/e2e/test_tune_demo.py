"""The main job, end to end, on a real model in real processes: tune, verify, export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

TINY = "name: tiny\nprompt_tokens: 16\noutput_tokens: 8\n"
SPACE = "name: two\ndimensions:\n  ubatch_size: [16, 512]\n"
PROGRAM = [sys.executable, "-c", "from tuner.cli.main import main; main()"]

pytestmark = [pytest.mark.llama, pytest.mark.xdist_group("tune_demo")]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As cron would: no terminal, stdin closed."""
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240
    )


def tune_arguments(folder: Path) -> list[str]:
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "two.yaml").write_text(SPACE)
    return ["tune", "--demo", "--workload", "tiny.yaml", "--space", "two.yaml", "--budget", "25s", "--trials", "4"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One tune for all tests of this file: its folder and what it said."""
    folder = tmp_path_factory.mktemp("tune")
    return folder, run(*tune_arguments(folder), "--json", cwd=folder)


def test_stdout_is_one_json_document(tuned: Any, smollm2: Path) -> None:
    _, done = tuned
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "rooftune/1"
    assert document["model"]["path"] == str(smollm2)
    assert document["workload"]["prompt_tokens"] == 16
    assert document["best"]["ttft_ms"] > 0
    assert document["best"]["tpot_ms"] > 0
    assert document["trials"]["complete"] + document["trials"]["noisy"] >= 1
    assert 0 < document["measured_s"] <= document["elapsed_s"]


def test_stderr_has_the_progress_in_plain_lines(tuned: Any) -> None:
    _, done = tuned
    assert "baseline" in done.stderr
    assert "left" in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_yaml_file_says_the_same(tuned: Any) -> None:
    folder, done = tuned
    (path,) = (folder / "results").glob("*.yaml")
    written, document = yaml.safe_load(path.read_text()), json.loads(done.stdout)
    assert written == document


def test_every_export_speaks(tuned: Any) -> None:
    folder, _ = tuned
    (path,) = (folder / "results").glob("*.yaml")
    listed = json.loads(run("export", "--list", "--json", cwd=folder).stdout)
    assert {each["name"] for each in listed} >= {"llama-server", "llama-cpp-python", "llama-bench"}
    for each in listed:
        done = run("export", str(path), "--to", each["name"], "-o", "exported.txt", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "@ depth 0" in (folder / "exported.txt").read_text()


def test_the_exported_python_file_runs(tuned: Any) -> None:
    folder, _ = tuned
    (path,) = (folder / "results").glob("*.yaml")
    run("export", str(path), "--to", "llama-cpp-python", "-o", "model.py", cwd=folder)
    done = subprocess.run(
        [sys.executable, "model.py", "One two"], cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("One two")


def test_verify_gives_a_verdict(tuned: Any) -> None:
    """On a busy machine the gain may be gone; then the exit code says so."""
    folder, _ = tuned
    (path,) = (folder / "results").glob("*.yaml")
    done = run("verify", str(path), "--budget", "20s", "--json", cwd=folder)
    verification = json.loads(done.stdout)
    assert done.returncode == (0 if verification["holds"] else 5), done.stderr
    assert verification["verdict"]


def test_verify_without_the_model_is_bad_input(tuned: Any, tmp_path: Path) -> None:
    folder, _ = tuned
    (path,) = (folder / "results").glob("*.yaml")
    (tmp_path / "gone.yaml").write_text(path.read_text().replace("SmolLM2-135M-Instruct.Q4_1.gguf", "gone.gguf"))
    done = run("verify", "gone.yaml", cwd=tmp_path)
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1


def test_one_interrupt_saves_and_tells_how_to_go_on(tmp_path: Path, smollm2: Path) -> None:
    """Ctrl-C during a trial: exit 130, the command that resumes, and the resumed study finishes."""
    arguments = [*tune_arguments(tmp_path), "--study", "mine"]
    child = subprocess.Popen(
        [*PROGRAM, *arguments], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("baseline"):
            break
    time.sleep(0.5)
    os.kill(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert out == ""
    assert "--resume mine" in err
    resumed = run(*tune_arguments(tmp_path), "--resume", "mine", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["study"] == "mine"
