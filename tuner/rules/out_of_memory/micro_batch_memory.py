"""MEM07: a smaller micro-batch frees room for intermediate results."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import expect_gain
from tuner.rules.out_of_memory.attention_scratch import tell_scratch
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step
from tuner.rules.points import change_point


class MicroBatchMemory(Rule):
    """Prompts are read in pieces, the micro-batches. All intermediate results of a piece are in memory at once: numbers for
    each layer's width, for each possible next token where they are asked for, and without flash attention whole tables of who
    looks at whom. Half the piece takes half of that. Layers with a sliding window keep one piece beside their window, so their
    cache shrinks as well.

    The rule proposes the largest smaller micro-batch that makes the settings fit: 256, 128 or 64 tokens. Writing the answer is
    not touched; prompts are read somewhat slower, and the prediction says how much.

    When this is wrong: the sum of intermediate results is a lower bound as long as llama.cpp was not asked, so it can free more
    than is told, and half of a small thing may not be worth a slower start.
    """

    code: ClassVar[str] = "MEM07"
    title: ClassVar[str] = "Smaller micro-batch to save memory"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        now = change_point(situation, {}).ubatch_size
        finding = Finding(
            code=self.code,
            title="A smaller micro-batch frees memory for intermediate results.",
            severity="stops",
            evidence=(
                Evidence(what="micro-batch", value=now, unit="tokens", basis="measured"),
                *tell_scratch(situation),
                tell_freed(step.freed_bytes),
                *_tell_speed(situation, step.change),
            ),
            change=change,
            remedy=f"Set ubatch_size to {step.change['ubatch_size']}.{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs="Prompts are read somewhat slower.",
        )
        return (finding,)


def _tell_speed(situation: Situation, change: dict[str, Any]) -> tuple[Evidence, ...]:
    gain = expect_gain(situation, change, "ttft")
    if gain is None:
        return ()
    return (Evidence(what="speed of reading a prompt with it", value=gain.ratio, unit="times", basis=gain.basis),)
