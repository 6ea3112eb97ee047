"""The device that works alone."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_integer
from tuner.space.traits import count_devices


class MainGpu(Dimension):
    """The device that holds everything under split_mode none, and the small tensors under row.

    It matters where the devices differ in speed, in the width of their links or in who else uses them. The number is the
    place in llama.cpp's own device list, which need not be the order of nvidia-smi. With split_mode layer it means nothing.
    """

    name: ClassVar[str] = "main_gpu"
    title: ClassVar[str] = "Main device"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "model"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        devices = count_devices(situation)
        if devices < 2:
            return Absent(reason="there are not two devices to choose between")
        return Domain(values=tuple(range(devices)), ordered=False)

    def find_default(self, situation: SpaceSituation) -> int:
        del situation
        return 0

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=0, most=63)
