"""One attempt at one point, and the states it can end in. This is what a study records and what a front end lists."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from tuner.measure.record import Outcome
from tuner.objective import Score
from tuner.runconfig import RunConfig

TrialState = Literal[
    "complete", "invalid", "does_not_fit", "out_of_memory", "crash", "timeout", "noisy", "duplicate", "running"
]
STATES: Final[tuple[TrialState, ...]] = get_args(TrialState)
FAILED: Final = frozenset({"invalid", "does_not_fit", "out_of_memory", "crash", "timeout"})

Stage = Literal["baseline", "screen", "search", "confirm"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt."""

    number: int
    """Its number in the study, 0 is the default configuration."""
    stage: Stage
    """Where in the study it was tried."""
    config: RunConfig
    """Effective settings: the identity of the point."""
    state: TrialState
    """How it ended."""
    reason: str = ""
    """Why it is not complete, in plain words."""
    outcome: Outcome | None = None
    """What was measured; None for a point that was not run."""
    score: Score | None = None
    """Seen with the study's goals; None when there is no figure to rank."""


def count_states(trials: tuple[Trial, ...]) -> dict[str, int]:
    """How many trials ended in each state, every state named."""
    counts: dict[str, int] = {state: 0 for state in STATES if state != "running"}
    for trial in trials:
        if trial.state in counts:
            counts[trial.state] += 1
    return counts
