"""What is expected of every candidate for a goal, and which of them is worth a run.

TTFT and TPOT are learnt apart, each from the settings that move its phase, and put together for the goal: two simple functions
are learnt from fewer runs than one that is neither.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.objective import Goal, Limit
from tuner.runconfig import RunConfig
from tuner.study.belief import Belief, Opinion, form_belief, merge_opinions
from tuner.study.candidates import Candidates
from tuner.study.gaussian import OWN, Array
from tuner.study.noise import NOISE

if TYPE_CHECKING:
    from tuner.roofline.record import Prediction
    from tuner.space.base import Phase
    from tuner.space.searchspace import SearchSpace

Predict = Callable[[RunConfig], "Prediction | None"]
_PARTS: Final[dict[str, tuple[str, ...]]] = {"latency": ("ttft", "tpot")}
_PHASES: Final[dict[str, frozenset[Phase]]] = {
    "ttft": frozenset({"prefill"}),
    "tpot": frozenset({"decode"}),
    "latency": frozenset({"prefill", "decode"}),
    "throughput": frozenset({"decode"}),
    "memory": frozenset({"memory"}),
}
_Z80: Final = 1.2816
"""Standard deviations from the middle of a normal distribution to either end of its 80 % interval."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one point."""

    config: RunConfig
    """Effective settings."""
    figures: dict[str, float]
    """By metric, the machine's drift taken out; without ttft and tpot, latency is learnt as a whole."""
    noise: float = NOISE
    """Standard deviation of each figure, in log units."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """One goal over all candidates, as the logarithm of a cost."""

    opinions: tuple[Opinion, ...]
    """Of that logarithm; smaller is better."""
    feasible: Array
    """How likely each candidate keeps all limits, 0 to 1."""

    @property
    def mean(self) -> Array:
        """Expected, all opinions together."""
        return merge_opinions(self.opinions)[0]

    @property
    def sd(self) -> Array:
        """Standard deviation, all opinions together."""
        return merge_opinions(self.opinions)[1]

    def improvement(self, best: float) -> Array:
        """How much less than `best` is to be expected, times the chance to keep the limits (Jones, Schonlau, Welch, 1998)."""
        gain: Array = sum((each.weight * _improve(best - each.mean, each.sd) for each in self.opinions), np.zeros(1))
        return gain * self.feasible

    def chance(self, level: float) -> float:
        """How likely any candidate lies below `level` and keeps the limits, their errors taken as independent."""
        none = (np.prod(1 - _probability((level - each.mean) / each.sd) * self.feasible) for each in self.opinions)
        return float(sum(each.weight * (1 - miss) for each, miss in zip(self.opinions, none, strict=True)))

    def widen(self, factor: float) -> Outlook:
        """The same with deviations that are so many times larger."""
        wider = tuple(msgspec.structs.replace(each, sd=each.sd * factor) for each in self.opinions)
        return msgspec.structs.replace(self, opinions=wider)

    def take(self, rows: NDArray[np.int64]) -> Outlook:
        """Some of the candidates."""
        fewer = tuple(msgspec.structs.replace(each, mean=each.mean[rows], sd=each.sd[rows]) for each in self.opinions)
        return Outlook(opinions=fewer, feasible=self.feasible[rows])


class Surrogate:
    """Learns from observations."""

    def __init__(
        self,
        space: SearchSpace,
        candidates: Candidates,
        *,
        predict: Predict | None,
        answer_tokens: int,
        limits: Sequence[Limit],
    ) -> None:
        self._space, self._candidates = space, candidates
        self._predict, self._steps, self._limits = predict, answer_tokens - 1, tuple(limits)
        self._predictions: dict[RunConfig, Prediction | None] = {}
        self._beliefs: dict[str, Belief] = {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Form the beliefs anew from these observations; what is no candidate is left out."""
        found = [(row, each) for each in observations if (row := self._candidates.find(each.config)) is not None]
        for part in dict.fromkeys(part for _, each in found for part in each.figures):
            self._learn_part(part, [(row, each.figures[part], each.noise) for row, each in found if part in each.figures])

    def _learn_part(self, part: str, seen: list[tuple[int, float, float]]) -> None:
        rows = [row for row, _, _ in seen]
        predicted = self._predicted(part)
        self._beliefs[part] = form_belief(
            self._candidates.codes[rows],
            np.array([math.log(max(figure, 1e-12)) for _, figure, _ in seen]),
            np.array([noise for _, _, noise in seen]),
            None if predicted is None else predicted[rows],
            ordered=self._candidates.ordered,
            doubt=OWN if predicted is None else self._find_doubt(part),
            relevant=self._relevant(part),
        )

    def trust(self, part: str) -> float:
        """How far predictions of this figure are believed, 0 to 1; 0 before anything was learnt."""
        return self._beliefs[part].trust if part in self._beliefs else 0.0

    def look(self, goal: Goal) -> Outlook:
        """The goal over all candidates."""
        feasible = np.ones(len(self._candidates))
        for limit in self._limits:
            feasible = feasible * self._chance(limit)
        return Outlook(opinions=self._expect(goal), feasible=feasible)

    def _expect(self, metric: str) -> tuple[Opinion, ...]:
        """Of a cost's logarithm."""
        if metric in {"context", "ctx_size"}:
            sizes = np.array([max(config.ctx_size, 1) for config in self._candidates.configs], dtype=np.float64)
            return (Opinion(weight=1.0, mean=-np.log(sizes), sd=np.full(len(sizes), 1e-9)),)
        if metric == "latency" and metric not in self._beliefs:
            pairs = itertools.product(self._expect_part("ttft"), self._expect_part("tpot"))
            return tuple(_add_up(first, step, max(self._steps, 1)) for first, step in pairs)
        found = self._expect_part(metric)
        if metric != "throughput":
            return found
        return tuple(msgspec.structs.replace(each, mean=-each.mean) for each in found)

    def _expect_part(self, part: str) -> tuple[Opinion, ...]:
        codes, predicted = self._candidates.codes, self._predicted(part)
        return self._beliefs[part].list_opinions(codes, np.zeros(len(codes)) if predicted is None else predicted)

    def _chance(self, limit: Limit) -> Array:
        mean, sd = merge_opinions(self._expect(limit.metric))
        bound = math.log(max(limit.value, 1e-12))
        return _probability(((bound if limit.at_most else -bound) - mean) / sd)

    def _relevant(self, part: str) -> NDArray[np.bool_]:
        moving = {*self._space.relevant(_PHASES[part]), "model"}
        return np.array([name in moving for name in self._candidates.names], dtype=np.bool_)

    def _predicted(self, part: str) -> Array | None:
        """Logarithms of the predictions for all candidates; None unless each has one, since a few of them rank nothing."""
        if self._predict is None:
            return None
        known = np.array([self._find_prediction(config, part)[0] for config in self._candidates.configs])
        return None if np.isnan(known).any() else known

    def _find_doubt(self, part: str) -> float:
        """How far the predictions may err by their own account, as a standard deviation in log units."""
        doubts = [self._find_prediction(config, part)[1] for config in self._candidates.configs]
        return float(np.median(doubts))

    def _find_prediction(self, config: RunConfig, part: str) -> tuple[float, float]:
        """Logarithm and its standard deviation; nan without a prediction."""
        if config not in self._predictions:
            self._predictions[config] = self._predict(config) if self._predict else None
        prediction = self._predictions[config]
        if prediction is None:
            return math.nan, 0.0
        if part == "memory":
            return (math.log(prediction.memory_bytes), OWN) if prediction.memory_bytes else (math.nan, 0.0)
        estimate = prediction.estimate(part)
        if estimate is None or min(estimate.low, estimate.value) <= 0:
            return math.nan, 0.0
        return math.log(estimate.value), math.log(estimate.high / estimate.low) / (2 * _Z80)


def _add_up(first: Opinion, step: Opinion, steps: int) -> Opinion:
    """The logarithm of a first token and so many steps."""
    all_steps = step.mean + math.log(steps)
    total = np.logaddexp(first.mean, all_steps)
    share = np.exp(first.mean - total)
    sd = np.sqrt(np.square(share * first.sd) + np.square((1 - share) * step.sd))
    return Opinion(weight=first.weight * step.weight, mean=total, sd=sd)


def _improve(gap: Array, sd: Array) -> Array:
    z = gap / sd
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    gain: Array = np.maximum(gap * _probability(z) + sd * density, 0.0)
    return gain


def _probability(z: Array) -> Array:
    """The standard normal distribution function."""
    return np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in z])


def list_parts(metrics: Sequence[str]) -> tuple[str, ...]:
    """The figures that these goals and limits are made of."""
    parts = (part for metric in metrics for part in _PARTS.get(metric, (metric,)))
    return tuple(dict.fromkeys(part for part in parts if part in _PHASES))
