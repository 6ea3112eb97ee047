"""MEM13: another file of the same model fits."""

from __future__ import annotations

from typing import ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step
from tuner.units import format_bytes


class SmallerFile(Rule):
    """The same model is offered in several number formats, from 16 bits for each weight down to 2. Where no setting makes a
    file fit, a smaller one of the same model is what is left, and it is usually faster as well, because fewer bytes have to be
    read for each token.

    The rule proposes the largest file at hand that fits. It looks only at files that lie beside the one in question, and takes
    sizes from the tables in the files, never from their names.

    When this is wrong: below about four bits for each weight answers suffer visibly, and a smaller model in a finer format can
    be the better choice; compare some of your own answers.
    """

    code: ClassVar[str] = "MEM13"
    title: ClassVar[str] = "A smaller file of the same model"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        other = next(each for each in situation.siblings if each.path == step.change["model"])
        finding = Finding(
            code=self.code,
            title="A smaller file of the same model fits.",
            severity="stops",
            evidence=(
                Evidence(what="weights now", value=situation.model.weights_bytes, unit="bytes", basis="measured"),
                Evidence(what="weights of the smaller file", value=other.weights_bytes, unit="bytes", basis="measured"),
                tell_freed(step.freed_bytes),
            ),
            change=change,
            remedy=f"Use {other.path} ({format_bytes(other.weights_bytes)}).{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs=f"Precision: {other.bits_per_weight:.1f} bits for each weight in place of "
            f"{situation.model.bits_per_weight:.1f}.",
        )
        return (finding,)
