"""Statistics against printed tables, against known data, and against their own promise of 95 %."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.statistics import (
    drop_outliers,
    mean_interval,
    median,
    median_or_none,
    paired_ratio,
    relative_spread,
    robust_deviation,
    sample_deviation,
    student_probability,
    student_quantile,
)

TWO_SIDED_95 = {
    1: 12.7062047364,
    2: 4.3026527297,
    3: 3.1824463053,
    4: 2.7764451052,
    5: 2.5705818366,
    6: 2.4469118511,
    9: 2.2621571628,
    10: 2.2281388520,
    20: 2.0859634473,
    30: 2.0422724563,
    60: 2.0002978220,
    120: 1.9799304051,
    1000: 1.9623390808,
    math.inf: 1.9599639845,
}


@pytest.mark.parametrize(("freedom", "expected"), TWO_SIDED_95.items())
def test_the_quantile_is_the_printed_one(freedom: float, expected: float) -> None:
    """Two-sided 95 %, from tables, to nine digits."""
    assert student_quantile(0.975, freedom) == pytest.approx(expected, rel=1e-9)
    assert student_quantile(0.025, freedom) == pytest.approx(-expected, rel=1e-9)


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.95, 1, 6.3137515147), (0.95, 5, 2.0150483733), (0.99, 3, 4.5407028587), (0.995, 10, 3.1692726726)],
)
def test_other_probabilities(probability: float, freedom: float, expected: float) -> None:
    """From tables as well."""
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)


@given(st.floats(0.001, 0.999), st.integers(1, 500))
def test_quantile_and_probability_undo_each_other(probability: float, freedom: int) -> None:
    """For all degrees of freedom."""
    assert student_probability(student_quantile(probability, freedom), freedom) == pytest.approx(probability, abs=1e-9)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 5), (1.0, 5), (0.5, 0)])
def test_a_quantile_that_does_not_exist(probability: float, freedom: float) -> None:
    """Is refused."""
    with pytest.raises(ValueError, match="quantile"):
        student_quantile(probability, freedom)


def test_middle_and_spread() -> None:
    """One wild value moves neither."""
    values = [10.0, 11.0, 9.0, 10.5, 500.0]
    assert median(values) == 10.5
    assert robust_deviation(values) == pytest.approx(1.4826 * 0.5, rel=1e-4)
    assert relative_spread(values) == pytest.approx(1.4826 * 0.5 / 10.5, rel=1e-4)
    assert sample_deviation([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == pytest.approx(2.13809, rel=1e-5)


def test_too_few_values() -> None:
    """No value has no median; one value has no spread."""
    with pytest.raises(ValueError, match="no values"):
        median([])
    assert (median_or_none([None, None]), median_or_none([None, 3.0])) == (None, 3.0)
    assert (robust_deviation([3.0]), relative_spread([]), sample_deviation([3.0])) == (0.0, 0.0, 0.0)


def test_the_interval_of_a_mean() -> None:
    """Mean 2.5, deviation 1.29099, four values: half width 3.18245 × 1.29099 / 2."""
    mean, half = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert (mean, half) == (2.5, pytest.approx(2.054260, rel=1e-6))


def test_a_paired_ratio_by_hand() -> None:
    """Twice as fast in every round, whatever the machine's mood in that round."""
    ratio, low, high = paired_ratio([10.0, 14.0, 30.0], [5.0, 7.0, 15.0])
    assert (ratio, low, high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def test_a_difference_inside_the_noise_includes_one() -> None:
    """28.83 against 28.79 tok/s with 3 % spread is no difference."""
    default = [1000 / (28.79 * noise) for noise in (1.03, 0.98, 1.00, 0.97, 1.02)]
    best = [1000 / (28.83 * noise) for noise in (0.98, 1.01, 1.03, 1.00, 0.97)]
    _, low, high = paired_ratio(default, best)
    assert low < 1 < high


def test_one_pair_proves_nothing() -> None:
    """However large the gain looks."""
    assert paired_ratio([20.0], [10.0]) == (pytest.approx(2.0), 0.0, math.inf)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0, 2.0], [1.0, -1.0])])
def test_samples_that_form_no_pairs(a: list[float], b: list[float]) -> None:
    """Are refused."""
    with pytest.raises(ValueError, match=r"samples|positive"):
        paired_ratio(a, b)


def test_swapping_the_two_turns_the_ratio_over() -> None:
    """The interval as well."""
    a, b = [10.0, 11.0, 12.0, 10.5], [9.0, 10.5, 10.0, 9.9]
    ratio, low, high = paired_ratio(a, b)
    assert paired_ratio(b, a) == (pytest.approx(1 / ratio), pytest.approx(1 / high), pytest.approx(1 / low))


def test_one_wild_pair_of_many_is_left_out() -> None:
    """A neighbour's burst in one round of ten does not hide a steady gain of 10 %."""
    default = [11.0, 11.1, 10.9, 11.05, 10.95, 11.02, 10.98, 11.0, 11.03, 90.0]
    ratio, low, high = paired_ratio(default, [10.0] * 10)
    assert ratio == pytest.approx(1.1, rel=0.01)
    assert 1.09 < low < high < 1.11


def test_few_values_keep_all() -> None:
    """With few values nobody can tell which one is wild."""
    assert drop_outliers([1.0, 1.01, 0.99, 50.0]) == [1.0, 1.01, 0.99, 50.0]


def covers(count: int, *, rounds: int, seed: int) -> float:
    """How often the interval of a true ratio of 1 contains 1, for normal noise of 3 %."""
    draw = random.Random(seed)
    hits = 0
    for _ in range(rounds):
        a = [math.exp(draw.gauss(0, 0.03)) for _ in range(count)]
        b = [math.exp(draw.gauss(0, 0.03)) for _ in range(count)]
        _, low, high = paired_ratio(a, b)
        hits += low <= 1 <= high
    return hits / rounds


@pytest.mark.parametrize("count", [3, 5, 8, 10, 15, 30])
def test_the_interval_keeps_its_promise(count: int) -> None:
    """95 % of the intervals hold the truth, outlier rule included (four standard errors of the count allowed below)."""
    rounds = 800
    floor = 0.95 - 4 * statistics.NormalDist().stdev * math.sqrt(0.95 * 0.05 / rounds)
    assert covers(count, rounds=rounds, seed=count) > floor
