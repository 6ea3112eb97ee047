"""Our own search: settings that cannot matter for the goals stay at the default, the others are screened by short runs,
block by block from the best point so far; what is promising is run at full length, and Optuna's sampler goes on from there.

A setting is changed only for a difference that can be seen, so what has no effect keeps its default.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from typing import Any, Final

from tuner.measure.record import Outcome, Plan
from tuner.runconfig import RunConfig
from tuner.study.blocks import combine, find_between, form_blocks, thin_out
from tuner.study.drift import DriftWatch
from tuner.study.history import History
from tuner.study.points import count_points, find_config
from tuner.study.ranking import Cost, count_changes, find_cost
from tuner.study.request import StudyRequest
from tuner.study.sampled import MOST_IDLE, count_idle
from tuner.study.strategy import Proposal, list_searched, plan_full, plan_short
from tuner.trial import Trial

TINY: Final = 12
"""Spaces of at most this many points are screened whole."""
NOTICEABLE: Final = 0.01
"""A share of the goal below which a difference is not worth a changed setting."""
_NEAR: Final = 0.08
"""Points this near the best so far get further short samples."""
_SAMPLES: Final = 3
"""Short samples of a point that is near the best."""
_PROMISING: Final = 0.06
_MOST_PROMISING: Final = 4
_SWEEPS: Final = 2
_AGAIN: Final = 0.15
"""In a second sweep, only combinations that were this near the best in the first are tried again."""

Walk = Generator[Proposal, None, None]


class PhysicsStrategy:
    """Screen by blocks, then run the promising points in full, then sample."""

    def __init__(self, request: StudyRequest, *, note: Callable[[str], None]) -> None:
        self._request = request
        self._space = request.space
        self._watch = DriftWatch(note)
        self._walk: Walk | None = None
        self._history: History | None = None
        self.stop_reason = "nothing better found"

    def propose(self, history: History) -> Proposal | None:
        if self._walk is None:
            self._history = history
            self._walk = self._search(history)
        return next(self._walk, None)

    def extend(self, history: History, proposal: Proposal, config: RunConfig, outcome: Outcome) -> Plan | None:
        """A point near the best so far gets more short samples; one that is far worse has had its only one."""
        if proposal.thorough or outcome.measurement is None or len(outcome.measurement.samples) >= _SAMPLES:
            return None
        score = self._score(outcome)
        if score is None:
            return None
        rival = self._best_cost(history, lambda known: known.model == config.model)
        now = Cost(missed=score.missed, value=score.value / history.slowdown)
        if proposal.purpose == "repeat" or rival is None or now.is_within(rival, _NEAR):
            return plan_short(self._request)
        return None

    def _score(self, outcome: Outcome) -> Cost | None:
        from tuner.study.record import score_outcome

        score = score_outcome(outcome, self._request)
        return find_cost(score, self._request.goals) if score else None

    def _best_cost(self, history: History, where: Callable[[RunConfig], bool]) -> Cost | None:
        ranked = history.rank(history.figures(thorough=False, where=where))
        return history.cost(ranked[0]) if ranked else None

    def _search(self, history: History) -> Walk:
        default = self._default_values(history)
        names = [name for name in list_searched(self._request) if name != "model"]
        if not names and len(self._models()) < 2:
            self.stop_reason = "no setting matters for these goals here"
            return
        is_tiny = count_points(self._space, ["model", *names], most=TINY) <= TINY
        if is_tiny:
            yield from self._screen_all(history, names, default)
        else:
            for goal in range(len(self._request.goals)):
                yield from self._search_goal(history, goal, names, default)
        yield from self._run_promising(history)
        if is_tiny:
            self.stop_reason = "space exhausted"
            return
        yield from self._sample(history)
        yield from self._simplify(history)

    def _default_values(self, history: History) -> dict[str, Any]:
        return next(dict(a.values) for a in history.attempts if a.trial.config == history.baseline)

    def _models(self) -> list[Any]:
        domain = self._space.domains.get("model")
        return list(domain.values) if domain else []

    def _screen_all(self, history: History, names: list[str], default: dict[str, Any]) -> Walk:
        self._watch.start(default)
        choices = {name: self._space.domains[name].values for name in names}
        for model in self._models() or [None]:
            start = default if model is None else {**default, "model": model}
            yield from self.try_short(history, start)
            for combination in _product(choices):
                yield from self.try_short(history, {**start, **combination})

    def _search_goal(self, history: History, goal: int, names: list[str], default: dict[str, Any]) -> Walk:
        """The most precise file first; the others start from its best point."""
        models = self._models() or [None]
        share = (goal + 1) / len(self._request.goals)
        incumbent = dict(default)
        for place, model in enumerate(models):
            if place and history.spent_share > share * (place + 1) / len(models):
                continue
            start = incumbent if model is None else {**incumbent, "model": model}
            descent = _Descent(self, history, goal, names)
            yield from descent.run(start, sweeps=_SWEEPS if place == 0 else 1)
            incumbent = descent.incumbent if place == 0 else incumbent

    def try_short(self, history: History, values: dict[str, Any]) -> Walk:
        """A short run of the point, unless it is known; the incumbent is run again every few trials."""
        config = find_config(self._space, values)
        if self.find_short(history, config) is not None:
            return
        if history.find_failure(config) is not None:
            return
        yield Proposal(values=values, plan=plan_short(self._request), stage="screen")
        if self._watch.is_due(history):
            yield Proposal(values=self._watch.values, plan=plan_short(self._request), stage="screen", purpose="repeat")
            self._watch.learn(history)

    def find_short(self, history: History, config: RunConfig) -> Trial | None:
        """The short figure of a point; None where it has none."""
        for attempt in history.attempts:
            trial = attempt.trial
            if trial.config == config and not attempt.thorough and attempt.purpose == "point" and trial.score:
                return trial
        return None

    def watch(self, values: dict[str, Any]) -> None:
        """From now on this point is run again to see drift."""
        self._watch.start(values)

    def _run_promising(self, history: History) -> Walk:
        """Full-length runs of the best points of the screen: per file, and per goal."""
        values = {a.trial.config: a.values for a in history.attempts}
        chosen: dict[RunConfig, None] = {}
        for goal in range(len(self._request.goals)):
            for model in self._models() or [None]:
                short = history.figures(thorough=False)
                ranked = history.rank([t for t in short if model is None or t.config.model == model], goal)
                is_main = model is None or model == history.baseline.model or self._request.allow_quality_loss
                chosen |= dict.fromkeys(self._near_best(history, ranked, goal, most=_MOST_PROMISING if is_main else 1))
        for config in chosen:
            if history.find_known(config, thorough=True) is None:
                yield self._full(values[config])

    def _near_best(self, history: History, ranked: list[Trial], goal: int, *, most: int) -> list[RunConfig]:
        best = history.cost(ranked[0], goal) if ranked else None
        near = [
            trial.config
            for trial in ranked
            if best is not None and (cost := history.cost(trial, goal)) is not None and cost.is_within(best, _PROMISING)
        ]
        return near[:most]

    def _full(self, values: dict[str, Any] | None) -> Proposal:
        return Proposal(values=values, plan=plan_full(self._request), stage="search", thorough=True)

    def _sample(self, history: History) -> Walk:
        """Optuna's sampler goes on from what is known, until it finds nothing better for a while."""
        fruitless = 0
        best = self._best_full(history)
        while fruitless < self._request.patience and count_idle(history) < MOST_IDLE:
            yield self._full(None)
            now = self._best_full(history)
            if now is not None and (best is None or now.beats(best, margin=NOTICEABLE)):
                best, fruitless = now, 0
            elif history.last is not None and history.last.was_run:
                fruitless += 1

    def _simplify(self, history: History) -> Walk:
        """Put each changed setting of the best point back to its default, where the difference cannot be seen."""
        ranked = [t for t in history.rank(history.figures(thorough=True)) if self._may_win(t.config, history)]
        default = self._default_values(history)
        if not ranked or ranked[0].config == history.baseline:
            return
        best, values = history.cost(ranked[0]), next(a.values for a in history.attempts if a.trial is ranked[0])
        for name in [name for name in values if values[name] != default[name] and name != "model"]:
            simpler = {**values, name: default[name]}
            config = self.find(simpler)
            if config == history.baseline or history.find_failure(config) is not None:
                continue
            if history.find_known(config, thorough=True) is None:
                yield self._full(simpler)
            known = history.find_known(config, thorough=True)
            cost = history.cost(known.trial) if known else None
            if best is not None and cost is not None and cost.is_within(best, NOTICEABLE):
                values = simpler

    def _may_win(self, config: RunConfig, history: History) -> bool:
        return self._request.allow_quality_loss or config.model == history.baseline.model

    def _best_full(self, history: History) -> Cost | None:
        ranked = history.rank(history.figures(thorough=True))
        return history.cost(ranked[0]) if ranked else None

    def choices(self, name: str, current: Any) -> list[Any]:
        """What to try first of a dimension."""
        domain = self._space.domains[name]
        return thin_out(domain.values, current) if domain.ordered else list(domain.values)

    def values_of(self, name: str) -> tuple[Any, ...]:
        """All values of a dimension, () where they have no order."""
        domain = self._space.domains[name]
        return tuple(domain.values) if domain.ordered else ()

    def find(self, values: dict[str, Any]) -> RunConfig:
        """The effective point at these values."""
        return find_config(self._space, values)


class _Descent:
    """Block coordinate descent by short runs, for one goal and one file."""

    def __init__(self, strategy: PhysicsStrategy, history: History, goal: int, names: list[str]) -> None:
        self._strategy, self._history, self._goal = strategy, history, goal
        self._blocks = form_blocks(names)
        self._weak: dict[tuple[str, ...], list[dict[str, Any]]] = {block: [] for block in self._blocks}
        self.incumbent: dict[str, Any] = {}

    def run(self, start: dict[str, Any], *, sweeps: int) -> Walk:
        self.incumbent = dict(start)
        yield from self._strategy.try_short(self._history, start)
        self._strategy.watch(self.incumbent)
        settled: set[tuple[str, ...]] = set()
        for _ in range(sweeps):
            for block in self._blocks:
                if block in settled:
                    continue
                before = self.incumbent
                yield from self._improve(block)
                settled = settled | {block} if self.incumbent == before else {block}
            if len(settled) == len(self._blocks):
                return

    def _improve(self, block: tuple[str, ...]) -> Walk:
        start = dict(self.incumbent)
        tried: list[dict[str, Any]] = []
        choices = {name: self._strategy.choices(name, start[name]) for name in block}
        candidates = [c for c in combine(block, choices, start) if c not in self._weak[block]]
        while candidates:
            for candidate in candidates:
                yield from self._strategy.try_short(self._history, {**start, **candidate})
                tried.append(candidate)
            self._accept(start, tried)
            candidates = self._refine(block, tried)
        self._forget_weak(block, start, tried)

    def _accept(self, start: dict[str, Any], tried: list[dict[str, Any]]) -> None:
        """The best combination becomes the incumbent where the difference can be seen; of near equals the simplest."""
        points = [self.incumbent, *({**start, **candidate} for candidate in tried)]
        costs = [(cost, values) for values in points if (cost := self._cost(values)) is not None]
        if not costs:
            return
        best = min(cost for cost, _ in costs)
        mine = self._cost(self.incumbent)
        if mine is not None and not best.beats(mine, margin=NOTICEABLE):
            return
        default = self._history.baseline
        near = [values for cost, values in costs if cost.is_within(best, NOTICEABLE)]
        self.incumbent = min(near, key=lambda values: (count_changes(self._strategy.find(values), default), self._rank(values)))
        self._strategy.watch(self.incumbent)

    def _rank(self, values: dict[str, Any]) -> Cost:
        return self._cost(values) or Cost(missed=float("inf"), value=float("inf"))

    def _cost(self, values: dict[str, Any]) -> Cost | None:
        trial = self._strategy.find_short(self._history, self._strategy.find(values))
        return self._history.cost(trial, self._goal) if trial else None

    def _refine(self, block: tuple[str, ...], tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Values between the best one and its tried neighbours, where a long domain was thinned out."""
        current = {name: self.incumbent[name] for name in block}
        found: list[dict[str, Any]] = []
        for name in block:
            seen = [candidate[name] for candidate in tried]
            between = find_between(self._strategy.values_of(name), seen, current[name])
            found.extend({**current, name: value} for value in between)
        return [candidate for candidate in found if candidate not in tried]

    def _forget_weak(self, block: tuple[str, ...], start: dict[str, Any], tried: list[dict[str, Any]]) -> None:
        best = self._cost(self.incumbent)
        for candidate in tried:
            cost = self._cost({**start, **candidate})
            if best is not None and (cost is None or not cost.is_within(best, _AGAIN)):
                self._weak[block].append(candidate)


def _product(choices: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
