"""MAC15: the GPU hangs on a narrow link."""

from __future__ import annotations

from typing import ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation


class NarrowLink(Rule):
    """A GPU is connected by up to sixteen lanes. In the wrong slot of the mainboard, with a riser cable or beside a second card
    it gets eight, four or one. That does not matter while a model is wholly on the card. It does when layers are divided
    between GPU and processor or between several cards, because data crosses the link for every token, and it makes loading
    slower.

    The rule speaks when a card uses fewer lanes than card and slot could and your settings divide the model. The remedy is
    another slot, usually the one nearest to the processor, or the mainboard's setting that divides the lanes.

    When this is wrong: some cards give up lanes while idle, so look again while a model runs (`nvidia-smi -q | grep -A3
    Width`). Laptops and external boxes have the lanes they have.
    """

    code: ClassVar[str] = "MAC15"
    title: ClassVar[str] = "Narrow link to the GPU"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        machine, full, layers = situation.hardware, situation.model.full_offload, situation.config.n_gpu_layers
        used = bool(machine.devices) and layers != 0
        divided = len(machine.devices) > 1 or (full is not None and 0 < layers < full) or situation.config.n_cpu_moe > 0
        if not used or not divided:
            return ()
        narrow = [
            (gpu.name or f"GPU {gpu.index}", gpu.link_width, gpu.link_width_max)
            for gpu in machine.gpus
            if gpu.cuda_ordinal is not None and gpu.link_width and gpu.link_width_max and gpu.link_width < gpu.link_width_max
        ]
        if not narrow:
            return ()
        finding = Finding(
            code=self.code,
            title="The link to the GPU is narrower than it could be, and this model is divided over it.",
            severity="hint",
            evidence=tuple(
                Evidence(what=f"lanes of {name}, {kind}", value=lanes, unit="lanes", basis="measured")
                for name, now, most in narrow
                for kind, lanes in (("in use", now), ("possible", most))
            ),
            remedy="Put the card into the slot nearest to the processor, or change how the mainboard divides its lanes.",
        )
        return (finding,)
