"""What a study found. A gain is a ratio with an interval, from rounds that had no part in choosing the winner."""

from __future__ import annotations

import msgspec

from tuner.objective import Goal
from tuner.trial import Trial


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """How many times better the best configuration is than the default."""

    metric: Goal
    """The goal it is told in."""
    ratio: float
    """Above 1 is better, whatever the goal's direction; geometric mean over paired rounds."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    significant: bool
    """The interval lies above 1."""
    rounds: int
    """Paired rounds behind it; 0 where nothing was compared (the default won already, or context sizes)."""


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one study."""

    baseline: Trial
    """The default configuration, with all its full-length samples."""
    best: Trial
    """The configuration to use; the default itself where no gain was shown."""
    gain: Gain
    """Best against default."""
    finalists: tuple[Trial, ...] = ()
    """What the confirmation compared with the default, best first."""
    pareto: tuple[Trial, ...] = ()
    """With several goals: feasible full-length measurements of which none beats another in everything."""
    per_model: tuple[Trial, ...] = ()
    """With several files: the best of each, most precise file first, unconfirmed except for the winner's."""
    trials: tuple[Trial, ...] = ()
    """Every point tried, told without being run included, in order."""
    rounds: tuple[Trial, ...] = ()
    """Re-measurements: drift checks and confirmation rounds, in order."""
    notes: tuple[str, ...] = ()
    """What a reader should know, such as a machine that drifted."""
    elapsed_s: float
    """Wall time over all sittings, s."""
    measured_s: float
    """Of that, inside timed prefill and decode, s."""
    stop_reason: str
    """Why the search ended, in plain words."""
    study_name: str
    """Name in the storage."""
    storage: str
    """Optuna storage URL."""
