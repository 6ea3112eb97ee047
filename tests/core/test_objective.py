"""Goals, limits and what a measurement is worth under them."""

from __future__ import annotations

import pytest

from tests.builders.measurements import measured
from tuner.errors import BadInputError, UsageError
from tuner.objective import needed_phases, parse_goals, parse_limit, score_measurement, speed_ratio


@pytest.mark.parametrize(
    ("text", "metric", "value"),
    [
        ("tpot<=50ms", "tpot", 50.0),
        ("ttft <= 2s", "ttft", 2000.0),
        ("memory<=8GiB", "memory", 8 * 2**30),
        ("ctx_size>=8192", "ctx_size", 8192.0),
        ("ctx_size>=8k", "ctx_size", 8192.0),
        ("throughput>=20 tok/s", "throughput", 20.0),
    ],
)
def test_limits_are_read_in_their_own_unit(text: str, metric: str, value: float) -> None:
    """A bare number of a time is milliseconds."""
    limit = parse_limit(text)
    assert (limit.metric, limit.value) == (metric, value)


@pytest.mark.parametrize(
    "text", ["", "tpot", "tpot<50ms", "tpot=50", "speed<=5", "tpot>=50ms", "throughput<=5", "ctx_size<=8192"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    """A limit that points the wrong way too."""
    with pytest.raises(UsageError):
        parse_limit(text)


@pytest.mark.parametrize("text", ["tpot<=fast", "memory<=much", "ctx_size>=1.5", "throughput>=x", "ttft<=0ms"])
def test_an_amount_that_is_none_is_refused(text: str) -> None:
    """With the unit that it should have."""
    with pytest.raises(BadInputError):
        parse_limit(text)


@pytest.mark.parametrize("text", ["", "speed", "ttft,", "ttft,ttft", "ttft tpot"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    """The known ones are listed."""
    with pytest.raises(UsageError, match="throughput"):
        parse_goals(text)


def test_a_limit_that_is_missed_makes_a_point_infeasible() -> None:
    """By how much is told as a share of the limit."""
    limits = (parse_limit("tpot<=10ms"), parse_limit("memory<=1GiB"))
    score = score_measurement(measured(ttft_ms=100.0, tpot_ms=15.0), ("ttft",), limits)
    assert score is not None
    assert not score.is_feasible
    assert score.violations[0] == pytest.approx(0.5)
    assert score.violations[1] < 0


def test_a_figure_that_was_not_measured_gives_no_score() -> None:
    """A short run without prefill says nothing of TTFT."""
    assert score_measurement(measured(ttft_ms=None, tpot_ms=15.0), ("ttft",), ()) is None


@pytest.mark.parametrize(
    ("goals", "limits", "phases"),
    [
        (("ttft",), [], (True, False)),
        (("tpot",), [], (False, True)),
        (("latency",), [], (True, True)),
        (("ttft",), ["tpot<=50ms"], (True, True)),
        (("throughput",), [], (False, True)),
        (("context",), [], (False, True)),
    ],
)
def test_only_the_phases_that_count_are_measured(goals: tuple, limits: list[str], phases: tuple[bool, bool]) -> None:
    """A goal of one phase is not paid for with the other."""
    assert needed_phases(goals, tuple(map(parse_limit, limits))) == phases


def test_a_gain_is_above_one_whatever_the_direction() -> None:
    """Less time or more throughput."""
    assert speed_ratio("ttft", better=50.0, worse=100.0) == 2.0
    assert speed_ratio("throughput", better=100.0, worse=50.0) == 2.0
