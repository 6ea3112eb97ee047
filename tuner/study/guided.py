"""Short runs where most is to be expected, for one goal and one file, until no point can be expected to be better.

What is expected comes from predictions, where there are some, and from all short runs so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, Final

from tuner.measure.record import Measurement
from tuner.study.acquisition import choose_next
from tuner.study.candidates import Candidates
from tuner.study.history import History
from tuner.study.noise import find_noise
from tuner.study.ranking import count_changes
from tuner.study.request import StudyRequest
from tuner.study.strategy import Proposal, is_full_length_short
from tuner.study.surrogate import Observation, Outlook, Surrogate, list_parts

Walk = Generator[Proposal, None, None]
_CREDIT: Final = 4.0
"""Runs that the deviations are believed to have foretold well before there were any."""


class Guide:
    """Candidates, and what is believed of them."""

    def __init__(self, request: StudyRequest, names: list[str], start: dict[str, Any]) -> None:
        self._request = request
        space = request.space
        searched = [name for name in space.domains if name in {*names, "model"}]
        self.candidates = Candidates(space, searched, start=start, seed=request.seed)
        self._parts = list_parts([*request.goals, *(limit.metric for limit in request.limits)])
        self._surrogate = Surrogate(
            space,
            self.candidates,
            predict=request.predict,
            answer_tokens=request.workload.output_tokens,
            limits=request.limits,
        )
        self._centre: dict[str, Any] | None = None
        self._looked: tuple[tuple[int, int, int], Outlook] | None = None
        self._surprises: dict[int, list[float]] = {goal: [] for goal in range(len(request.goals))}

    def search(self, history: History, goal: int, model: Any, try_short: Callable[[dict[str, Any], bool], Walk]) -> Walk:
        """Proposals for the goal at `goal`, of points with this file (None: there is only one).

        `try_short` is told whether the point is expected to be the best.
        """
        asked: set[int] = set()
        while (row := self._choose(history, goal, model, asked)) is not None:
            asked.add(row)
            expected = self._look(history, goal)
            yield from try_short(self.candidates.values[row], self._is_hope(history, expected, row, model))
            if row in self._list_seen(history, model):
                self._note_surprise(expected, self._look(history, goal), row, goal)

    def _is_hope(self, history: History, outlook: Outlook, row: int, model: Any) -> bool:
        seen = self._list_seen(history, model)
        return bool(seen) and bool(outlook.mean[row] < outlook.mean[seen].min())

    def find_best(self, history: History, goal: int, model: Any) -> dict[str, Any] | None:
        """The point with figures of which most is expected; None without one that keeps the limits."""
        outlook = self._look(history, goal)
        rows = [row for row in self._list_seen(history, model) if outlook.feasible[row] > 0.5]
        return self.candidates.values[min(rows, key=lambda row: float(outlook.mean[row]))] if rows else None

    def _choose(self, history: History, goal: int, model: Any, asked: set[int]) -> int | None:
        best = self.find_best(history, goal, model)
        if best is not None and best != self._centre:
            self.candidates.add_around(best)
            self._centre = best
        seen = set(self._list_seen(history, model))
        told = {self.candidates.find(attempt.trial.config) for attempt in history.attempts if attempt.trial.score is None}
        rows = self._list_rows(model)
        allowed = [row for row in rows if row not in seen | asked | told and self._may_fit(history, row)]
        changes = [count_changes(config, history.baseline) for config in self.candidates.configs]
        outlook = self._look(history, goal).widen(self._find_doubt(goal))
        return choose_next(outlook, seen, allowed, changes)

    def _note_surprise(self, expected: Outlook, found: Outlook, row: int, goal: int) -> None:
        """Remember how far off the expectation of a point was, in its own deviations."""
        self._surprises[goal].append(float((found.mean[row] - expected.mean[row]) / expected.sd[row]))

    def _find_doubt(self, goal: int) -> float:
        """How many times larger the errors of the expectations were than their deviations; never less than 1."""
        squares = [surprise**2 for surprise in self._surprises[goal]]
        return max(1.0, math.sqrt((_CREDIT + sum(squares)) / (_CREDIT + len(squares))))

    def _look(self, history: History, goal: int) -> Outlook:
        """The goal as all attempts so far let it be seen; kept until there is another attempt or candidate."""
        state = (len(history.attempts), len(self.candidates), goal)
        if self._looked is None or self._looked[0] != state:
            self._surrogate.learn(list_observations(history, self._request, self._parts))
            self._looked = (state, self._surrogate.look(self._request.goals[goal]))
        return self._looked[1]

    def _list_rows(self, model: Any) -> list[int]:
        return [row for row, config in enumerate(self.candidates.configs) if model is None or config.model == model]

    def _list_seen(self, history: History, model: Any) -> list[int]:
        seen = list_observations(history, self._request, self._parts)
        rows = (self.candidates.find(each.config) for each in seen if model is None or each.config.model == model)
        return sorted({row for row in rows if row is not None})

    def _may_fit(self, history: History, row: int) -> bool:
        return history.find_larger_failure(self.candidates.configs[row]) is None


def list_observations(history: History, request: StudyRequest, parts: tuple[str, ...]) -> list[Observation]:
    """The figures of short runs, and those of full-length ones that compare with them."""
    noise = find_noise(history)
    found = []
    for attempt in history.attempts:
        measurement = attempt.trial.outcome.measurement if attempt.trial.outcome and attempt.was_run else None
        if measurement is None or attempt.trial.score is None:
            continue
        slowdown = history.slowdown_of(attempt.trial)
        figures = {part: value for part in parts if (value := _read(measurement, part, slowdown)) is not None}
        if attempt.thorough and not is_full_length_short(request):
            figures = {part: value for part, value in figures.items() if part in {"ttft", "memory"}}
        if figures:
            samples = max(1, len(measurement.samples))
            found.append(Observation(config=attempt.trial.config, figures=figures, noise=noise / samples**0.5))
    return found


def _read(measurement: Measurement, part: str, slowdown: float) -> float | None:
    match part:
        case "ttft":
            return None if measurement.ttft_ms is None else measurement.ttft_ms / slowdown
        case "tpot":
            return None if measurement.tpot_ms is None else measurement.tpot_ms / slowdown
        case "throughput":
            return None if measurement.throughput_tps is None else measurement.throughput_tps * slowdown
        case _:
            return float(measurement.memory_bytes) or None
