"""Shares of the devices."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_shares
from tuner.space.traits import count_devices


class TensorSplit(Dimension):
    """The share of the model that each device takes, such as 3,1.

    Left alone, llama.cpp divides by the memory that is free when the model is loaded, which fits whenever anything fits,
    but gives a slow device with much memory more than it can keep up with. With split_mode layer the time of a token is the
    sum over devices, so the faster one should hold as much as fits there; with row and tensor the slowest device sets the
    pace, so shares should follow speed. With split_mode none it means nothing.
    """

    name: ClassVar[str] = "tensor_split"
    title: ClassVar[str] = "Shares of the devices"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "model"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        devices = count_devices(situation)
        if devices < 2:
            return Absent(reason="there are not two devices to share the model")
        first_heavy = [tuple(3.0 if i == heavy else 1.0 for i in range(devices)) for heavy in range(min(devices, 4))]
        return Domain(values=((), (1.0,) * devices, *first_heavy), ordered=False)

    def find_default(self, situation: SpaceSituation) -> tuple[float, ...]:
        del situation
        return ()

    def parse_value(self, value: object) -> tuple[float, ...]:
        return read_shares(self.name, value)
