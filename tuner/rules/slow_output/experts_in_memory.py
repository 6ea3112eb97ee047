"""DEC07: a model with experts that does not fit the device as a whole."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import NOTICEABLE, expect_gain
from tuner.rules.figures import tell_figure
from tuner.rules.points import is_possible


class ExpertsInMemory(Rule):
    """Some models have experts: many large blocks of weights of which each token uses only a few. They are most of the file,
    and the least used part of it. When such a model does not fit into a GPU, taking whole layers off it is the wrong knob, for
    that moves what every token needs as well. Better leave all layers on the GPU and only the experts of some layers in main
    memory: `n_cpu_moe`. Reports tell of two and a half times faster output and fifteen times faster prompts, and of a mild loss
    on one machine.

    The rule finds the smallest number of layers whose experts must stay outside so that the rest fits, and proposes it together
    with all layers on the device.

    When this is wrong: with slow main memory and a model that nearly fits, plain `n_gpu_layers` can be faster, so the two
    should always be compared; `rooftune tune` does. llama-cpp-python's `Llama` class cannot be told this setting; llama-server
    can.
    """

    code: ClassVar[str] = "DEC07"
    title: ClassVar[str] = "Experts in main memory, the rest on the GPU"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output", "slow-start", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        model, full = situation.model, situation.model.full_offload
        if not model.is_moe or full is None or not situation.hardware.devices or is_whole(situation, full):
            return ()
        change = find_least_experts(situation, full)
        if change is None:
            return ()
        expected = expect_gain(situation, change, "tpot")
        if expected is not None and expected.ratio < NOTICEABLE:
            return ()
        outside = change["n_cpu_moe"]
        freed = sum(layer.expert_bytes for layer in model.layers[:outside])
        finding = Finding(
            code=self.code,
            title="Whole layers are kept off the GPU where leaving out some experts would do.",
            severity="slows",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(what="experts", value=model.n_expert, unit="experts", basis="measured"),
                Evidence(what="experts a token uses", value=model.n_expert_used, unit="experts", basis="measured"),
                Evidence(what="bytes that stay in main memory", value=freed, unit="bytes", basis="predicted"),
            ),
            change=change,
            remedy=f"Set n_gpu_layers to {full} and n_cpu_moe to {outside}; compare it with plain n_gpu_layers.",
            expected=expected,
            costs="Main memory for those experts.",
        )
        return (finding,)


def is_whole(situation: Situation, full: int) -> bool:
    """The whole model is on the device already, or fits there."""
    config = situation.config
    now_whole = config.n_gpu_layers == full and config.n_cpu_moe == 0
    if now_whole:
        return situation.find_misfit(config) is None
    return is_possible(situation, {"n_gpu_layers": full, "n_cpu_moe": 0})


def find_least_experts(situation: Situation, full: int) -> dict[str, Any] | None:
    """All layers on the device, with the fewest layers' experts outside that makes it fit; None where none does."""
    candidates = ({"n_gpu_layers": full, "n_cpu_moe": count} for count in range(1, len(situation.model.layers) + 1))
    return next((change for change in candidates if is_possible(situation, change)), None)
