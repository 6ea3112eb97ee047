"""DEC03: the same model in a smaller format would write faster."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.model import ModelSpec
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import compare_predictions, find_best_change, predict_point
from tuner.rules.figures import feels_slow_output, tell_figure
from tuner.rules.formats import bits_of, label_file, recast_model
from tuner.units import format_bytes, format_ratio

_WORTH_IT: Final = 1.15
"""A gain that is paid for with precision must be larger than one that is free."""
_LEAST_BITS: Final = 4.0
"""Below four bits per weight the loss is noticed by most people; nothing smaller is proposed unasked."""
_SMALLER: Final = 0.95
_WORTH_NAMING: Final = 5.5
"""Bits per weight above which a smaller format that is not at hand is worth naming."""
_OFFERED: Final = ("Q8_0", "Q4_K", "Q4_0")


class SmallerFormat(Rule):
    """Writing a token means fetching all weights (the numbers the model has learnt), so a file of half the bytes writes up to
    twice as fast. The number format decides how many bytes: F16 takes 16 bits per weight, Q8_0 8.5, Q6_K 6.6, Q4_K about 4.8.
    The price is precision. From 16 to 8 bits nobody has found a difference that matters; from 8 to between 4 and 5 the answers
    change a little; below 4 bits they get worse noticeably, most of all for small models.

    The rule compares your file with the smaller formats of the same model at hand, and proposes the fastest of at least four
    bits where that should gain clearly. When the output is slow and none is at hand, it tells what one would bring.

    When this is wrong: formats differ in how fast this processor unpacks them, so the smaller one is not always the faster one;
    the prediction counts that where the machine is calibrated. Very small models gain less, since their bytes are not all of
    their time. And a model that was trained in few bits to begin with has no larger file worth having.
    """

    code: ClassVar[str] = "DEC03"
    title: ClassVar[str] = "Smaller format of the same model"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        model = situation.model
        near = [
            each
            for each in situation.siblings
            if each.weights_bytes < _SMALLER * model.weights_bytes and each.bits_per_weight >= _LEAST_BITS
        ]
        best = find_best_change(situation, [{"model": each.path} for each in near], "tpot", least=_WORTH_IT)
        if best is None:
            return self._name_format(situation) if not near and feels_slow_output(situation) else ()
        change, expected = best
        sibling = next(each for each in near if each.path == change["model"])
        remedy = f"Use {sibling.path}: it should write {format_ratio(expected.ratio)} as fast."
        return (self._form(situation, sibling, remedy, expected, change),)

    def _name_format(self, situation: Situation) -> tuple[Finding, ...]:
        before, model = predict_point(situation, situation.config), situation.model
        if before is None or model.bits_per_weight < _WORTH_NAMING:
            return ()
        found: list[tuple[float, Expected, ModelSpec]] = []
        for name in _OFFERED:
            other = recast_model(model, name) if bits_of(name) < _SMALLER * model.bits_per_weight else None
            after = situation.predict(other, situation.config, situation.workload) if other else None
            expected = compare_predictions(before, after, "tpot") if after else None
            if other is not None and expected is not None and expected.ratio >= _WORTH_IT:
                found.append((expected.ratio, expected, other))
        if not found:
            return ()
        _, expected, other = max(found, key=lambda each: each[0])
        label = label_file(other.quant)
        remedy = (
            f"Get the {label} file of this model, about {format_bytes(other.file_bytes)}: it should write "
            f"{format_ratio(expected.ratio)} as fast."
        )
        return (self._form(situation, other, remedy, expected, {}),)

    def _form(self, situation: Situation, other: ModelSpec, remedy: str, expected: Expected, change: dict[str, str]) -> Finding:
        model = situation.model
        return Finding(
            code=self.code,
            title="A smaller file of the same model would write faster.",
            severity="slows" if feels_slow_output(situation) else "hint",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(what="weights now", value=model.weights_bytes, unit="bytes", basis="measured"),
                Evidence(
                    what=f"weights as {other.quant}",
                    value=other.weights_bytes,
                    unit="bytes",
                    basis="measured" if change else "predicted",
                ),
            ),
            change=dict(change),
            remedy=remedy,
            expected=expected,
            costs=f"Precision: {other.bits_per_weight:.1f} bits per weight in place of {model.bits_per_weight:.1f}, so answers "
            "change a little; compare some of your own before you settle.",
        )
