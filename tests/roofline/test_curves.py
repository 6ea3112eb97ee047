"""Curves over history, slots and prompt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.ceilings import make_ceilings
from tests.roofline import models
from tuner.roofline.curves import find_batch_knee, longest_prompt_within, predict_depths, predict_slots
from tuner.roofline.prediction import predict
from tuner.runconfig import RunConfig
from tuner.workload import Workload

ONE = RunConfig(ctx_size=8192, threads=1, threads_batch=1)
TURN = Workload(name="turn", prompt_tokens=512, output_tokens=2)


def test_the_history_is_followed_up_to_the_trained_context() -> None:
    points = predict_depths(models.model(), ONE, make_ceilings())
    assert [each.depth_tokens for each in points] == [0, 1024, 2048, 4096, 8192]
    assert [each.tpot.value for each in points] == sorted(each.tpot.value for each in points)
    assert points[0].history_share < points[-1].history_share < 1


def test_a_point_of_the_curve_is_the_prediction_at_that_history() -> None:
    (point,) = predict_depths(models.model(), ONE, make_ceilings(), depths=(512,))
    assert point.tpot == predict(models.model(), ONE, TURN, make_ceilings()).tpot


def test_more_slots_bring_more_together_and_cost_each_user() -> None:
    points = predict_slots(models.model(), ONE, TURN, make_ceilings())
    assert [each.slots for each in points] == [1, 2, 4, 8, 16, 32, 64]
    assert [each.tpot.value for each in points] == sorted(each.tpot.value for each in points)
    assert all(each.throughput.value == pytest.approx(each.slots * 1e3 / each.tpot.value) for each in points)


def test_the_knee_is_where_the_weights_meet_the_ridge() -> None:
    """Ridge 10; n tokens do 2 × 32 / 34 × n operations a byte of Q8_0: 9.4 at 5, 11.3 at 6. Half a byte meets it at half."""
    assert find_batch_knee(models.model(), ONE, make_ceilings()) == 6
    small = models.model(models.layer(matrices=(("Q4_0", 10**6),)), output_bytes=1)
    assert find_batch_knee(small, ONE, make_ceilings()) == 3


def test_there_is_no_knee_where_computing_never_binds() -> None:
    assert find_batch_knee(models.model(), ONE, make_ceilings(), most=5) is None


@settings(deadline=None)
@given(st.floats(1, 2000))
def test_the_longest_prompt_keeps_the_promise_and_one_more_token_breaks_it(promise: float) -> None:
    found = longest_prompt_within(models.model(), ONE, TURN, make_ceilings(), ttft_ms=promise)

    def ttft(tokens: int) -> float:
        return predict(
            models.model(), ONE, Workload(name="", prompt_tokens=tokens, output_tokens=2), make_ceilings()
        ).ttft.value

    room = 8192 - 2
    assert 0 <= found <= room
    assert found == 0 or ttft(found) <= promise
    assert found == room or ttft(found + 1) > promise


def test_no_prompt_is_short_enough_for_an_impossible_promise() -> None:
    assert longest_prompt_within(models.model(), ONE, TURN, make_ceilings(), ttft_ms=0.5) == 0
