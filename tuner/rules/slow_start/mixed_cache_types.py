"""PRE09: cache types for which the GPU may have no code."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import predict_point
from tuner.rules.points import is_possible
from tuner.units import format_ratio

_RARE: Final = frozenset({"q4_1", "q5_0", "q5_1", "iq4_nl"})
_COLLAPSED: Final = 5.0
"""A first token that takes this many times the predicted time has not run where it should (reports tell of 20 and more)."""


class MixedCacheTypes(Rule):
    """The KV cache is the model's notes on the text so far, in two halves, keys (K) and values (V). Each half can be stored in
    a smaller number format of its own. NVIDIA builds of llama.cpp bring the code that looks back at these notes (attention) for
    the common pairs only: both f16, both q8_0, both q4_0. For other pairs many builds compute attention on the processor
    instead, without a word: prompts are then read at a twentieth of the speed while everything seems to work.

    The rule looks for K and V of different types, or of a rare type, on a CUDA device. It speaks of a possibility as long as
    nothing was measured, is silent when a measurement shows normal speed, and is sure when it took five times what it should.
    The remedy is the same common type for both.

    When this is wrong: builds with the code for all pairs compiled in (GGML_CUDA_FA_ALL_QUANTS) and recent versions of
    llama.cpp run every pair on the GPU; then a mixed pair is fine. The measurement decides: `rooftune diagnose --verify`.
    """

    code: ClassVar[str] = "PRE09"
    title: ClassVar[str] = "Cache types the GPU may not have code for"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start", "slow-output", "long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config = situation.config
        k, v = config.cache_type_k, config.cache_type_v
        cuda = any(device.backend == "CUDA" for device in situation.hardware.devices)
        if not cuda or config.n_gpu_layers == 0 or config.no_kv_offload or (k == v and k not in _RARE):
            return ()
        slower = _find_slowdown(situation)
        if slower is not None and slower < _COLLAPSED:
            return ()
        change = next((each for each in _list_pairs() if is_possible(situation, each)), None)
        if change is None:
            return ()
        evidence: tuple[Evidence, ...] = (Evidence(what="cache types", value=f"{k} for K, {v} for V", basis="measured"),)
        if slower is not None:
            evidence += (
                Evidence(what="time to first token against the predicted one", value=slower, unit="times", basis="measured"),
            )
        sure = slower is not None
        finding = Finding(
            code=self.code,
            title=f"Attention {'runs' if sure else 'may run'} on the processor because of the cache types.",
            severity="slows" if sure else "hint",
            evidence=evidence,
            change=change,
            remedy=f"Use {change['cache_type_k']} for both, which every CUDA build has code for."
            + (f" Reading the prompt takes {format_ratio(slower)} the time it should." if slower is not None else ""),
            costs="The cache takes a different amount of memory; it fits here.",
        )
        return (finding,)


def _list_pairs() -> tuple[dict[str, str], ...]:
    return tuple({"cache_type_k": kind, "cache_type_v": kind} for kind in ("q8_0", "f16", "q4_0"))


def _find_slowdown(situation: Situation) -> float | None:
    """Measured TTFT over predicted; None where either is missing."""
    measured = situation.measurement.ttft_ms if situation.measurement else None
    prediction = predict_point(situation, situation.config)
    return measured / prediction.ttft.value if measured and prediction else None
