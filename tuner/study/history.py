"""What the study knows so far, as strategies see it: attempts, failures, the best, and how the machine drifts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tuner.objective import Goal
from tuner.runconfig import RunConfig
from tuner.study.attempt import Attempt
from tuner.study.dominance import needs_as_much
from tuner.study.ranking import Cost, count_changes, find_cost
from tuner.trial import FAILED, Trial

MEMORY_FAILURES = frozenset({"does_not_fit", "out_of_memory"})


class History:
    """Attempts in order, and the questions asked of them."""

    def __init__(self, goals: Sequence[Goal], baseline: RunConfig) -> None:
        self._goals = tuple(goals)
        self._drift: dict[int, float] = {}
        self._slowdown = 1.0
        self.baseline = baseline
        self.attempts: list[Attempt] = []
        self.spent_share = 0.0
        """Part of the search's time that is used, 0 to 1; kept by the loop."""

    def add(self, attempt: Attempt) -> None:
        """Remember an attempt, under the machine's speed of now."""
        self.attempts.append(attempt)
        self._drift[attempt.trial.number] = self._slowdown

    def set_slowdown(self, factor: float) -> None:
        """Attempts from now on are taken from a machine that is `factor` times slower than at the start."""
        self._slowdown = factor

    @property
    def slowdown(self) -> float:
        """How many times slower the machine is now than at the start."""
        return self._slowdown

    def slowdown_of(self, trial: Trial) -> float:
        """How many times slower the machine was when `trial` was measured than at the start."""
        return self._drift.get(trial.number, 1.0)

    def cost(self, trial: Trial, index: int = 0) -> Cost | None:
        """Its cost under the goal at `index`, the machine's drift taken out; None without a figure."""
        if trial.score is None:
            return None
        raw = find_cost(trial.score, self._goals, index)
        if self._goals[index] == "context":
            return raw
        return Cost(missed=raw.missed, value=raw.value / self.slowdown_of(trial))

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def find_failure(self, config: RunConfig) -> Attempt | None:
        """An attempt at this very point that failed."""
        return next((a for a in self.attempts if a.trial.config == config and a.trial.state in FAILED), None)

    def find_larger_failure(self, config: RunConfig) -> Attempt | None:
        """An attempt that did not fit, although this point needs at least as much."""
        misfits = (a for a in self.attempts if a.trial.state in MEMORY_FAILURES)
        return next((a for a in misfits if needs_as_much(config, a.trial.config)), None)

    def find_known(self, config: RunConfig, *, thorough: bool) -> Attempt | None:
        """A figure for this very point from a run of the same length: short figures compare with short ones only."""
        return next(
            (a for a in self.attempts if a.trial.config == config and a.was_run and a.trial.score and a.thorough == thorough),
            None,
        )

    def is_seen(self, config: RunConfig) -> bool:
        """Whether the point was tried or told before, in whatever way."""
        return any(a.trial.config == config for a in self.attempts)

    def figures(self, *, thorough: bool | None = None, where: Callable[[RunConfig], bool] | None = None) -> list[Trial]:
        """Trials with a figure, confirmation and repeats left out, each point by its longest run."""
        best: dict[RunConfig, Attempt] = {}
        for attempt in self.attempts:
            trial = attempt.trial
            if not attempt.was_run or trial.score is None or attempt.purpose != "point":
                continue
            if (thorough is not None and attempt.thorough != thorough) or (where and not where(trial.config)):
                continue
            if trial.config not in best or attempt.thorough:
                best[trial.config] = attempt
        return [attempt.trial for attempt in best.values()]

    def rank(self, trials: Iterable[Trial], index: int = 0) -> list[Trial]:
        """Best first; of equals the one with fewer changes from the default."""
        keyed = [(cost, trial) for trial in trials if (cost := self.cost(trial, index)) is not None]
        ordered = sorted(keyed, key=lambda pair: (pair[0], count_changes(pair[1].config, self.baseline), pair[1].number))
        return [trial for _, trial in ordered]

    def count_run(self) -> int:
        """Points that were run, whatever came of it."""
        return sum(a.was_run and a.purpose == "point" for a in self.attempts)

    def count_last_failures(self) -> int:
        """Attempts at the end of the history that were run and failed, one after another."""
        count = 0
        for attempt in reversed(self.attempts):
            if not attempt.was_run:
                continue
            if attempt.trial.state not in FAILED:
                break
            count += 1
        return count
