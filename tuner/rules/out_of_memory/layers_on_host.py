"""MEM08: some of the model stays in main memory."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import expect_gain
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step
from tuner.units import format_ratio


class LayersOnHost(Rule):
    """What does not fit into the GPU's memory can stay in main memory and be computed by the processor. A model is a stack of
    layers, and for ordinary models that means whole layers, set by `n_gpu_layers`. They are counted from the end of the model,
    the output first; all of them are one more than the number of layers that the model is described with. A layer takes its
    weights and its part of the KV cache (the notes on the text so far) with it.

    A model with experts has a better way in most cases: all layers on the GPU, and only the experts of some layers in main
    memory (`n_cpu_moe`), for experts are most of the bytes and each token uses few of them. The rule proposes the smallest
    number that fits, unless the prediction says that whole layers would be faster. Which of the two wins differs between
    machines, so compare them always.

    When this is wrong: part of a model in main memory is slow, since each token waits for the slower part: often a smaller file
    that fits as a whole is the better way. `n_cpu_moe` is a setting of llama-server; the Python binding's `Llama` class has no
    such argument, so it is not available there.
    """

    code: ClassVar[str] = "MEM08"
    title: ClassVar[str] = "Layers or experts in main memory"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        experts = "n_cpu_moe" in step.change
        finding = Finding(
            code=self.code,
            title="The model fits if the experts of some layers stay in main memory."
            if experts
            else "The model fits if some of its layers stay in main memory.",
            severity="stops",
            evidence=(*_tell_split(situation, step.change), tell_freed(step.freed_bytes), *_tell_speed(situation, step.change)),
            change=change,
            remedy=_advise(step.change, experts=experts) + tell_part(alone=alone),
            expected=expect_memory(situation, change) if change else None,
            costs="Speed: each token waits for the part that the processor computes.",
        )
        return (finding,)


def _tell_split(situation: Situation, change: dict[str, Any]) -> tuple[Evidence, ...]:
    model = situation.model
    outside = change.get("n_cpu_moe", 0)
    experts = sum(layer.expert_bytes for layer in model.layers[:outside])
    told = [Evidence(what="layers in all, the output included", value=model.full_offload or 0, unit="layers", basis="measured")]
    if outside:
        told.append(Evidence(what="experts that move to main memory", value=experts, unit="bytes", basis="predicted"))
    return tuple(told)


def _tell_speed(situation: Situation, change: dict[str, Any]) -> tuple[Evidence, ...]:
    """Against no layer on the GPU, for what does not fit has no speed."""
    ratio = expect_gain(situation, change, "tpot")
    bare = expect_gain(situation, {"n_gpu_layers": 0}, "tpot")
    if ratio is None or bare is None:
        return ()
    value = format_ratio(ratio.ratio / bare.ratio)
    return (Evidence(what="speed of writing against no layer on the GPU", value=value, basis=ratio.basis),)


def _advise(change: dict[str, Any], *, experts: bool) -> str:
    if not experts:
        return f"Set n_gpu_layers to {change['n_gpu_layers']}: the last layers go to the GPU, the output first."
    return (
        f"Set n_gpu_layers to {change['n_gpu_layers']} and n_cpu_moe to {change['n_cpu_moe']} (llama-server only, the Python "
        "binding cannot), and compare it with plain n_gpu_layers."
    )
