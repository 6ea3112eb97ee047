"""MEM03: the training context was taken as the context."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory import kv_bytes
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step, fits
from tuner.rules.points import change_point


class TrainingContext(Rule):
    """A model file states the longest text that the model was trained on, today often 128 thousand or a million tokens. That is
    what it can do, not what you need. Programs that take this number as their default ask for a cache of that size at the
    start, which for many models is more memory than any computer at home has: 156 GiB for a model of 12 billion parameters
    trained on a million tokens, of which a chat uses two hundredths.

    The rule speaks when the context is the training context, the memory does not suffice, and your workload needs less. It
    proposes 16384 or 8192 tokens for each conversation, whichever fits, or exactly what the workload needs where that is more.

    When this is wrong: if you do want to feed a whole book, say so with a workload of that length; then the context is kept and
    other savings are tried.
    """

    code: ClassVar[str] = "MEM03"
    title: ClassVar[str] = "Training context as default"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory", "long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        size = step.change["ctx_size"]
        finding = Finding(
            code=self.code,
            title="Memory is set aside for the longest text that the model was trained on.",
            severity="slows" if fits(situation) else "stops",
            evidence=(*_tell_sizes(situation, size), tell_freed(step.freed_bytes)),
            change=change,
            remedy=f"Set ctx_size to {size}, which is enough for this workload.{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs="Longer texts than that do not fit into the context.",
        )
        return (finding,)


def _tell_sizes(situation: Situation, size: int) -> tuple[Evidence, ...]:
    config = change_point(situation, {})
    sizes = (("at full context", config.ctx_size), (f"at {size} tokens", size))
    told = ((name, kv_bytes(situation.model, config.replace(ctx_size=each))) for name, each in sizes)
    return tuple(
        Evidence(what=f"KV cache {name}", value=value, unit="bytes", basis="predicted")
        for name, value in told
        if value is not None
    )
