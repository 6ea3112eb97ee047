"""The sampler by itself, under Optuna's own ask and tell."""

from __future__ import annotations

import optuna
import pytest

from tests.study.fakes import FakeSpace, cost_of, make_predict
from tuner.study.roofline_sampler import RooflineSampler, is_maximised

DOMAINS = {"threads": (1, 2, 3, 4, 6, 8, 12), "flash_attn": ("on", "off"), "cache_type_k": ("f16", "q8_0", "q4_0")}


def tpot(config):
    return cost_of(config)[1]


def ask(count, *, predict=None, seed=0, fail=None, space=None):
    """The points proposed by a fresh sampler, in order."""
    sampler = RooflineSampler(space or FakeSpace(DOMAINS), goal="tpot", predict=predict, seed=seed)
    study = optuna.create_study(sampler=sampler)
    proposed = []
    for _ in range(count):
        trial = study.ask(sampler.distributions)
        config = sampler.find_config(trial.params)
        proposed.append(config)
        if fail and fail(config):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, tpot(config))
    return proposed


def test_the_default_comes_first_and_the_best_predicted_next():
    space = FakeSpace(DOMAINS)
    first, second = ask(2, predict=make_predict(cost_of))
    assert first == space.effective(space.baseline)
    assert tpot(second) == min(tpot(config) for config in space.every())


def test_it_finds_the_best_of_42_points_without_predictions_in_a_third():
    best = min(tpot(config) for config in FakeSpace(DOMAINS).every())
    assert min(map(tpot, ask(14))) <= 1.03 * best


def test_wrong_predictions_are_found_out():
    """Told that slow is fast, it comes near the best all the same before half of the points are run."""

    def turned(config):
        ttft, step = cost_of(config)
        return ttft, 1000 / step

    best = min(tpot(config) for config in FakeSpace(DOMAINS).every())
    assert min(map(tpot, ask(21, predict=make_predict(turned)))) <= 1.03 * best


def test_a_point_is_proposed_once_while_there_are_others():
    assert len(set(ask(42))) == 42


def test_a_failed_point_is_not_proposed_again():
    proposed = ask(30, fail=lambda config: config.threads == 6)
    assert len(proposed) == len(set(proposed))


def test_equal_seeds_give_equal_proposals():
    large = FakeSpace({**DOMAINS, "ubatch_size": tuple(range(32, 832, 8)), "threads_batch": tuple(range(1, 13))})
    one, two, other = (ask(6, seed=seed, space=large) for seed in (1, 1, 2))
    assert one == two
    assert one != other


def test_refused_points_are_not_proposed():
    space = FakeSpace(DOMAINS, refuse=lambda config: "no" if config.cache_type_k == "q4_0" else None)
    assert all(config.cache_type_k != "q4_0" for config in ask(28, space=space))


def test_settings_that_are_no_part_of_the_space_are_drawn():
    sampler = RooflineSampler(FakeSpace(DOMAINS), goal="tpot")
    trial = optuna.create_study(sampler=sampler).ask(sampler.distributions)
    assert 0.0 <= trial.suggest_float("temperature", 0.0, 1.0) <= 1.0


@pytest.mark.parametrize(("goal", "expected"), [("tpot", False), ("latency", False), ("throughput", True)])
def test_the_direction_of_a_study_follows_the_goal(goal, expected):
    assert is_maximised(goal) is expected
