"""Which candidate is run next, and when none is worth it."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.study.acquisition import choose_next
from tuner.study.belief import Opinion
from tuner.study.surrogate import Outlook


def outlook_of(means, sds):
    return Outlook(opinions=(opinion_of(1.0, means, sds),), feasible=np.ones(len(means)))


def opinion_of(weight, means, sds):
    return Opinion(weight=weight, mean=np.array(means, dtype=float), sd=np.array(sds, dtype=float))


def choose(outlook, seen):
    rows = range(len(outlook.feasible))
    return choose_next(outlook, set(seen), [row for row in rows if row not in seen], [0] * len(rows))


def test_after_the_first_point_comes_the_best_by_expectation():
    assert choose(outlook_of([0.0, 0.1, -0.1, -0.05], [0.01, 0.5, 0.1, 0.5]), [0]) == 2


def test_later_the_one_from_which_most_improvement_is_to_be_expected():
    assert choose(outlook_of([0.0, 0.1, -0.02, 0.05], [0.01, 0.01, 0.01, 0.5]), [0, 1]) == 3


@pytest.mark.parametrize(("deviations", "is_over"), [(1.5, False), (2.0, False), (2.8, True)])
def test_it_ends_where_the_last_candidate_is_that_many_deviations_behind(deviations, is_over):
    outlook = outlook_of([0.0, 0.3, 0.1 * deviations], [0.001, 0.001, 0.1])
    assert (choose(outlook, [0, 1]) is None) == is_over


@pytest.mark.parametrize(("count", "is_over"), [(1, True), (50, False)])
def test_many_candidates_of_little_hope_are_worth_as_much_as_one_of_much(count, is_over):
    outlook = outlook_of([0.0, 0.3] + [0.26] * count, [0.001, 0.001] + [0.1] * count)
    assert (choose(outlook, [0, 1]) is None) == is_over


def test_wider_deviations_keep_a_search_going_that_would_end():
    outlook = outlook_of([0.0, 0.3, 0.32], [0.001, 0.001, 0.1])
    assert choose(outlook, [0, 1]) is None
    assert choose(outlook.widen(2.0), [0, 1]) == 2


def test_a_gain_that_nobody_would_notice_is_not_looked_for():
    assert choose(outlook_of([0.0, 0.3, -0.005], [0.001, 0.001, 0.001]), [0, 1]) is None


@pytest.mark.parametrize(("weight", "is_over"), [(0.1, False), (0.002, True)])
def test_an_unlikely_opinion_keeps_a_search_going_for_what_it_hopes(weight, is_over):
    """Nine in ten that all others are far worse; one in ten that nothing is known of them."""
    sure, unsure = (
        opinion_of(1 - weight, [0.0, 1.0, 1.0], [0.01, 0.1, 0.1]),
        opinion_of(weight, [0.0, 0.1, 0.1], [0.01, 0.5, 0.5]),
    )
    outlook = Outlook(opinions=(sure, unsure), feasible=np.ones(3))
    assert outlook.mean[1] - 2.5 * outlook.sd[1] > 0.0
    assert (choose_next(outlook, {0}, [1, 2], [0, 1, 1]) is None) == is_over
