"""Our own search: settings that cannot matter for the goals stay at the default, the others are screened by short runs, each
where most is to be expected after predictions and all runs before it; what is promising is then run at full length.

A setting is changed only for a difference that can be seen, so what has no effect keeps its default.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from tuner.measure.record import Outcome, Plan
from tuner.runconfig import RunConfig
from tuner.study.drift import DriftWatch
from tuner.study.history import History
from tuner.study.points import count_points, find_config
from tuner.study.ranking import Cost, find_cost
from tuner.study.request import StudyRequest
from tuner.study.strategy import Proposal, is_full_length_short, list_searched, plan_full, plan_short
from tuner.trial import Trial

if TYPE_CHECKING:
    from tuner.study.guided import Guide

TINY: Final = 12
"""Spaces of at most this many points are screened whole."""
NOTICEABLE: Final = 0.01
"""A share of the goal below which a difference is not worth a changed setting."""
_NEAR: Final = 0.08
"""Points this near the best so far get further short samples."""
_SAMPLES: Final = 3
"""Samples of a point that is near the best."""
_PROMISING: Final = 0.06
_MOST_PROMISING: Final = 3
_HARD_TO_TELL: Final = 0.02
"""Full-length runs this near the best one get further samples."""

Walk = Generator[Proposal, None, None]


class PhysicsStrategy:
    """Screen by short runs, run the promising points in full, then undo what makes no difference."""

    def __init__(self, request: StudyRequest, *, note: Callable[[str], None]) -> None:
        self._request = request
        self._space = request.space
        self._watch = DriftWatch(note)
        self._walk: Walk | None = None
        self.stop_reason = "nothing better found"

    def propose(self, history: History) -> Proposal | None:
        if self._walk is None:
            self._walk = self._search(history)
        return next(self._walk, None)

    def extend(self, history: History, proposal: Proposal, config: RunConfig, outcome: Outcome) -> Plan | None:
        """A point near the best so far gets more samples; one that is far worse has had its only one."""
        if outcome.measurement is None or len(outcome.measurement.samples) >= _SAMPLES:
            return None
        score = self._score(outcome)
        if score is None:
            return None
        now = Cost(missed=score.missed, value=score.value / history.slowdown)
        if proposal.thorough:
            rivals = history.rank(history.figures(thorough=True))
            rival = history.cost(rivals[0]) if rivals else None
            return self._plan_full() if rival is None or now.is_within(rival, _HARD_TO_TELL) else None
        rival = self._best_cost(history, lambda known: known.model == config.model)
        if proposal.purpose == "repeat" or rival is None or now.is_within(rival, _NEAR):
            return plan_short(self._request)
        return None

    def _plan_full(self) -> Plan:
        return plan_full(self._request, samples=1)

    def _score(self, outcome: Outcome) -> Cost | None:
        from tuner.study.record import score_outcome

        score = score_outcome(outcome, self._request)
        return find_cost(score, self._request.goals) if score else None

    def _best_cost(self, history: History, where: Callable[[RunConfig], bool]) -> Cost | None:
        ranked = history.rank(self._list_short(history, where))
        return history.cost(ranked[0]) if ranked else None

    def _list_short(self, history: History, where: Callable[[RunConfig], bool] | None = None) -> list[Trial]:
        """Points with figures that compare with short ones."""
        return history.figures(thorough=None if is_full_length_short(self._request) else False, where=where)

    def _search(self, history: History) -> Walk:
        default = self._default_values(history)
        names = [name for name in list_searched(self._request) if name != "model"]
        if not names and len(self._models()) < 2:
            self.stop_reason = "no setting matters for these goals here"
            return
        is_tiny = count_points(self._space, ["model", *names], most=TINY) <= TINY
        if is_tiny:
            yield from self._screen_all(history, names, default)
            self.stop_reason = "space exhausted"
        else:
            yield from self._screen(history, names, default)
        yield from self._run_promising(history)
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
            yield from self._try_short(history, start)
            for combination in _product(choices):
                yield from self._try_short(history, {**start, **combination})

    def _screen(self, history: History, names: list[str], default: dict[str, Any]) -> Walk:
        """The most precise file first; what is learnt from it holds for the others too."""
        from tuner.study.guided import Guide

        guide = Guide(self._request, names, default)
        models = self._models() or [None]
        for goal in range(len(self._request.goals)):
            for place, model in enumerate(models):
                share = (goal + (place + 1) / len(models)) / len(self._request.goals)
                if not place or history.spent_share <= share:
                    yield from self._screen_file(history, guide, goal, model, default)

    def _screen_file(self, history: History, guide: Guide, goal: int, model: Any, default: dict[str, Any]) -> Walk:
        start = default if model is None else {**default, "model": model}
        yield from self._try_short(history, start)
        self._watch.start(start)
        for proposal in guide.search(history, goal, model, lambda values, hoped: self._try_short(history, values, hoped=hoped)):
            yield proposal
            self._watch.start(guide.find_best(history, goal, model) or start)

    def _try_short(self, history: History, values: dict[str, Any], *, hoped: bool = False) -> Walk:
        """A short run of the point, unless it is known; the incumbent is run again every few trials.

        A point that is `hoped` to win is not given up for a single sample: one in a few dozen is wild.
        """
        config = find_config(self._space, values)
        if self._find_short(history, config) is not None or history.find_failure(config) is not None:
            return
        yield Proposal(values=values, plan=plan_short(self._request, samples=2 if hoped else 1), stage="screen")
        if self._watch.is_due(history):
            yield Proposal(values=self._watch.values, plan=plan_short(self._request), stage="screen", purpose="repeat")
            self._watch.learn(history)

    def _find_short(self, history: History, config: RunConfig) -> Trial | None:
        """The figure of a point that compares with short ones; None where it has none."""
        return next(iter(self._list_short(history, lambda known: known == config)), None)

    def _run_promising(self, history: History) -> Walk:
        """Full-length runs of the best points of the screen: per file, and per goal."""
        if is_full_length_short(self._request):
            return
        values = {a.trial.config: a.values for a in history.attempts}
        chosen: dict[RunConfig, None] = {}
        for goal in range(len(self._request.goals)):
            for model in self._models() or [None]:
                short = self._list_short(history)
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

    def _full(self, values: dict[str, Any]) -> Proposal:
        return Proposal(values=values, plan=self._plan_full(), stage="search", thorough=True)

    def _simplify(self, history: History) -> Walk:
        """Put each changed setting of the best point back to its default, where the difference cannot be seen."""
        ranked = [t for t in history.rank(history.figures(thorough=self._longest)) if self._may_win(t.config, history)]
        default = self._default_values(history)
        if not ranked or ranked[0].config == history.baseline:
            return
        best, values = history.cost(ranked[0]), next(a.values for a in history.attempts if a.trial is ranked[0])
        for name in [name for name in values if values[name] != default[name] and name != "model"]:
            simpler = {**values, name: default[name]}
            config = find_config(self._space, simpler)
            if config == history.baseline or history.find_failure(config) is not None:
                continue
            if self._find_longest(history, config) is None:
                yield self._full(simpler)
            known = self._find_longest(history, config)
            cost = history.cost(known) if known else None
            if best is not None and cost is not None and cost.is_within(best, NOTICEABLE):
                values = simpler

    @property
    def _longest(self) -> bool | None:
        """Which runs are long enough for the last comparisons: all of them where short runs are as long as full ones."""
        return None if is_full_length_short(self._request) else True

    def _find_longest(self, history: History, config: RunConfig) -> Trial | None:
        return next(iter(history.figures(thorough=self._longest, where=lambda known: known == config)), None)

    def _may_win(self, config: RunConfig, history: History) -> bool:
        return self._request.allow_quality_loss or config.model == history.baseline.model


def _product(choices: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
