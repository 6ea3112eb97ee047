"""A Gaussian process over points of a search space: what few measurements say about all points, and how surely.

Logarithms of times are close to a sum of one effect for each setting and of smaller ones for each two and three that act on
each other, so the covariance is

    bias² + e_1 + g² e_2 + g⁴ e_3 + own² [same point]

with e_k the sum over all k settings of the product of their a_d² c_d (an elementary symmetric polynomial), and c_d Matérn 3/2
over ordered settings, [same value] over others. The scales are those of highest posterior density on a small grid (Rasmussen
and Williams, Gaussian Processes for Machine Learning, 2006, §2.2, §4.2.1 and §5.4.1): no random start, so equal data give equal
answers.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BIAS: Final = 1.0
"""Standard deviation of what all points have in common, in log units."""
OWN: Final = 0.03
"""What a single point has for itself, in log units, where nothing else is known of it."""
_LENGTH: Final = 0.5
"""Distance over which an ordered setting forgets, where its whole range is 1."""
_EFFECTS: Final = (0.01, 0.03, 0.1, 0.3, 0.9)
_JOINTS: Final = (0.25, 0.5, 1.0, 2.0)
_OWNS: Final = (0.33, 1.0, 3.0)
_WIDTH: Final = 1.2
"""Standard deviation of a scale's own logarithm, before data."""
_SWEEPS: Final = 2
_READINGS: Final = 8
"""Choices of scales that are kept: what few points leave open about the scales is part of what is not known."""


class Scales(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what is seen is due to what, as standard deviations in log units."""

    effects: tuple[float, ...]
    """By setting."""
    joint: float
    """g: of settings together, against the product of their effects."""
    own: float
    """Of a single point, which says nothing about others."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What is believed of the scales before data, as standard deviations in log units."""

    expected: float
    """Of the effect of one setting."""
    own: float
    """Of a single point."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The data as one choice of scales reads them."""

    scales: Scales
    """The choice."""
    likely: float
    """How likely it is after data; all readings of a process sum to 1."""
    factor: Array
    """Cholesky factor of the covariance of what was seen."""
    weights: Array
    """That covariance's inverse times the data."""

    def predict(self, alike: Array, same: Array) -> tuple[Array, Array]:
        """Mean and variance of points, by how alike they and what was seen are, and where they are the same."""
        cross = _combine(alike, self.scales) + self.scales.own**2 * same
        solved = np.linalg.solve(self.factor, cross.T)
        itself = _combine(np.ones((len(alike), 1, 1)), self.scales)[0, 0] + self.scales.own**2
        return cross @ self.weights, np.maximum(itself - np.square(solved).sum(axis=0), 1e-12)


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has seen its data."""

    codes: Array
    """Points seen, one a row."""
    ordered: NDArray[np.bool_]
    """Which settings have an order."""
    evidence: float
    """Log of the highest posterior density of scales, up to a constant that all processes over these data share."""
    readings: tuple[Reading, ...]
    """Likeliest first."""

    def predict(self, codes: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at other points, one a row; in log units, noise of a measurement left out."""
        alike, same = correlate(codes, self.codes, self.ordered), _same(codes, self.codes)
        found = [reading.predict(alike, same) for reading in self.readings]
        likely = np.array([reading.likely for reading in self.readings])[:, None]
        means = np.array([mean for mean, _ in found])
        mean = (likely * means).sum(axis=0)
        variance = (likely * (np.array([each for _, each in found]) + np.square(means - mean))).sum(axis=0)
        return mean, np.sqrt(variance)


def fit_process(
    codes: Array,
    data: Array,
    noise: Array,
    ordered: NDArray[np.bool_],
    *,
    expected: float,
    own: float = OWN,
) -> Process:
    """The process of `data` (logs, one a row of `codes`) with these standard deviations of noise.

    `expected` is the size of effects believed in before data, `own` that of what a single point has for itself.
    """
    fitter = _Fitter(codes, data, noise, ordered, Sizes(expected=expected, own=own))
    evidence = fitter.judge(fitter.search())
    return Process(codes=codes, ordered=ordered, evidence=evidence, readings=fitter.read())


def correlate(one: Array, other: Array, ordered: NDArray[np.bool_]) -> Array:
    """By setting, how alike the values of two sets of points are: shape (settings, rows of one, rows of other)."""
    distance = np.abs(one.T[:, :, None] - other.T[:, None, :])
    scaled = np.sqrt(3.0) * distance / _LENGTH
    return np.where(ordered[:, None, None], (1 + scaled) * np.exp(-scaled), (distance < 1e-9).astype(float))


class _Fitter:
    """Coordinate ascent over the grid of scales."""

    def __init__(self, codes: Array, data: Array, noise: Array, ordered: NDArray[np.bool_], sizes: Sizes) -> None:
        self._alike = correlate(codes, codes, ordered)
        self._same = _same(codes, codes)
        self._data, self._noise, self._sizes = data, np.diag(np.square(noise)), sizes
        self._judged: dict[Scales, float] = {}

    def search(self) -> Scales:
        best = Scales(effects=(self._sizes.expected,) * len(self._alike), joint=1.0, own=self._sizes.own)
        for _ in range(_SWEEPS):
            for place in range(len(self._alike)):
                effects = [(*best.effects[:place], size, *best.effects[place + 1 :]) for size in _EFFECTS]
                best = self._choose([msgspec.structs.replace(best, effects=each) for each in effects])
            best = self._choose([msgspec.structs.replace(best, joint=size) for size in _JOINTS])
            best = self._choose([msgspec.structs.replace(best, own=self._sizes.own * factor) for factor in _OWNS])
        return best

    def _choose(self, choices: list[Scales]) -> Scales:
        return max(choices, key=self.judge)

    def read(self) -> tuple[Reading, ...]:
        """The likeliest scales that the search came by."""
        ranked = sorted(self._judged.items(), key=lambda pair: -pair[1])[:_READINGS]
        likely = np.exp([density - ranked[0][1] for _, density in ranked])
        return tuple(self._read(scales, float(each / likely.sum())) for (scales, _), each in zip(ranked, likely, strict=True))

    def _read(self, scales: Scales, likely: float) -> Reading:
        covariance = self.covariance(scales)
        factor = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        weights = np.asarray(np.linalg.solve(covariance, self._data), dtype=np.float64)
        return Reading(scales=scales, likely=likely, factor=factor, weights=weights)

    def judge(self, scales: Scales) -> float:
        """Log marginal likelihood and log prior density of the scales."""
        if scales not in self._judged:
            self._judged[scales] = self._judge(scales)
        return self._judged[scales]

    def _judge(self, scales: Scales) -> float:
        factor = np.linalg.cholesky(self.covariance(scales))
        solved = np.linalg.solve(factor, self._data)
        likelihood = -0.5 * float(solved @ solved) - float(np.log(np.diag(factor)).sum())
        sizes = np.array(scales.effects)
        beliefs = [np.log(sizes / self._sizes.expected), np.log([scales.joint]), np.log([scales.own / self._sizes.own])]
        return likelihood - 0.5 * float(sum(np.square(each / _WIDTH).sum() for each in beliefs))

    def covariance(self, scales: Scales) -> Array:
        own: Array = _combine(self._alike, scales) + scales.own**2 * self._same + self._noise
        return own + 1e-9 * np.eye(len(own))


def _combine(alike: Array, scales: Scales) -> Array:
    weighted = np.square(scales.effects)[:, None, None] * alike
    one, two, three = (np.power(weighted, power).sum(axis=0) for power in (1, 2, 3))
    pairs, triples = (one**2 - two) / 2, (one**3 - 3 * one * two + 2 * three) / 6
    combined: Array = BIAS**2 + one + scales.joint**2 * pairs + scales.joint**4 * triples
    return combined


def _same(one: Array, other: Array) -> Array:
    same: Array = (np.abs(one[:, None, :] - other[None, :, :]).max(axis=2, initial=0.0) < 1e-9).astype(float)
    return same
