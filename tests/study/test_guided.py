"""Predictions shorten the search, and wrong ones do little harm."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest

from tests.study.fakes import FakeMeasurer, FakeSpace, cost_of, failing, make_predict, make_request, run
from tests.study.test_loop import WIDE, value_of

NARROW = {name: WIDE[name] for name in ("threads", "threads_batch", "flash_attn", "ubatch_size")}


def count_until_close(*, seed, share=1.03, **changes):
    """Points run until one lies within 3 % of the best, and the result."""
    space = FakeSpace(NARROW)
    target = share * min(value_of(config) for config in space.every())
    request = make_request(space, "memory://", goals="latency", seed=seed, **changes)
    result = run(request, FakeMeasurer(noise=0.01, seed=seed))
    tried = [trial for trial in result.trials if trial.state == "complete"]
    found = (number for number, trial in enumerate(tried, 1) if value_of(trial.config) <= target)
    return next(found, len(space.every())), result


def shuffle(seed):
    """A predictor whose figures belong to other points."""
    configs = sorted(FakeSpace(NARROW).every(), key=str)
    costs = [cost_of(config) for config in configs]
    random.Random(seed).shuffle(costs)
    return make_predict(dict(zip(configs, costs, strict=True)).get)


def blur(config):
    """Predictions that err by a fifth, up and down."""
    rng = random.Random(str(config))
    return tuple(figure * rng.uniform(0.85, 1.2) for figure in cost_of(config))


def test_the_default_is_first_and_the_best_predicted_is_next():
    measurer = FakeMeasurer(noise=0.005)
    run(make_request(FakeSpace(NARROW), "memory://", goals="latency", predict=make_predict(cost_of)), measurer)
    order = list(dict.fromkeys(config for config, _ in measurer.runs))
    assert order[0] == FakeSpace(NARROW).baseline
    assert value_of(order[1]) == min(value_of(config) for config in FakeSpace(NARROW).every())


def test_good_predictions_find_a_close_point_within_four_runs():
    counts = [count_until_close(seed=seed, predict=make_predict(blur))[0] for seed in range(3)]
    assert statistics.median(counts) <= 4


def test_shuffled_predictions_are_not_worse_than_chance_by_more_than_a_fifth():
    space = FakeSpace(NARROW)
    grid = [value_of(config) for config in space.every()]
    by_chance = (len(grid) + 1) / (1 + sum(value <= 1.03 * min(grid) for value in grid))
    counts = [count_until_close(seed=seed, predict=shuffle(seed))[0] for seed in range(4)]
    assert statistics.mean(counts) <= 1.2 * by_chance


def test_the_search_ends_where_nothing_can_be_expected_to_be_better():
    """The optimistic bounds of the others cannot win, so most of the space is never run."""
    _, result = count_until_close(seed=0, predict=make_predict(cost_of))
    assert result.stop_reason == "nothing better found"
    assert len(result.trials) < len(FakeSpace(NARROW).every()) / 10


def turn(config):
    """Without flash attention a small micro-batch is best by far, and a large one as bad as predicted."""
    ttft, step = cost_of(config)
    return (ttft * (config.ubatch_size / 1024) ** 0.5, step * 0.8) if config.flash_attn == "off" else (ttft, step)


@pytest.mark.parametrize("predict", [make_predict(cost_of), None])
def test_a_combination_that_predictions_deny_is_found_before_the_search_ends(predict):
    found = 0
    for seed in range(4):
        request = make_request(FakeSpace(NARROW), "memory://", goals="ttft", seed=seed, predict=predict)
        best = run(request, FakeMeasurer(noise=0.01, seed=seed, cost=turn)).best.config
        found += (best.flash_attn, best.ubatch_size) == ("off", 64)
    assert found >= 3


def test_points_without_a_prediction_can_win():
    """The predictor knows nothing of the best thread count."""
    known = make_predict(lambda config: None if config.threads == 6 else cost_of(config))
    _, result = count_until_close(seed=0, predict=known)
    assert result.best.config.threads == 6


def test_a_predictor_that_knows_nothing_is_no_predictor():
    with_none = count_until_close(seed=0, predict=lambda _: None)[1]
    without = count_until_close(seed=0)[1]
    assert [trial.config for trial in with_none.trials] == [trial.config for trial in without.trials]


def test_what_failed_is_not_run_again():
    """The best predicted point crashes: it is left alone, and the next best is found."""
    measurer = FakeMeasurer(noise=0.005, respond=lambda config, _: failing("crash") if config.threads == 6 else None)
    space = FakeSpace({"threads": WIDE["threads"], "flash_attn": ("on", "off")})
    result = run(make_request(space, "memory://", predict=make_predict(cost_of)), measurer)
    crashed = [config for config, _ in measurer.runs if config.threads == 6]
    assert len(crashed) == len(set(crashed))
    assert result.best.config.threads in {4, 8}


@pytest.mark.parametrize("goals", ["ttft", "tpot", "throughput", "latency", "ttft,tpot"])
def test_predictions_serve_every_goal(goals):
    request = make_request(FakeSpace(NARROW), "memory://", goals=goals, predict=make_predict(cost_of))
    assert run(request, FakeMeasurer(noise=0.005)).gain.significant


def test_a_limit_is_kept_with_predictions_too():
    """The fastest prompt within a promise on each token."""
    request = make_request(FakeSpace(NARROW), "memory://", goals="ttft", limits=("tpot<=21ms",), predict=make_predict(cost_of))
    result = run(request, FakeMeasurer(noise=0.002))
    assert result.best.score is not None
    assert result.best.score.is_feasible


def test_predictions_are_no_part_of_what_makes_a_study_the_same():
    from tuner.study.request import describe_identity

    one, two = (make_request(FakeSpace(NARROW), "memory://", predict=each) for each in (None, make_predict(cost_of)))
    assert describe_identity(one) == describe_identity(two)


class WildOnce(FakeMeasurer):
    """The very first sample of one configuration is a seventh too slow."""

    def __init__(self, victim, **given):
        super().__init__(**given)
        self.victim, self.left = victim, 1

    def _sample(self, config, workload, plan):
        sample = super()._sample(config, workload, plan)
        if config != self.victim or not self.left:
            return sample
        self.left -= 1
        return msgspec.structs.replace(sample, ttft_ms=sample.ttft_ms * 1.14, tpot_ms=sample.tpot_ms * 1.14)


def test_the_best_predicted_point_is_not_given_up_for_one_wild_sample():
    victim = min(FakeSpace(NARROW).every(), key=value_of)
    measurer = WildOnce(victim, noise=0.003)
    result = run(make_request(FakeSpace(NARROW), "memory://", goals="latency", predict=make_predict(cost_of)), measurer)
    assert measurer.left == 0
    found = next(trial for trial in result.trials if trial.config == victim)
    assert found.score is not None
    assert found.score.values[0] == pytest.approx(value_of(victim), rel=0.02)
    assert value_of(result.best.config) <= 1.01 * value_of(victim)
