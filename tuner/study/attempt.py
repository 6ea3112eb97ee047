"""An attempt as the study remembers it: the trial, and what it was run for."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tuner.trial import Trial

Purpose = Literal["point", "repeat", "round"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One trial with its place in the search."""

    trial: Trial
    """What was tried and how it ended."""
    values: dict[str, Any]
    """The searched settings as they were proposed."""
    purpose: Purpose = "point"
    """A point of the search, a repeat that watches for drift, or a round of the confirmation."""
    thorough: bool = False
    """A run of full length, as against a short one that only screens."""
    round: int = 0
    """Which round of the confirmation, from 1; 0 elsewhere."""
    selecting: bool = False
    """The round chose the finalist, so it has no part in the gain."""

    @property
    def was_run(self) -> bool:
        """The measurer was asked; told-without-running states have no outcome."""
        return self.trial.outcome is not None and self.trial.state != "duplicate"
