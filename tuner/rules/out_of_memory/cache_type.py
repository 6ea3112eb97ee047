"""MEM05: the KV cache in eight bits."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import expect_gain
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step
from tuner.rules.points import change_point

_SENSITIVE: Final = frozenset({"gpt-oss", "qwen2"})
"""Families for which people measured that an 8-bit K cache changes many of the most likely tokens."""


class EightBitCache(Rule):
    """The KV cache, the model's notes on the text so far, holds two bytes for each number (f16). In the format q8_0 it holds 34
    bytes for 32 numbers, so the cache shrinks to 53 percent. For most models the answers stay practically the same. Coarser
    formats shrink it further, but then answers do suffer, first in long texts and in code; rooftune does not propose them by
    itself, and never keys (K) coarser than values (V).

    The values (V) in such a format need flash attention, another way of computing the look back, so that is switched on as
    well. Both halves get the same format, because several GPU builds have fast code only for equal ones. Head sizes that are no
    multiple of 32 cannot be stored this way, and models for which llama.cpp forbids flash attention cannot either; the rule is
    silent there.

    When this is wrong: some models are sensitive to it. For gpt-oss and Qwen 2 people found that an 8-bit K changes the most
    likely token often; compare some of your own answers with it and without. On some processors writing gets slower, because
    numbers have to be unpacked, on others faster, because fewer bytes are read.
    """

    code: ClassVar[str] = "MEM05"
    title: ClassVar[str] = "KV cache in eight bits"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory", "long-chat", "many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        config = change_point(situation, {})
        now = f"{config.cache_type_k} for K, {config.cache_type_v} for V"
        finding = Finding(
            code=self.code,
            title="The KV cache could be kept in half the memory.",
            severity="stops",
            evidence=(
                Evidence(what="cache types now", value=now, basis="measured"),
                tell_freed(step.freed_bytes),
                *_tell_speed(situation, step.change),
            ),
            change=change,
            remedy=f"Set cache_type_k and cache_type_v to q8_0, with flash attention on.{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs=_warn(situation),
        )
        return (finding,)


def _tell_speed(situation: Situation, change: dict[str, str]) -> tuple[Evidence, ...]:
    gain = expect_gain(situation, change, "tpot")
    if gain is None:
        return ()
    return (Evidence(what="speed of writing with it", value=gain.ratio, unit="times", basis=gain.basis),)


def _warn(situation: Situation) -> str:
    if situation.model.architecture in _SENSITIVE:
        return "This family is known to be sensitive to it: compare some of your own answers before you rely on it."
    return "A little precision: hardly any for most models."
