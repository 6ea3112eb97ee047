"""What `tune` says while it works: stage, trial, best so far and time left, in plain lines on stderr."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.builders.measurements import measured
from tests.builders.reports import DEFAULT, TUNED
from tuner.cli.commands._progress import Progress, describe_outcome, describe_settings
from tuner.measure.record import Outcome
from tuner.study.events import BestChanged, Note, RoundFinished, StageStarted, TrialFinished, TrialStarted
from tuner.study.events import Progress as Progressed
from tuner.trial import Trial


def trial(number: int = 1, state: str = "complete", reason: str = "", stage: str = "search", config=TUNED) -> Trial:
    measurement = measured(ttft_ms=100.0, tpot_ms=5.0) if state in {"complete", "noisy"} else None
    outcome = Outcome(
        state=state if state in {"complete", "noisy", "crash"} else "invalid", reason=reason, measurement=measurement
    )
    return Trial(number=number, stage=stage, config=config, state=state, reason=reason, outcome=outcome)


def said(*events, capsys, verbose: bool = False, goal: str = "ttft") -> list[str]:
    with Progress(goal=goal, verbose=verbose) as progress:
        for event in events:
            progress.show(event)
    return capsys.readouterr().err.splitlines()


LEFT = Progressed(stage="search", done=3, elapsed_s=10.0, left_s=75.0, measured_s=8.0)


def test_a_trial_names_stage_settings_figure_best_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(
        StageStarted(stage="search", title="Full-length runs"),
        LEFT,
        BestChanged(trial=trial(0), ratio=1.5),
        TrialStarted(number=7, stage="search", config=TUNED, changes={"threads": 2, "no_kv_offload": True}),
        TrialFinished(trial=trial(7)),
        capsys=capsys,
    )
    assert lines[0] == "search: Full-length runs"
    assert lines[1] == "search 7: threads 2, no_kv_offload on: ttft 100 ms; best so far ttft 100 ms (1.50× better); 1m 15s left"


def test_a_failure_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "crash: llama.cpp aborted"
        in said(TrialFinished(trial=trial(state="crash", reason="llama.cpp aborted")), capsys=capsys)[0]
    )


@pytest.mark.parametrize("state", ["duplicate", "invalid", "does_not_fit"])
def test_what_was_not_run_is_told_only_when_asked(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(TrialFinished(trial=trial(state=state)), capsys=capsys) == []
    assert len(said(TrialFinished(trial=trial(state=state)), capsys=capsys, verbose=True)) == 1


def test_rounds_and_notes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    choosing = RoundFinished(number=1, selecting=True, ratio=None, low=None, high=None)
    counting = RoundFinished(number=2, selecting=False, ratio=1.2, low=1.1, high=1.3)
    lines = said(choosing, counting, Note(text="the machine drifted"), capsys=capsys)
    assert lines == [
        "confirm: round 1, choosing the finalist",
        "confirm: round 2, 1.20× better [1.10, 1.30] so far",
        "note: the machine drifted",
    ]


def test_a_finalist_is_seen_against_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds of the confirmation are not announced."""
    lines = said(
        TrialFinished(trial=trial(0, stage="baseline", config=DEFAULT)),
        TrialFinished(trial=trial(9, stage="confirm")),
        capsys=capsys,
        verbose=True,
    )
    assert "ubatch_size 256" in lines[1]


def test_many_settings_are_cut_short() -> None:
    assert describe_settings({f"s{n}": n for n in range(9)}).endswith("and 3 more")
    assert describe_settings({}) == "the default"


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        ("ttft", "ttft 100 ms"),
        ("tpot", "tpot 5 ms"),
        ("throughput", "throughput 200 tok/s"),
        ("context", "context 256 tokens in 200 MiB"),
    ],
)
def test_the_figure_is_the_goals_own(goal: str, text: str) -> None:
    assert describe_outcome(trial(), goal) == text


def test_a_terminal_gets_a_live_line_and_the_same_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, markup=False, highlight=False)
    with Progress(goal="ttft", console=console) as progress:
        progress.show(LEFT)
        progress.show(TrialFinished(trial=trial(3)))
    assert "search 3: the default: ttft 100 ms" in console.file.getvalue()


def test_a_used_budget_is_not_told_as_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    used = Progressed(stage="confirm", done=3, elapsed_s=60.0, left_s=0.0, measured_s=50.0)
    lines = said(used, TrialFinished(trial=trial(3)), capsys=capsys)
    assert lines[0].endswith("; budget used")
