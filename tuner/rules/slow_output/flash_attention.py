"""DEC10: flash attention helps or hurts on this machine."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory import settle_geometry
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import find_best_change, predict_point
from tuner.rules.points import change_point
from tuner.units import format_bytes, format_ms


class FlashAttention(Rule):
    """Flash attention is another way of computing the look back at the history: piece by piece, without ever storing the whole
    table of who looks at whom. On GPUs it is nearly always faster, and it saves memory everywhere. On processors it depends: it
    usually makes reading a long prompt faster, but on some processors it makes writing with a long history two to three times
    slower. llama.cpp switches it on by itself wherever it can run.

    When this machine was calibrated (`rooftune calibrate`), both ways were measured, and the rule predicts the whole turn
    (first token and answer) with and without it, and proposes the other one where that should be clearly faster for your
    workload.

    When this is wrong: whether reading or writing counts more depends on the workload, so a change of workload can turn the
    verdict. Without it more memory is needed, in proportion to the context times the size of the pieces in which a prompt is
    read, and the V half of the KV cache (the model's notes on the text so far) cannot be kept in a smaller format. The
    calibration measured the usual sizes of attention heads; models with unusual ones may behave differently.
    """

    code: ClassVar[str] = "DEC10"
    title: ClassVar[str] = "Flash attention helps or hurts here"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output", "slow-start", "long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        now = situation.config.flash_attn
        if now == "auto" or situation.model.flash_attn_forced_off:
            return ()
        other = "off" if now == "on" else "on"
        best = find_best_change(situation, [{"flash_attn": other}], "latency")
        before = predict_point(situation, situation.config)
        if best is None or before is None:
            return ()
        change, expected = best
        after = predict_point(situation, change_point(situation, change))
        assert after is not None
        pairs = (
            ("time to first token", before.ttft, after.ttft),
            ("time per further token", before.tpot, after.tpot),
        )
        evidence = tuple(
            Evidence(what=f"{name} with it {state}", value=estimate.value, unit="ms", basis=estimate.basis)
            for name, *estimates in pairs
            for state, estimate in zip((now, other), estimates, strict=True)
        )
        finding = Finding(
            code=self.code,
            title=f"With flash attention {other} this workload should run faster on this machine.",
            severity="slows",
            evidence=evidence,
            change=change,
            remedy=f"Set flash_attn to {other}: the whole turn should take {format_ms(after.latency.value)} in place of "
            f"{format_ms(before.latency.value)}.",
            expected=expected,
            costs=_tell_memory(situation) if other == "off" else "",
        )
        return (finding,)


def _tell_memory(situation: Situation) -> str:
    """Scores that are kept without flash attention: context × micro-batch × query heads × 4 bytes."""
    geometry = settle_geometry(situation.model, situation.config)
    heads = max((layer.n_head or 0 for layer in situation.model.layers), default=0)
    if geometry is None or not heads:
        return "More memory for intermediate results; it fits here."
    size = geometry.cells * geometry.ubatch * heads * 4
    return f"At least {format_bytes(size)} more memory for intermediate results; it fits here."
