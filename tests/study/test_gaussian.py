"""The process learns what few points say about many, and how surely; beliefs weigh predictions by what they explain."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tuner.study.belief import form_belief
from tuner.study.gaussian import fit_process

ORDERED = np.array([True, False, True])
ALL = np.array([True, True, True])
GRID = np.array(list(itertools.product(np.linspace(0, 1, 5), (0.0, 1.0, 2.0), np.linspace(0, 1, 4))))
TRUTH = 0.8 * (GRID[:, 0] - 0.4) ** 2 + np.array([0.0, 0.3, -0.1])[GRID[:, 1].astype(int)] + 0.2 * GRID[:, 2]


def choose(count, seed=0):
    return np.random.default_rng(seed).permutation(len(GRID))[:count]


def fit(rows, data):
    return fit_process(GRID[rows], data, np.full(len(rows), 0.01), ORDERED, expected=0.3)


def test_a_sum_of_effects_is_learnt_from_a_third_of_the_points():
    rows = choose(20)
    mean, _ = fit(rows, TRUTH[rows]).predict(GRID)
    assert np.abs(mean - TRUTH).max() < 0.1


def test_two_settings_that_act_on_each_other_are_learnt():
    truth = TRUTH + 0.5 * (GRID[:, 1] == 2) * (GRID[:, 2] > 0.5)
    rows = choose(40)
    mean, _ = fit(rows, truth[rows]).predict(GRID)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.06


def test_it_is_surer_where_it_has_seen_more():
    rows = choose(12)
    _, sd = fit(rows, TRUTH[rows]).predict(GRID)
    others = np.setdiff1d(np.arange(len(GRID)), rows)
    assert sd[rows].max() < np.median(sd[others])


def test_the_truth_lies_within_three_deviations_nearly_everywhere():
    for seed in range(5):
        rows = choose(20, seed)
        mean, sd = fit(rows, TRUTH[rows]).predict(GRID)
        assert np.mean(np.abs(mean - TRUTH) <= 3 * sd) >= 0.9


def test_what_two_settings_did_together_may_be_due_to_either():
    """Two changed settings made it slower by a factor of three: with one of them alone, both slow and fast are possible."""
    codes = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    process = fit_process(codes, np.log([1.0, 3.0, 1.0, 3.0]), np.full(4, 0.01), ~ALL, expected=0.1)
    mean, sd = process.predict(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    assert np.all(mean - 2 * sd < 0.0)
    assert np.all(mean + 2 * sd > np.log(3.0))


def test_settings_that_are_not_relevant_change_nothing():
    """Points that differ in such settings only are one point: what is known of one is known of all."""
    mean, sd = believe(choose(20), None, relevant=np.array([True, True, False])).expect(GRID, np.zeros(len(GRID)))
    for table in (mean, sd):
        assert np.ptp(table.reshape(5, 3, 4), axis=2).max() < 1e-9


def test_equal_data_give_equal_answers():
    rows = choose(15)
    one, two = (fit(rows, TRUTH[rows]).predict(GRID)[0] for _ in range(2))
    assert np.array_equal(one, two)


def believe(rows, predicted, relevant=ALL):
    noise = np.full(len(rows), 0.01)
    given = None if predicted is None else predicted[rows]
    return form_belief(GRID[rows], TRUTH[rows] + 4.0, noise, given, ordered=ORDERED, relevant=relevant)


def test_one_measurement_keeps_the_order_of_the_predictions():
    belief = believe(np.array([0]), TRUTH * 1.0)
    mean, _ = belief.expect(GRID, TRUTH)
    assert np.argmin(mean) == np.argmin(TRUTH)


@pytest.mark.parametrize(("error", "least", "most"), [(0.02, 0.7, 1.0), (None, 0.0, 0.35)])
def test_trust_follows_the_evidence(error, least, most):
    """Predictions that are a little off are believed after eight points; predictions dealt to the wrong points are not."""
    rng = np.random.default_rng(1)
    predicted = rng.permutation(TRUTH) if error is None else TRUTH + rng.normal(0, error, len(TRUTH))
    assert least <= believe(choose(8), predicted).trust <= most


def test_without_predictions_nothing_is_trusted():
    assert believe(choose(8), None).trust == 0.0
