"""A gain is claimed only where there is one."""

from __future__ import annotations

import pytest

from tests.study.fakes import FakeMeasurer, FakeSpace, make_request, run

ALIKE = {"load_mode": ("none", "mmap", "mlock"), "numa": ("off", "distribute")}


def same_cost(config):
    return 200.0, 20.0


def run_alike(seed, noise):
    request = make_request(FakeSpace(ALIKE), "memory://", seed=seed)
    return run(request, FakeMeasurer(noise=noise, seed=seed, cost=same_cost))


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_points_that_are_all_alike_give_no_gain(noise):
    """Forty tunes without any difference to find: at most four may claim one (2 in the mean)."""
    results = [run_alike(seed, noise) for seed in range(40)]
    wins = [result for result in results if result.gain.significant]
    assert len(wins) <= 4
    for result in results:
        assert (result.best.config != result.baseline.config) == result.gain.significant


def test_a_difference_inside_the_noise_keeps_the_default():
    """28.83 against 28.79 tok/s with a spread of 3 %."""

    def cost(config):
        return 200.0, 1000 / (28.83 if config.load_mode == "mmap" else 28.79)

    space = FakeSpace({"load_mode": ("none", "mmap")})
    space.baseline = space.baseline.replace(load_mode="none")
    result = run(make_request(space, "memory://", seed=3), FakeMeasurer(noise=0.03, seed=3, cost=cost))
    assert not result.gain.significant
    assert result.best.config == result.baseline.config
    assert len(result.baseline.outcome.measurement.samples) >= 3


def test_a_real_gain_is_told_with_an_interval_that_holds_it():
    """1.25 times faster: 20 studies, of which the interval may miss the truth in two."""

    def cost(config):
        return 200.0, 20.0 if config.threads == 4 else 16.0

    missed = 0
    for seed in range(20):
        result = run(
            make_request(FakeSpace({"threads": (4, 6)}), "memory://", seed=seed), FakeMeasurer(noise=0.02, seed=seed, cost=cost)
        )
        assert result.gain.significant
        assert result.gain.low <= result.gain.ratio <= result.gain.high
        missed += not result.gain.low <= 1.25 <= result.gain.high
    assert missed <= 4


def test_rounds_are_interleaved_on_fresh_contexts_and_their_order_rotates():
    measurer = FakeMeasurer(noise=0.005)
    result = run(make_request(FakeSpace({"threads": (2, 4, 6)}), "memory://"), measurer)
    runs = [(config.threads, plan) for config, plan in measurer.runs if plan.fresh]
    assert all(plan.samples == 1 and plan.decode_tokens == 64 for _, plan in runs)
    order = [threads for threads, _ in runs][-2 * result.gain.rounds :]
    assert sorted(order[:2]) == sorted(order[2:4]) == [4, 6]
    assert order[:2] == order[3:1:-1]
    assert result.gain.rounds >= 5


def test_winner_that_fails_on_a_fresh_context_does_not_win():
    from tests.study.fakes import failing

    def respond(config, plan):
        return failing("out_of_memory") if plan.fresh and config.threads == 6 else None

    result = run(make_request(FakeSpace({"threads": (2, 4, 6)}), "memory://"), FakeMeasurer(respond=respond))
    assert result.best.config.threads == 4
