"""What can happen to a tune from outside, done to the real program: nothing that was stored is lost, and the study goes on.

    running ──kill -9──────────► RUNNING left behind ──--resume──► finished
       ├──────Ctrl-C (once)────► exit 130, saved     ──--resume──► finished
       ├──────Ctrl-C (twice)───► exit 130 at once    ──--resume──► finished
       ├──────model deleted────► exit 3, saved       ──put back, --resume──► finished
       └──────disk full────────► exit 3, saved       ──space freed, --resume──► finished

The engine pretends and really waits, so that there is a trial to hit; processes, signals, files and storage are real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tuner.study.storage import StoredStudy, read_studies

pytestmark = pytest.mark.timeout(240)

WORKLOAD = "name: tiny\nprompt_tokens: 16\noutput_tokens: 32\n"
SPACE = "name: mine\ndimensions:\n  threads: {min: 1, max: 4}\n  ubatch_size: [16, 64, 512]\n"
ASKED = ("--workload", "tiny.yaml", "--space", "space.yaml", "--budget", "20s", "--strategy", "random", "--objective", "tpot")
TRIAL = re.compile(r"^\w+ \d+: ", re.MULTILINE)


class Tune:
    """The program at work in a folder of its own, and what it has said so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._talk = folder.parent / f"stderr-{time.monotonic_ns()}.txt"
        command = [sys.executable, "-c", "from tuner.cli.main import main; main()", "tune", *arguments, "--json"]
        with self._talk.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, "--engine", "simulated"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                env={**os.environ, "ROOFTUNE_SIMULATED_SLEEP": "1"},
            )

    @property
    def said(self) -> str:
        return self._talk.read_text(errors="replace")

    def wait_for_trials(self, count: int) -> None:
        """Until so many were told; the next one is then under way."""
        deadline = time.monotonic() + 120
        while len(TRIAL.findall(self.said)) < count:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Exit code and stdout, once it ended by itself; what it started is gone by then."""
        out, _ = self.process.communicate(timeout=120)
        assert "Traceback" not in self.said
        return self.process.returncode, out


@pytest.fixture
def folder(tmp_path: Path, smollm2: Path) -> Path:
    """A place to tune in, with a model that can be taken away."""
    here = tmp_path / "here"
    here.mkdir()
    return furnish(here, smollm2)


def furnish(here: Path, model: Path) -> Path:
    (here / "tiny.yaml").write_text(WORKLOAD)
    (here / "space.yaml").write_text(SPACE)
    (here / "model.gguf").symlink_to(model)
    return here


def start(folder: Path, *more: str) -> Tune:
    return Tune(folder, "model.gguf", *ASKED, "--study", "mine", *more)


def find_study(folder: Path, name: str = "mine") -> StoredStudy:
    (found,) = (study for study in read_studies(f"sqlite:///{folder}/results/studies.db") if study.name == name)
    return found


def check_it_goes_on(folder: Path, before: StoredStudy) -> None:
    """The study finishes with everything that was stored, and says so as any other tune does."""
    code, out = (resumed := Tune(folder, "--resume", "mine")).end()
    assert code == 0, resumed.said
    document: dict[str, Any] = json.loads(out)
    after = find_study(folder)
    assert (document["study"], after.state) == ("mine", "finished")
    assert after.complete >= before.complete
    assert after.trials >= before.trials
    assert document["trials"]["complete"] + document["trials"].get("noisy", 0) >= before.complete > 0


def list_started(tune: Tune) -> list[psutil.Process]:
    return psutil.Process(tune.process.pid).children(recursive=True)


def check_gone(processes: list[psutil.Process]) -> None:
    assert processes, "the measuring child was there"
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


SIGNALS: dict[str, tuple[tuple[signal.Signals, ...], int]] = {
    "killed": ((signal.SIGKILL,), -signal.SIGKILL),
    "Ctrl-C once": ((signal.SIGINT,), 130),
    "Ctrl-C twice": ((signal.SIGINT, signal.SIGINT), 130),
    "Ctrl-C until it ends": ((signal.SIGINT,) * 400, 130),
    "asked to end": ((signal.SIGTERM,), 130),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_ends_a_tune_and_loses_nothing(name: str, folder: Path) -> None:
    """Within a trial: no process stays, what was measured is stored, and the study goes on where it was."""
    signals, expected = SIGNALS[name]
    tune = start(folder)
    tune.wait_for_trials(3)
    started = list_started(tune)
    for number in signals:
        tune.process.send_signal(number)
        time.sleep(0.05 if len(signals) <= 2 else 0.005)
    code, out = tune.end()
    assert (code, out) == (expected, "")
    check_gone(started)
    before = find_study(folder)
    assert before.complete >= 3
    assert before.state == "interrupted"
    if expected == 130:
        assert "--resume mine" in tune.said
    check_it_goes_on(folder, before)


def test_a_model_that_is_deleted_ends_a_tune_and_loses_nothing(folder: Path, smollm2: Path) -> None:
    """Exit 3 with the reason and the way on; the point at hand is not blamed, and once the file is back, the study goes on."""
    tune = start(folder)
    tune.wait_for_trials(3)
    (folder / "model.gguf").unlink()
    code, out = tune.end()
    assert (code, out) == (3, ""), tune.said
    last = tune.said.strip().splitlines()[-1]
    assert last.startswith("rooftune: ")
    assert "model.gguf is not there any more" in last
    assert "--resume mine" in last
    before = find_study(folder)
    assert before.complete >= 3
    (folder / "model.gguf").symlink_to(smollm2)
    check_it_goes_on(folder, before)


def test_two_tunes_share_one_storage(folder: Path) -> None:
    """Started together on a storage that does not exist yet: both finish, and neither has the other's trials."""
    storage = ("--storage", f"sqlite:///{folder}/results/studies.db")
    pair = [Tune(folder, "model.gguf", *ASKED, "--study", name, "-o", f"{name}.yaml", *storage) for name in ("one", "two")]
    for tune, name in zip(pair, ("one", "two"), strict=True):
        code, out = tune.end()
        assert code == 0, tune.said
        assert json.loads(out)["study"] == name
        assert find_study(folder, name).state == "finished"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small tmpfs needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this machine does not allow a tmpfs to be mounted")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(path: Path) -> None:
    """Write until the disk takes no more."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"x" * 512)
    except OSError:
        return
    finally:
        os.close(handle)


def test_a_full_disk_ends_a_tune_and_loses_nothing(small_disk: Path, smollm2: Path) -> None:
    """Exit 3 with the reason; once there is room, the study goes on."""
    folder = furnish(small_disk, smollm2)
    tune = start(folder)
    tune.wait_for_trials(3)
    fill_up(folder / "ballast")
    code, out = tune.end()
    assert (code, out) == (3, ""), tune.said
    last = tune.said.strip().splitlines()[-1]
    assert last.startswith("rooftune: ")
    assert "full" in last
    (folder / "ballast").unlink()
    before = find_study(folder)
    assert before.complete >= 3
    check_it_goes_on(folder, before)


def test_a_read_only_folder_is_told_before_anything_is_measured(small_disk: Path, smollm2: Path) -> None:
    """Exit 3 and one line."""
    folder = furnish(small_disk, smollm2)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    code, out = (tune := start(folder)).end()
    assert (code, out) == (3, "")
    assert len(tune.said.strip().splitlines()) == 1
    assert not TRIAL.search(tune.said)
