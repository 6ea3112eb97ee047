"""USR03: more conversations than the memory holds."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory import kv_bytes, recurrent_bytes
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step
from tuner.rules.points import change_point


class SlotsInMemory(Rule):
    """Each conversation that goes on at the same time needs a KV cache (the model's notes on the text so far) of its own, of
    the full length, from the start. The weights are shared. So memory for several users is weights plus slots times cache, and
    it is the cache that decides how many people can be served.

    The rule speaks when the settings do not fit and serving fewer at once is the cheapest remedy left: the same context for
    each, fewer slots, and the rest of the users wait for their turn. It tells what one slot takes with your model.

    When this is wrong: if your users hold short conversations most of the time, one pool for all of them (`--kv-unified`) needs
    less than the longest conversation times their number. A cache in 8 bits nearly doubles the number of slots and is proposed
    first where it suffices.
    """

    code: ClassVar[str] = "USR03"
    title: ClassVar[str] = "Slots times context against memory"
    symptoms: ClassVar[frozenset[str]] = frozenset({"many-users", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        count, size = step.change["parallel"], step.change["ctx_size"]
        finding = Finding(
            code=self.code,
            title="The memory does not hold as many conversations at once.",
            severity="stops",
            evidence=(
                Evidence(what="slots", value=change_point(situation, {}).parallel, unit="slots", basis="measured"),
                *_tell_slot(situation),
                Evidence(what="slots that fit", value=count, unit="slots", basis="predicted"),
                tell_freed(step.freed_bytes),
            ),
            change=change,
            remedy=f"Set parallel to {count} and ctx_size to {size}, which keeps the context of each.{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs="Further users wait for a free slot.",
        )
        return (finding,)


def _tell_slot(situation: Situation) -> tuple[Evidence, ...]:
    config = change_point(situation, {})
    cache = kv_bytes(situation.model, config)
    if cache is None:
        return ()
    size = (cache + recurrent_bytes(situation.model, config)) // max(1, config.parallel)
    return (Evidence(what="cache of one slot", value=size, unit="bytes", basis="predicted"),)
