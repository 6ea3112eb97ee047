"""What is expected of one figure at every point: predictions where there are some, corrected by what was measured.

log(measured) = trust × log(predicted) + a Gaussian process. How far the predictions are trusted is decided by the evidence:
predictions that order the points rightly explain the measurements better than a process without them, and wrong ones worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.study.gaussian import OWN, Array, Process, fit_process

_TRUSTS: Final = ((1.0, 0.6, 0.1), (0.5, 0.2, 0.2), (0.0, 0.2, 0.3))
"""Trust in the predictions, how likely it is before data, and the size of effects that are left to learn."""
_ALONE: Final = 0.5
"""Share of a prediction's doubt that is each point's own; the rest it shares with points of like settings."""
_NO_PREDICTIONS: Final = ((0.0, 1.0, 0.3),)


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """One of several expectations that contradict each other.

    Their mixture has more than one hump: it is no normal distribution where what the less likely one hopes for counts.
    """

    weight: float
    """How likely it is; all sum to 1."""
    mean: Array
    """Logarithm, by point."""
    sd: Array
    """Standard deviation, by point."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """The process under one trust."""

    trust: float
    """Share of the prediction's logarithm that is taken for true."""
    weight: float
    """How likely this trust is after data; all sum to 1."""
    level: float
    """What was taken from the data before they were fitted, in log units."""
    process: Process
    """Of what is left."""


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of one figure."""

    parts: tuple[_Part, ...]
    """By trust."""
    relevant: NDArray[np.bool_]
    """The settings that move the figure: points that differ in none of them are one."""

    @property
    def trust(self) -> float:
        """How far the predictions are believed, 0 to 1."""
        return sum(part.weight * part.trust for part in self.parts)

    def list_opinions(self, codes: Array, predicted: Array) -> tuple[Opinion, ...]:
        """The figure's logarithm at points, by trust; `predicted` are logarithms too, 0 without any."""
        relevant = codes[:, self.relevant]
        found = [(part, *part.process.predict(relevant)) for part in self.parts]
        return tuple(
            Opinion(weight=part.weight, mean=mean + part.level + part.trust * predicted, sd=sd) for part, mean, sd in found
        )

    def expect(self, codes: Array, predicted: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the figure's logarithm at points; `predicted` are logarithms too, 0 without any."""
        return merge_opinions(self.list_opinions(codes, predicted))


def merge_opinions(opinions: Sequence[Opinion]) -> tuple[Array, Array]:
    """Mean and standard deviation of their mixture."""
    weights = np.array([each.weight for each in opinions])[:, None]
    means = np.array([each.mean for each in opinions])
    mean = (weights * means).sum(axis=0)
    variance = (weights * (np.array([np.square(each.sd) for each in opinions]) + np.square(means - mean))).sum(axis=0)
    return mean, np.sqrt(variance)


def form_belief(
    codes: Array,
    logs: Array,
    noise: Array,
    predicted: Array | None,
    *,
    doubt: float = OWN,
    ordered: NDArray[np.bool_],
    relevant: NDArray[np.bool_],
) -> Belief:
    """From measurements: one row of `codes`, one logarithm, its noise and the prediction's logarithm for each.

    `doubt` is how far the predictions say that they may err, as a standard deviation in log units.
    """
    fits = []
    for trust, likely, expected in _NO_PREDICTIONS if predicted is None else _TRUSTS:
        left = logs if predicted is None else logs - trust * predicted
        level = float(np.median(left))
        own = max(OWN, trust * doubt * _ALONE)
        process = fit_process(codes[:, relevant], left - level, noise, ordered[relevant], expected=expected, own=own)
        fits.append((trust, float(np.log(likely)) + process.evidence, level, process))
    best = max(log for _, log, _, _ in fits)
    total = sum(np.exp(log - best) for _, log, _, _ in fits)
    return Belief(
        parts=tuple(
            _Part(trust=trust, weight=float(np.exp(log - best) / total), level=level, process=process)
            for trust, log, level, process in fits
        ),
        relevant=relevant,
    )
