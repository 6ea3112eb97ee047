"""The figures that findings quote, measured where there is a measurement, and when a person calls them slow."""

from __future__ import annotations

from typing import Final, Literal

from tuner.roofline.record import Basis
from tuner.rules.base import Evidence, Situation
from tuner.rules.expectation import predict_point

Metric = Literal["ttft", "tpot"]

PATIENCE_MS: Final = 10_000.0
"""Time to first token after which most people turn to something else (Nielsen, Usability Engineering, 1993, chapter 5), ms."""

READING_MS: Final = 150.0
"""Time per token that a quick reader keeps up with: 300 words a minute at 4/3 tokens a word, ms."""

_UNIT: Final = "ms"
_NAMES: Final[dict[Metric, str]] = {"ttft": "time to first token", "tpot": "time per further token"}


def find_figure(situation: Situation, metric: Metric) -> tuple[float, Basis] | None:
    """TTFT or TPOT of the point in question, ms, measured before predicted; None where nobody can say."""
    measurement = situation.measurement
    measured = None if measurement is None else (measurement.ttft_ms if metric == "ttft" else measurement.tpot_ms)
    if measured is not None:
        return measured, "measured"
    prediction = predict_point(situation, situation.config)
    estimate = None if prediction is None else prediction.estimate(metric)
    return None if estimate is None else (estimate.value, estimate.basis)


def tell_figure(situation: Situation, metric: Metric) -> tuple[Evidence, ...]:
    """The figure as evidence; () where nobody can say."""
    found = find_figure(situation, metric)
    if found is None:
        return ()
    value, basis = found
    return (Evidence(what=_NAMES[metric], value=value, unit=_UNIT, basis=basis),)


def feels_slow_start(situation: Situation) -> bool:
    """The first token is complained of, comes later than promised, or later than people wait."""
    if situation.symptom == "slow-start":
        return True
    found = find_figure(situation, "ttft")
    return found is not None and found[0] > (situation.promise_ttft_ms or PATIENCE_MS)


def feels_slow_output(situation: Situation) -> bool:
    """The output is complained of, or slower than people read."""
    if situation.symptom == "slow-output":
        return True
    found = find_figure(situation, "tpot")
    return found is not None and found[0] > READING_MS
