"""Sees a machine that gets slower (or faster) while it is measured: the incumbent is run again every few trials.

A change of more than a tenth is told, and later figures are compared as the machine is now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tuner.study.history import History
from tuner.units import format_ratio

EVERY: Final = 6
"""Trials between two runs of the incumbent."""
NOTABLE: Final = 0.10
_COOL_DOWN: Final = " If it is heat, Ctrl-C, let the machine cool down, and go on with --resume."


class DriftWatch:
    """Holds the point that is run again."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self.values: dict[str, Any] = {}

    def start(self, values: dict[str, Any]) -> None:
        """Watch this point from now on."""
        self.values = dict(values)

    def is_due(self, history: History) -> bool:
        """Whether enough was run since the watched point was."""
        since = 0
        for attempt in reversed(history.attempts):
            if attempt.values == self.values and attempt.trial.score is not None:
                break
            since += attempt.was_run
        return bool(self.values) and since >= EVERY

    def learn(self, history: History) -> None:
        """Compare the repeat that was just run with the point's figure from before."""
        repeat = history.last
        if repeat is None or repeat.trial.score is None or repeat.purpose != "repeat":
            return
        config = repeat.trial.config
        first = next((a.trial for a in history.attempts if a.trial.config == config and not a.thorough and a.trial.score), None)
        if first is None or first is repeat.trial:
            return
        before, now = history.cost(first), history.cost(repeat.trial)
        if before is None or now is None:
            return
        ratio = now.value / before.value
        if abs(ratio - 1.0) <= NOTABLE:
            return
        word, factor = ("slower", ratio) if ratio > 1 else ("faster", 1 / ratio)
        self._note(
            f"The machine became {format_ratio(factor)} {word} during the search (trial {repeat.trial.number}); "
            f"later points are compared with it as it is now.{_COOL_DOWN if ratio > 1 else ''}"
        )
        history.set_slowdown(history.slowdown * ratio)
