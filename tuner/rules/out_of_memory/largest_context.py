"""MEM11: the largest context that fits."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory import largest_context
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_plan, find_step, fits
from tuner.rules.points import change_point
from tuner.runconfig import CONTEXT_PADDING, RunConfig


class LargestContext(Rule):
    """The context is the one factor of the KV cache (the model's notes on the text so far) that you choose freely. All else is
    given by the model, so the memory that is left after the weights divides into a number of tokens: the largest context that
    fits.

    The rule speaks in two cases. When the settings do not fit and a context nearer to what your workload needs is the cheapest
    way left, it proposes the largest one that fits. And when no setting at all makes your workload fit, it says how long a text
    would: then shorten the workload, or use a smaller file. A context that your workload needs is never cut.

    When this is wrong: models with sliding windows or a recurrent state need little for further context, so a smaller one frees
    little there. The number holds for the memory that was free when rooftune looked.
    """

    code: ClassVar[str] = "MEM11"
    title: ClassVar[str] = "The largest context that fits"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory", "long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        if fits(situation) or not situation.model.has_kv or not situation.model.layers:
            return ()
        found = find_step(situation, self.code)
        if found is None:
            return self._tell_limit(situation) if find_plan(situation) is None else ()
        step, alone = found
        change = step.change if alone else {}
        size = step.change["ctx_size"]
        finding = Finding(
            code=self.code,
            title="The context is larger than the workload needs and than the memory holds.",
            severity="stops",
            evidence=(*_tell_need(situation), tell_freed(step.freed_bytes)),
            change=change,
            remedy=f"Set ctx_size to {size}.{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs="Longer texts than that do not fit into the context; this workload does.",
        )
        return (finding,)

    def _tell_limit(self, situation: Situation) -> tuple[Finding, ...]:
        most = find_largest(situation)
        finding = Finding(
            code=self.code,
            title="No context that is long enough for this workload fits into memory.",
            severity="stops",
            evidence=(
                *_tell_need(situation),
                Evidence(what="largest context that fits", value=most, unit="tokens", basis="predicted"),
            ),
            remedy=f"Shorten the workload to {most} tokens in all slots, or use a smaller file."
            if most
            else "Use a smaller file: the weights leave no room for any context.",
        )
        return (finding,)


def find_largest(situation: Situation) -> int:
    """The largest context that fits with the other settings as they are, over all slots, tokens; 0: none."""
    config = change_point(situation, {})
    most = largest_context(situation.model, config, situation.budget, machine=situation.hardware)
    step = CONTEXT_PADDING * max(1, config.parallel)
    low, high = 0, most // step
    if most and _fits_at(situation, config, most):
        return most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits_at(situation, config, middle * step) else (low, middle - 1)
    return low * step


def _fits_at(situation: Situation, config: RunConfig, size: int) -> bool:
    return situation.find_misfit(config.replace(ctx_size=size)) is None


def _tell_need(situation: Situation) -> tuple[Evidence, ...]:
    slots = max(1, change_point(situation, {}).parallel)
    return (
        Evidence(what="context in all slots", value=change_point(situation, {}).ctx_size, unit="tokens", basis="measured"),
        Evidence(
            what="of it needed by the workload",
            value=situation.workload.tokens_per_slot * slots,
            unit="tokens",
            basis="measured",
        ),
    )
