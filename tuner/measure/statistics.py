"""The few statistics that a verdict stands on: robust middle and spread, and the interval of a paired ratio.

Pure functions of plain numbers, exact enough to be checked against printed tables, without numpy or scipy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final

MAD_TO_SIGMA: Final = 1.482602218505602
"""1 / the normal distribution's quantile at 0.75: makes a median absolute deviation comparable to a standard deviation."""

OUTLIER_SIGMAS: Final = 8.0
"""Log ratios farther from the median than this many robust deviations are left out of an interval. A rule that bites normal
noise would make intervals too narrow: at 5 with five values, 90.6 % of the 95 % intervals held the truth."""

FEWEST_FOR_OUTLIERS: Final = 6
"""With fewer values nobody can tell which one is wild."""


def median(values: Sequence[float]) -> float:
    """The middle value. Raises ValueError for none."""
    if not values:
        raise ValueError("the median of no values")
    return statistics.median(values)


def median_or_none(values: Sequence[float | None]) -> float | None:
    """The median of the known values; None when none is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def robust_deviation(values: Sequence[float]) -> float:
    """Median absolute deviation, scaled to equal the standard deviation of normal values; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    middle = statistics.median(values)
    return MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values)


def relative_spread(values: Sequence[float]) -> float:
    """Robust deviation as a share of the median; 0 for fewer than two values."""
    middle = statistics.median(values) if values else 0.0
    return robust_deviation(values) / abs(middle) if middle else 0.0


def sample_deviation(values: Sequence[float]) -> float:
    """Standard deviation with n - 1; 0 for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def paired_ratio(default_samples: Sequence[float], best_samples: Sequence[float]) -> tuple[float, float, float]:
    """How many times faster best is than default, from times of interleaved rounds: ratio and its 95 % interval.

    The ratio of each pair default / best is taken as a logarithm; the mean and Student's t interval of the mean are turned
    back. Pairs far from the median (more than OUTLIER_SIGMAS robust deviations) are left out, but never more than a fifth of
    them. One pair tells nothing about its error: the interval is then (0, infinity). Raises ValueError for unequal or no
    samples, or for times that are not positive.
    """
    if len(default_samples) != len(best_samples) or not default_samples:
        raise ValueError("a paired ratio needs as many samples of one as of the other")
    if min(*default_samples, *best_samples) <= 0:
        raise ValueError("times are positive")
    logs = drop_outliers([math.log(a / b) for a, b in zip(default_samples, best_samples, strict=True)])
    mean, half = mean_interval(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half) if math.isfinite(half) else math.inf


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float]:
    """The mean and half the width of its interval by Student's t; an infinite width for one value."""
    count = len(values)
    if count < 2:
        return values[0], math.inf
    error = statistics.stdev(values) / math.sqrt(count)
    return statistics.fmean(values), student_quantile(0.5 + confidence / 2, count - 1) * error


def drop_outliers(values: Sequence[float], *, most_share: float = 0.2) -> list[float]:
    """The values in their order, without the farthest ones that are no part of the rest."""
    deviation = robust_deviation(values)
    if len(values) < FEWEST_FOR_OUTLIERS or deviation == 0:
        return list(values)
    middle = statistics.median(values)
    far = [index for index, value in enumerate(values) if abs(value - middle) > OUTLIER_SIGMAS * deviation]
    far.sort(key=lambda index: -abs(values[index] - middle))
    dropped = set(far[: int(most_share * len(values))])
    return [value for index, value in enumerate(values) if index not in dropped]


def student_quantile(probability: float, freedom: float) -> float:
    """The t below which `probability` of Student's distribution lies; `freedom` from 1 to infinity.

    Found by bisection of the distribution function, to about 1e-10. Raises ValueError outside 0 < probability < 1.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError("a quantile needs a probability between 0 and 1 and at least one degree of freedom")
    if math.isinf(freedom):
        return statistics.NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -student_quantile(1 - probability, freedom)
    high = 1.0
    while student_probability(high, freedom) < probability:
        high *= 2
    return _bisect(lambda t: student_probability(t, freedom) - probability, 0.0, high)


def student_probability(t: float, freedom: float) -> float:
    """The share of Student's distribution below t (Abramowitz and Stegun, 26.7.1, by the incomplete beta function)."""
    if math.isinf(freedom):
        return statistics.NormalDist().cdf(t)
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return 1 - tail if t >= 0 else tail


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised, by its continued fraction (Abramowitz and Stegun 26.5.8), on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluated forwards by the modified Lentz method."""
    tiny = 1e-300
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = result
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d, tiny)
            c = _away_from_zero(1 + term / c, tiny)
            result *= c * d
        if abs(result - before) <= 1e-15 * abs(result):
            break
    return result


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
