"""MEM12: slots that nobody uses."""

from __future__ import annotations

from typing import ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step, fits
from tuner.rules.points import change_point


class IdleSlots(Rule):
    """Each slot, that is each conversation that can go on at the same time, has its own part of the KV cache (the model's notes
    on the text so far), its own windows and its own recurrent state. They are set aside at the start, whether anybody uses the
    slot or not. llama-server starts four slots, with one pool for all of them, when it is not told a number.

    The rule speaks when there are more slots than your workload has users and memory is short. It proposes as many slots as
    users, with the same context for each of them.

    When this is wrong: programs such as editors and agents send several requests at once for one person; then count those as
    users. With one shared pool of cells (`--kv-unified`) idle slots take almost nothing.
    """

    code: ClassVar[str] = "MEM12"
    title: ClassVar[str] = "Slots that nobody uses"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        count, size = step.change["parallel"], step.change["ctx_size"]
        finding = Finding(
            code=self.code,
            title="Memory is set aside for conversations that nobody holds.",
            severity="slows" if fits(situation) else "stops",
            evidence=(
                Evidence(what="slots", value=change_point(situation, {}).parallel, unit="slots", basis="measured"),
                Evidence(what="users of the workload", value=situation.workload.users, unit="users", basis="measured"),
                tell_freed(step.freed_bytes),
            ),
            change=change,
            remedy=f"Set parallel to {count} and ctx_size to {size}, which keeps the context of each.{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs="Further conversations wait for a free slot.",
        )
        return (finding,)
