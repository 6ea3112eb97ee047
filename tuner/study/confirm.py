"""Proves a gain, or that there is none.

Finalists and the default are run in turn on fresh contexts (A B C A B C …, the order rotated), so that drift of the
machine meets all alike. The rounds that choose the finalist have no part in the gain: the interval comes from later
rounds only.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Final

import msgspec

from tuner.errors import NothingFeasibleError
from tuner.measure.record import Plan
from tuner.measure.statistics import paired_ratio
from tuner.runconfig import RunConfig
from tuner.study.attempt import Attempt
from tuner.study.bench import Bench, rescore
from tuner.study.events import RoundFinished
from tuner.study.history import History
from tuner.study.merging import merge_outcomes
from tuner.study.noise import find_noise
from tuner.study.pace import FEWEST_PAIRS, MOST_PAIRS, Division, Pace, count_rounds
from tuner.study.ranking import Cost, count_changes, find_cost
from tuner.study.result import Gain
from tuner.trial import Trial

SELECTION_ROUNDS: Final = 3
LEAST_ROUNDS: Final = 5
"""Rounds before looking whether it is decided: looking earlier and often would find gains where there are none."""
FEWEST_ROUNDS: Final = FEWEST_PAIRS
"""Where the budget ended the rounds, which has nothing to do with what they showed, so many already bear an interval."""
MOST_ROUNDS: Final = MOST_PAIRS
NARROW: Final = 0.015
"""Half the width of the interval, as a share, at which no further round is needed."""
_CLEAR: Final = 3.0
"""Half widths between the ratio and 1 at which the sign is beyond doubt; far more than the interval itself asks for."""
_EQUAL: Final = 0.01
"""Finalists nearer than this in selection are told apart by how simple they are."""


class Finalist(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that the confirmation runs."""

    trial: Trial
    """Its best attempt in the search."""
    values: dict[str, Any]
    """The searched settings as proposed."""


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """What the confirmation says."""

    baseline: Trial
    """With the figures of all its runs here."""
    best: Trial
    """The winner with its figures, or the baseline."""
    finalists: tuple[Trial, ...]
    """Best first, with their figures here."""
    gain: Gain
    """Of the fixed finalist against the default."""
    rounds: tuple[Trial, ...]
    """Every run, in order."""


def expect_rounds(history: History, default: Trial, best: Trial) -> int:
    """Rounds that the gain of `best` in the search will likely need; the fewest where it is one of limits kept."""
    before, after = history.cost(default), history.cost(best)
    if before is None or after is None or before.missed != after.missed:
        return LEAST_ROUNDS
    return count_rounds(before.value / after.value, find_noise(history), fewest=LEAST_ROUNDS)


class Confirmation:
    """Runs the rounds."""

    def __init__(self, bench: Bench, baseline: Finalist, finalists: list[Finalist], *, pace: Pace, division: Division) -> None:
        """`division` says what each run measures, and `pace` how long that takes before one was run."""
        self._bench = bench
        self._pace, self._division = pace, division
        self._baseline = baseline
        self._finalists = list(finalists)
        self._runs: list[Attempt] = []
        self._longest_s: dict[tuple[RunConfig, Plan], float] = {}

    def confirm(self) -> Confirmed:
        """Select, then compare. Raises NothingFeasibleError when the default stopped working."""
        if not self._finalists:
            self._repeat([self._baseline], SELECTION_ROUNDS, selecting=True)
            return self._conclude(None, self._make_gain(None))
        if self._bench.request.goals[0] == "context":
            self._repeat([self._baseline, *self._finalists], 1, selecting=True)
            winner = self._select()
            return self._conclude(winner, self._compare_contexts(winner))
        self._drop_what_there_is_no_time_for()
        if len(self._finalists) > 1:
            self._repeat([self._baseline, *self._finalists], SELECTION_ROUNDS, selecting=True)
        winner = self._select()
        if winner is None:
            return self._conclude(None, self._make_gain(None))
        gain = self._compare(winner)
        return self._conclude(winner, gain)

    def _drop_what_there_is_no_time_for(self) -> None:
        """Rounds that prove a gain come first: finalists beyond the best are dropped where both do not fit the budget."""
        best, plan = self._finalists[0], self._division.later_plan
        rounds = expect_rounds(self._bench.history, self._baseline.trial, best.trial)
        proof_s = rounds * self._expect([self._baseline, best], plan)
        while len(self._finalists) > 1:
            selection_s = SELECTION_ROUNDS * self._expect([self._baseline, *self._finalists], plan)
            if selection_s + proof_s <= self._bench.left_s:
                return
            self._finalists.pop()

    def _repeat(self, runners: list[Finalist], rounds: int, *, selecting: bool) -> None:
        for number in range(1, rounds + 1):
            if not self._has_time(runners, number):
                return
            self._run_round(runners, number, selecting=selecting)
            self._bench.emit(RoundFinished(number=number, selecting=selecting, ratio=None, low=None, high=None))

    def _run_round(self, runners: list[Finalist], number: int, *, selecting: bool) -> None:
        shift, plan = number % len(runners), self._plan(number)
        for runner in runners[shift:] + runners[:shift]:
            before = self._bench.elapsed_s
            attempt = self._bench.run_round(runner.values, plan, number=number, selecting=selecting)
            self._runs.append(attempt)
            key = (runner.trial.config, plan)
            self._longest_s[key] = max(self._longest_s.get(key, 0.0), self._bench.elapsed_s - before)
            if runner is self._baseline:
                self._check_baseline(attempt)

    def _check_baseline(self, attempt: Attempt) -> None:
        """The default ran at the start; where it fails again and again now, something broke (a file that vanished)."""
        mine = [run for run in self._runs if run.trial.config == attempt.trial.config]
        if len(mine) >= 2 and all(run.trial.score is None for run in mine[-2:]):
            reason = attempt.trial.reason or attempt.trial.state
            raise NothingFeasibleError(
                f"The default configuration stopped working: {reason}.",
                f"What was measured is kept; go on with --resume {self._bench.record.name}.",
            )

    def _plan(self, number: int) -> Plan:
        return self._division.round_plan if number == 1 else self._division.later_plan

    def _has_time(self, runners: list[Finalist], number: int) -> bool:
        """Whether a round ends within the budget."""
        return self._expect(runners, self._plan(number)) <= self._bench.left_s

    def _expect(self, runners: list[Finalist], plan: Plan) -> float:
        """Seconds that one run of each takes: as the longest of its own so far, else as the default's pace has it."""
        return sum(self._longest_s.get((runner.trial.config, plan), self._pace.expect(plan)) for runner in runners)

    def _select(self) -> Finalist | None:
        """The finalist to compare: feasible, best by its median here, of near equals the simplest."""
        costs = [(cost, finalist) for finalist in self._finalists if (cost := self._median_cost(finalist)) is not None]
        if not costs:
            return None
        best = min(cost for cost, _ in costs)
        near = [(cost, finalist) for cost, finalist in costs if cost.is_within(best, _EQUAL)]
        default = self._baseline.trial.config
        return min(near, key=lambda pair: (count_changes(pair[1].trial.config, default), pair[0]))[1]

    def _median_cost(self, finalist: Finalist) -> Cost | None:
        """Without rounds here, the figure from the search; None where it failed here."""
        mine = [run.trial for run in self._runs if run.trial.config == finalist.trial.config]
        costs = [find_cost(trial.score, self._bench.request.goals) for trial in mine if trial.score]
        if mine and not costs:
            return None
        if not costs:
            return self._bench.history.cost(finalist.trial)
        return Cost(
            missed=statistics.median(cost.missed for cost in costs), value=statistics.median(cost.value for cost in costs)
        )

    def _compare(self, winner: Finalist) -> Gain:
        gain = self._make_gain(winner)
        for number in range(1, MOST_ROUNDS + 1):
            if not self._has_time([self._baseline, winner], number) or self._fails_again(winner):
                break
            self._run_round([self._baseline, winner], number, selecting=False)
            gain = self._make_gain(winner)
            self._bench.emit(RoundFinished(number=number, selecting=False, ratio=gain.ratio, low=gain.low, high=gain.high))
            if gain.rounds >= LEAST_ROUNDS and _is_decided(gain):
                break
        return gain

    def _fails_again(self, winner: Finalist) -> bool:
        mine = [run for run in self._runs if run.trial.config == winner.trial.config]
        return len(mine) >= 2 and all(run.trial.score is None for run in mine[-2:])

    def _make_gain(self, winner: Finalist | None) -> Gain:
        metric = self._bench.request.goals[0]
        defaults, bests = self._pair_up(winner) if winner else ([], [])
        if not defaults:
            return Gain(metric=metric, ratio=1.0, low=1.0, high=1.0, significant=False, rounds=0)
        ratio, low, high = paired_ratio(defaults, bests)
        return Gain(
            metric=metric,
            ratio=ratio,
            low=low,
            high=high,
            significant=len(defaults) >= FEWEST_ROUNDS and low > 1.0,
            rounds=len(defaults),
        )

    def _pair_up(self, winner: Finalist) -> tuple[list[float], list[float]]:
        """Costs of the default and of the winner in the rounds that count, where both have a figure."""
        goals = self._bench.request.goals
        rounds: dict[int, dict[RunConfig, float]] = {}
        for run in self._runs:
            if not run.selecting and run.trial.score:
                rounds.setdefault(run.round, {})[run.trial.config] = find_cost(run.trial.score, goals).value
        default, best = self._baseline.trial.config, winner.trial.config
        pairs = [(costs[default], costs[best]) for costs in rounds.values() if default in costs and best in costs]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _compare_contexts(self, winner: Finalist | None) -> Gain:
        """Context sizes are exact: the ratio has no interval."""
        if winner is None:
            return self._make_gain(None)
        ratio = winner.trial.config.ctx_size / max(1, self._baseline.trial.config.ctx_size)
        return Gain(metric="context", ratio=ratio, low=ratio, high=ratio, significant=ratio > 1.0, rounds=0)

    def _conclude(self, winner: Finalist | None, gain: Gain) -> Confirmed:
        baseline = self._with_figures(self._baseline)
        finalists = sorted(self._finalists, key=lambda finalist: finalist is not winner)
        told = tuple(self._with_figures(finalist) for finalist in finalists)
        best = told[0] if winner is not None and self._wins(told[0], baseline, gain) else baseline
        return Confirmed(baseline=baseline, best=best, finalists=told, gain=gain, rounds=tuple(run.trial for run in self._runs))

    def _wins(self, winner: Trial, baseline: Trial, gain: Gain) -> bool:
        """A gain that is shown, or a default that breaks the limits where the winner keeps them."""
        if winner.score is None or not winner.score.is_feasible:
            return False
        return gain.significant or (baseline.score is not None and not baseline.score.is_feasible)

    def _with_figures(self, finalist: Finalist) -> Trial:
        outcomes = [
            run.trial.outcome
            for run in self._runs
            if run.trial.config == finalist.trial.config and run.trial.score and run.trial.outcome
        ]
        return rescore(finalist.trial, merge_outcomes(outcomes), self._bench.request) if outcomes else finalist.trial


def _is_decided(gain: Gain) -> bool:
    """Narrow enough, or so far from 1 that more rounds cannot change the sign."""
    if gain.low <= 0 or not math.isfinite(gain.high):
        return False
    half = math.log(gain.high / gain.low) / 2
    return half <= NARROW or abs(math.log(gain.ratio)) > _CLEAR * half
