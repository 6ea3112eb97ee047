"""How wide rooftune writes: as COLUMNS says, else as the terminal is, else 100 columns."""

from __future__ import annotations

import io

import pytest

from tests.builders.reports import report
from tuner.cli.output import PLAIN_WIDTH, choose_width, print_rich
from tuner.report.summary import render_summary


class Stream(io.StringIO):
    """A place to write to that is a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("asked", "terminal", "width"),
    [
        ("120", False, 120),
        ("120", True, 120),
        (" 80 ", False, 80),
        ("1", False, 40),
        ("999999", False, 1000),
        ("0", False, PLAIN_WIDTH),
        ("-5", False, PLAIN_WIDTH),
        ("wide", False, PLAIN_WIDTH),
        ("٨٠", False, PLAIN_WIDTH),
        ("9" * 5000, False, PLAIN_WIDTH),
        ("", False, PLAIN_WIDTH),
        ("", True, None),
        ("0", True, None),
    ],
)
def test_columns_come_first(asked: str, terminal: bool, width: int | None) -> None:
    """None leaves it to the terminal."""
    assert choose_width(Stream(terminal=terminal), {"COLUMNS": asked}) == width


def test_without_columns_a_pipe_gets_the_plain_width() -> None:
    assert choose_width(Stream(terminal=False), {}) == PLAIN_WIDTH


@pytest.mark.parametrize("columns", [50, 80, 140])
def test_sentences_keep_to_the_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_rich("note: " + "word " * 100)
    lines = capsys.readouterr().out.splitlines()
    assert columns - 10 < max(map(len, lines)) <= columns


def test_a_long_command_is_not_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = "taskset -c 0-7 llama-server --model model.gguf --threads 8 --threads-batch 8"
    monkeypatch.setenv("COLUMNS", "50")
    print_rich(f"Start it on the fast cores: `{command}`.")
    assert f"    {command}" in capsys.readouterr().out.splitlines()


def test_nothing_in_a_table_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """However narrow: half a name or half a number is worse than another line."""
    monkeypatch.setenv("COLUMNS", "40")
    print_rich(*render_summary(report()))
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 40
