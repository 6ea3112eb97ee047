"""The program's own behaviour around its commands: no command, no terminal, and which end gives which exit code."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli import main as room
from tuner.cli.main import USAGE, run
from tuner.errors import (
    BadInputError,
    InterruptedRunError,
    NothingFeasibleError,
    RooftuneError,
    StorageError,
    UsageError,
)

PROGRAM = [sys.executable, "-c", "from tuner.cli.main import main; main()"]


def test_without_a_terminal_a_line_of_usage_and_exit_2(tmp_path: Path) -> None:
    """No escape codes, nothing on stdout, and it does not wait for anybody."""
    done = subprocess.run(
        PROGRAM, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"rooftune: {USAGE}"]
    assert "\x1b" not in done.stderr


def test_with_stdin_from_a_pipe_it_is_no_terminal_either(tmp_path: Path) -> None:
    """A terminal for the output alone is not one that somebody sits at."""
    leader, follower = pty.openpty()
    try:
        done = subprocess.run(
            PROGRAM, cwd=tmp_path, input="", stdout=follower, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    finally:
        os.close(follower)
        os.close(leader)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"rooftune: {USAGE}"]


ENDS: dict[str, tuple[BaseException, int, str]] = {
    "usage": (UsageError("No such thing.", "Try another."), 2, "No such thing. Try another."),
    "bad input": (BadInputError("The file lies.", "Give another."), 3, "The file lies. Give another."),
    "a storage that takes nothing": (StorageError("The disk is full.", "Make room."), 3, "The disk is full. Make room."),
    "nothing feasible": (NothingFeasibleError("Nothing fits.", "Ask for less."), 4, "Nothing fits. Ask for less."),
    "interrupted": (InterruptedRunError("Stopped.", "Go on with --resume s."), 130, "Stopped. Go on with --resume s."),
    "Ctrl-C where nothing hears it": (KeyboardInterrupt(), 130, "Interrupted."),
    "what the system refuses": (OSError(28, "No space left on device", "best.yaml"), 3, "No space left on device"),
    "a fault of ours": (ZeroDivisionError("division by zero"), 1, "A fault of rooftune's own: ZeroDivisionError"),
    "two lines": (BadInputError("One\nline.", "Another\nhint."), 3, "One line. Another hint."),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_has_its_exit_code_and_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never a traceback unless it is asked for."""
    error, code, words = ENDS[name]

    def end(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(room.program, "main", end)
    assert run(["tune"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert words in said.err


def test_a_fault_shows_where_it_arose_when_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def end(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(room.program, "main", end)
    assert run(["tune", "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_every_error_of_ours_has_one_of_the_promised_codes() -> None:
    """0, 1, 2, 3, 4, 5 and 130 are all there is."""
    kinds = [RooftuneError, *RooftuneError.__subclasses__()]
    assert {int(kind.exit_code) for kind in kinds} <= {1, 2, 3, 4, 5, 130}
    assert len(kinds) > 5


@pytest.mark.parametrize("command", [["--help"], ["explain"], ["explain", "--json"], ["models"], ["studies"], ["profile"]])
def test_a_reader_that_has_gone_is_no_fault_of_ours(command: list[str], tmp_path: Path) -> None:
    """As in `rooftune --help | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*PROGRAM, *command], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == 0
    assert done.stderr == b""
