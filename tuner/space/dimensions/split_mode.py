"""How devices share the model."""

from __future__ import annotations

from typing import ClassVar, Final, get_args

from tuner.runconfig import SplitMode as Setting
from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_word
from tuner.space.traits import can_use_flash_attn, count_devices

_ROW_BACKENDS: Final = frozenset({"CUDA", "ROCm", "MUSA", "SYCL"})


class SplitMode(Dimension):
    """How several devices share one model.

    layer (the default) gives each device a run of whole blocks: little crosses the links, but during decode only one device
    works at a time; prefill can keep all busy with several micro-batches, at the price of more compute memory. row cuts the
    matrices, so that all work at once and exchange results at each step: good for decode over fast links, bad over slow
    ones. tensor cuts whole blocks across devices and needs flash attention. none uses main_gpu alone, which is fastest
    when the model fits there, since nothing crosses a link.
    """

    name: ClassVar[str] = "split_mode"
    title: ClassVar[str] = "Split across devices"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "model"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if count_devices(situation) < 2:
            return Absent(reason="there are not two devices to share the model")
        modes = ["layer", "none"]
        backends = {device.backend for device in situation.hardware.devices}
        if not situation.rpc_devices:
            modes += ["row"] if backends <= _ROW_BACKENDS else []
            modes += ["tensor"] if can_use_flash_attn(situation) else []
        return Domain(values=tuple(modes), ordered=False)

    def find_default(self, situation: SpaceSituation) -> str:
        del situation
        return "layer"

    def parse_value(self, value: object) -> str:
        return read_word(self.name, value, get_args(Setting))
