"""Big batches of host weights on the device."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.dimensions.n_gpu_layers import explain_no_device
from tuner.space.parsing import read_flag
from tuner.space.traits import count_devices


class OpOffload(Dimension):
    """Let the device compute big batches (32 tokens and more) of weights that lie in main memory.

    The weights are copied over for the occasion. In prefill that copy is paid once per micro-batch, so with large
    micro-batches and a fast link it is a gain, and with small ones or a slow link a loss. Decode of one slot never uses it.
    With everything on the device it changes nothing. On by default. (GGML_OP_OFFLOAD_MIN_BATCH sets the 32.)
    """

    name: ClassVar[str] = "op_offload"
    title: ClassVar[str] = "Device computes host weights"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if count_devices(situation) == 0:
            return Absent(reason=explain_no_device(situation))
        return Domain(values=(True, False), ordered=False)

    def find_default(self, situation: SpaceSituation) -> bool:
        del situation
        return True

    def parse_value(self, value: object) -> bool:
        return read_flag(self.name, value)
