"""MEM02: what frees how much, and the cheapest way to fit."""

from __future__ import annotations

from typing import ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.levers import Plan, expect_memory, find_plan, fits, is_short, list_steps, tell_step


class CheapestWay(Rule):
    """Memory can be saved in several places, and they differ in what they cost you. This rule pulls each lever by itself and
    tells what it frees with your model, in this order, cheapest first:

    - free of charge: a cache of the window only where layers have one, flash attention, a chosen context in place of the
      training context, no slots that nobody uses;
    - a little speed: a smaller micro-batch, which reads prompts in smaller pieces;
    - a little precision: the cache in 8 bits;
    - room: a context nearer to what the workload needs, or fewer conversations at once;
    - much speed: layers, or experts, kept in main memory in place of the GPU;
    - precision of the whole model: a smaller file of it.

    Where one of them is enough, its own rule proposes it. Where only several together are, this rule proposes them as one
    change, and every proposal has been checked to fit.

    When this is wrong: intermediate results are known only as a lower bound unless llama.cpp was asked, so what a smaller
    micro-batch frees can be more than is told. What costs little on one machine can cost much on another; measure after the
    change (`rooftune diagnose --verify`).
    """

    code: ClassVar[str] = "MEM02"
    title: ClassVar[str] = "What frees how much"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        if not situation.model.layers or not is_short(situation):
            return ()
        steps, plan = list_steps(situation), find_plan(situation)
        if not steps:
            return ()
        several = plan is not None and len(plan.steps) > 1
        change = plan.change if plan is not None and several else {}
        finding = Finding(
            code=self.code,
            title=_name(situation, plan),
            severity="hint" if fits(situation) else "stops",
            evidence=tuple(map(tell_step, steps)),
            change=change,
            remedy=_advise(situation, plan),
            expected=expect_memory(situation, change) if change else None,
            costs="What each of them costs is told with it: see MEM03 to MEM13." if several else "",
        )
        return (finding,)


def _name(situation: Situation, plan: Plan | None) -> str:
    if fits(situation):
        return "This is what each change would free, the cheapest first."
    if plan is None:
        return "No change of settings makes it fit, but this is what each would free."
    return "Several changes together make it fit." if len(plan.steps) > 1 else "One change is enough to make it fit."


def _advise(situation: Situation, plan: Plan | None) -> str:
    if fits(situation):
        return "Begin with the first in the list, and go on only as far as needed."
    if plan is None:
        return "Use a smaller model or a smaller format of it, free memory, or shorten the workload."
    if len(plan.steps) == 1:
        return f"Take what {plan.steps[0].lever.code} proposes: it is the cheapest that suffices."
    settings = ", ".join(f"{name} {value}" for name, value in plan.change.items())
    return f"Set {settings}."


def tell_part(*, alone: bool) -> str:
    """What is said of a step that does not suffice."""
    return "" if alone else " It does not suffice by itself: MEM02 has all that is needed together."


def tell_freed(freed: int) -> Evidence:
    """Memory that a change frees, as evidence."""
    return Evidence(what="memory it frees", value=freed, unit="bytes", basis="predicted")
