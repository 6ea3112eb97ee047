"""DEC02: the machine is slower now than it has shown it can be."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.roofline.record import Prediction
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import predict_point
from tuner.units import format_ratio

_FAR: Final = 1.5
"""Beyond the error of predictions (30 % at worst), and enough to be felt."""


class BelowCeiling(Rule):
    """rooftune has measured what this machine can do at best, and from that predicts what your model should do. This rule
    compares the prediction with what was really measured. When it took half as long again as predicted, and longer than the
    prediction allows for, then something takes speed away that is neither model nor settings.

    The usual causes: other programs use the cores or the memory at the same time, the processor is slowed down by heat or by a
    power-saving mode, a laptop runs on battery, or memory is short and the system swaps. Close what you can, look at the
    findings about the machine, and measure again. If it stays, run `rooftune calibrate` again: the machine may have changed.

    When this is wrong: predictions err, most of all for kinds of models that the calibration never saw; a calibration taken in
    a better hour than usual makes every hour after it look bad. Without a measurement the rule has nothing to compare.
    """

    code: ClassVar[str] = "DEC02"
    title: ClassVar[str] = "Slower than this machine can be"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output", "slow-start", "machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        measurement, prediction = situation.measurement, predict_point(situation, situation.config)
        if measurement is None or prediction is None or prediction.source != "calibrated":
            return ()
        measured = {"ttft": measurement.ttft_ms, "tpot": measurement.tpot_ms}
        slow = {name: value for name, value in measured.items() if value and _is_far(name, value, prediction)}
        if not slow:
            return ()
        evidence: tuple[Evidence, ...] = ()
        for name, value in slow.items():
            expected = prediction.estimate(name)
            assert expected is not None
            evidence += (
                Evidence(what=_NAMES[name], value=value, unit="ms", basis="measured"),
                Evidence(what=f"{_NAMES[name]} expected", value=expected.value, unit="ms", basis=expected.basis),
            )
        worst = max(value / _value(prediction, name) for name, value in slow.items())
        finding = Finding(
            code=self.code,
            title="The machine delivers much less speed now than when it was calibrated.",
            severity="slows",
            evidence=evidence,
            remedy=f"It takes {format_ratio(worst)} as long as it should: close other programs, check power and heat, and "
            "measure again; if it stays, run `rooftune calibrate`.",
        )
        return (finding,)


_NAMES: Final = {"ttft": "time to first token", "tpot": "time per further token"}


def _value(prediction: Prediction, name: str) -> float:
    estimate = prediction.estimate(name)
    return estimate.value if estimate else float("inf")


def _is_far(name: str, value: float, prediction: Prediction) -> bool:
    estimate = prediction.estimate(name)
    return estimate is not None and value > max(estimate.high, _FAR * estimate.value)
