"""PRE04: a number format that this processor multiplies slowly."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.memory.placement import list_repacked_types
from tuner.model import ModelSpec
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import NOTICEABLE, compare_predictions, find_best_change, predict_point
from tuner.rules.figures import tell_figure
from tuner.rules.formats import bits_of, label_file, main_format, recast_model
from tuner.units import format_bytes, format_ratio

_OTHER_KERNELS: Final = frozenset({"F32", "F16", "BF16", "Q8_0"})
"""Multiplied quickly without being laid out anew."""
_MOSTLY: Final = 0.5
_LEAST_BITS: Final = 0.75
"""A format with less than this share of the bits is another trade, made in DEC03."""
_OFFERED: Final = ("Q4_K", "Q4_0", "IQ4_NL", "Q8_0")
"""What publishers commonly offer and some processor multiplies quickly, in order of preference at like speed."""


class SlowFormat(Rule):
    """A model's weights (the numbers it has learnt) are stored in a number format: Q4_K, Q4_1, Q8_0 and so on. For some formats
    llama.cpp lays the weights out anew when it loads them, so that the processor can multiply many of them with one
    instruction; for others it has only slower code. Two files of nearly the same size can so differ by a factor of two, in the
    prompt and in the answer.

    Which formats are fast depends on the processor and the build. On Intel and AMD processors (x86 with AVX2) these are Q4_0,
    Q4_K, IQ4_NL and MXFP4, not Q4_1, Q5_K, Q6_K or Q8_0; on ARM processors with dot products Q5_K, Q6_K and Q8_0 as well. The
    rule looks at the format that holds most of your file. Where this machine was calibrated it proposes a change only where
    that should be clearly faster; otherwise it goes by the list.

    The remedy is the same model in another format: a file that you have already, or one to download or to make.

    When this is wrong: with all layers on a GPU none of this matters, and the rule is silent. A few formats have fast code that
    the list does not tell of, and a later llama.cpp may add more; a calibration sees that. Formats of the same size differ a
    little in how well they keep the model's answers: Q4_K keeps more than Q4_0.
    """

    code: ClassVar[str] = "PRE04"
    title: ClassVar[str] = "Number format that is slow on this processor"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start", "slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        build, held = situation.hardware.build, main_format(situation.model)
        if build is None or not build.simd or held is None or situation.config.n_gpu_layers != 0:
            return ()
        name, share = held
        fast = list_repacked_types(build.simd) if build.repack else frozenset[str]()
        if name in fast or share < _MOSTLY:
            return ()
        return self._propose_sibling(situation, name, share) or self._name_format(situation, name, share, fast)

    def _propose_sibling(self, situation: Situation, name: str, share: float) -> tuple[Finding, ...]:
        near = [each for each in situation.siblings if each.bits_per_weight >= _LEAST_BITS * situation.model.bits_per_weight]
        best = find_best_change(situation, [{"model": each.path} for each in near], "ttft")
        if best is None:
            return ()
        change, expected = best
        sibling = next(each for each in near if each.path == change["model"])
        remedy = f"Use {sibling.path} ({sibling.quant}): the first token should come {format_ratio(expected.ratio)} as fast."
        return (
            self._form(situation, name, share, remedy, expected, change=change, costs=_tell_bits(situation.model, sibling)),
        )

    def _name_format(self, situation: Situation, name: str, share: float, fast: frozenset[str]) -> tuple[Finding, ...]:
        found = _find_best_format(situation, fast)
        if found is None:
            return ()
        wanted, expected = found
        label = label_file(wanted)
        remedy = (
            f"Get the {label} file of this model, or make it from the F16 file: "
            f"`llama-quantize model-F16.gguf model-{label}.gguf {label}`"
        )
        bits = f"{wanted} has {bits_of(wanted):.1f} bits per weight, {name} has {bits_of(name):.1f}"
        costs = f"Another file, and answers that differ a little: {bits}."
        return (self._form(situation, name, share, remedy, expected, costs=costs),)

    def _form(
        self,
        situation: Situation,
        name: str,
        share: float,
        remedy: str,
        expected: Expected | None,
        *,
        costs: str,
        change: dict[str, str] | None = None,
    ) -> Finding:
        return Finding(
            code=self.code,
            title=f"This processor has no fast way to multiply weights stored as {name}.",
            severity="hint" if expected is not None and expected.low <= 1 else "slows",
            evidence=(
                *tell_figure(situation, "ttft"),
                Evidence(what=f"share of the weights in {name}", value=share, unit="share", basis="measured"),
            ),
            change=change or {},
            remedy=remedy,
            expected=expected,
            costs=costs,
        )


def _find_best_format(situation: Situation, fast: frozenset[str]) -> tuple[str, Expected | None] | None:
    """The format to get: by prediction, or, where nothing can be predicted, the first of the list that is fast here."""
    model = situation.model
    held = main_format(model)
    offered = [
        name for name in _OFFERED if (name in fast or name in _OTHER_KERNELS) and bits_of(name) >= _LEAST_BITS * _bits(model)
    ]
    before = predict_point(situation, situation.config)
    if before is None:
        listed = [name for name in offered if name in fast and recast_model(model, name) is not None]
        return (listed[0], None) if listed and held is not None and held[0] not in _OTHER_KERNELS else None
    best: tuple[str, Expected] | None = None
    for name in offered:
        other = recast_model(model, name)
        after = situation.predict(other, situation.config, situation.workload) if other is not None else None
        expected = compare_predictions(before, after, "ttft") if after is not None else None
        if expected is None or expected.ratio < NOTICEABLE:
            continue
        if best is None or expected.ratio > 1.05 * best[1].ratio:
            best = name, expected
    return best


def _bits(model: ModelSpec) -> float:
    held = main_format(model)
    return bits_of(held[0]) if held else model.bits_per_weight


def _tell_bits(model: ModelSpec, sibling: ModelSpec) -> str:
    return (
        f"{sibling.bits_per_weight:.1f} bits per weight in place of {model.bits_per_weight:.1f}, "
        f"{format_bytes(sibling.file_bytes)} in place of {format_bytes(model.file_bytes)}; answers differ a little."
    )
