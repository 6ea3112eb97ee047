"""Which of two points is better: feasible first, then the goal, ties to the simpler configuration."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tuner.objective import LARGER_IS_BETTER, Goal, Score
from tuner.runconfig import RunConfig


class Cost(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A score as something to minimise; compares by what is missed first."""

    missed: float
    """Sum of the shares by which limits are missed; 0 for a feasible point."""
    value: float
    """The goal's figure where smaller is better, its inverse where larger is: always above 0."""

    def beats(self, other: Cost, *, margin: float = 0.0) -> bool:
        """Better by more than `margin` (a share of the goal), or nearer to the limits."""
        if self.missed != other.missed:
            return self.missed < other.missed
        return self.value < other.value * (1.0 - margin)

    def is_within(self, other: Cost, share: float) -> bool:
        """No more than `share` worse than `other`."""
        if self.missed > other.missed + share:
            return False
        return self.missed < other.missed or self.value <= other.value * (1.0 + share)


def find_cost(score: Score, goals: Sequence[Goal], index: int = 0) -> Cost:
    """The cost of a score under the goal at `index`."""
    value = max(score.values[index], 1e-12)
    missed = sum(excess for excess in score.violations if excess > 0)
    return Cost(missed=missed, value=1.0 / value if goals[index] in LARGER_IS_BETTER else value)


def count_changes(config: RunConfig, baseline: RunConfig) -> int:
    """How many settings differ from the default."""
    return len(list_changes(config, baseline))


def list_changes(config: RunConfig, baseline: RunConfig) -> dict[str, object]:
    """The settings that differ from the default, with their values."""
    default = baseline.as_dict()
    return {name: value for name, value in config.as_dict().items() if default[name] != value}


def find_front(scores: Sequence[Score], goals: Sequence[Goal]) -> list[int]:
    """Indices of the feasible scores that no other feasible score beats in everything."""
    feasible = [index for index, score in enumerate(scores) if score.is_feasible]
    costs = {index: tuple(find_cost(scores[index], goals, goal).value for goal in range(len(goals))) for index in feasible}
    return [index for index in feasible if not any(_beats_all(costs[other], costs[index]) for other in feasible)]


def _beats_all(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
