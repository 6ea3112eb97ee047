"""What a study tells while it runs: one immutable message each, posted to the `emit` it was given."""

from __future__ import annotations

import msgspec

from tuner.runconfig import RunConfig
from tuner.study.result import StudyResult
from tuner.trial import Stage, Trial


class StageStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The study enters a stage."""

    stage: Stage
    """Which one."""
    title: str
    """What happens in it, in a few words."""


class TrialStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A point is about to be run."""

    number: int
    """Its number in the study."""
    stage: Stage
    """Where in the study."""
    config: RunConfig
    """Effective settings."""
    changes: dict[str, object]
    """The settings that differ from the default configuration."""


class TrialFinished(msgspec.Struct, frozen=True, kw_only=True):
    """A point was run, or told without being run."""

    trial: Trial
    """The attempt with its state and figures."""


class BestChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A feasible point is better than all before."""

    trial: Trial
    """The new best."""
    ratio: float | None
    """How many times better than the default, unconfirmed; None when the default has no figure."""


class RoundFinished(msgspec.Struct, frozen=True, kw_only=True):
    """One interleaved round of the confirmation is done."""

    number: int
    """Counted from 1."""
    selecting: bool
    """True while the finalist is being chosen; such rounds do not count for the gain."""
    ratio: float | None
    """Gain of the finalist so far; None while it is being chosen."""
    low: float | None
    """Lower end of its 95 % interval; None as above."""
    high: float | None
    """Upper end of its 95 % interval; None as above."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the study is."""

    stage: Stage
    """Where it is."""
    done: int
    """Points run so far."""
    elapsed_s: float
    """Wall time used, all sittings, s."""
    left_s: float
    """Wall time left at most, s."""
    measured_s: float
    """Wall time inside timed prefill and decode, s."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader of the result should know."""

    text: str
    """In plain words."""


class StudyFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The study is done."""

    result: StudyResult
    """What came of it."""


StudyEvent = StageStarted | TrialStarted | TrialFinished | BestChanged | RoundFinished | Progress | Note | StudyFinished
