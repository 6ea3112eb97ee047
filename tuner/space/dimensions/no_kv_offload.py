"""The cache in main memory."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.dimensions.n_gpu_layers import explain_no_device
from tuner.space.parsing import read_flag
from tuner.space.traits import count_devices, has_cache


class NoKvOffload(Dimension):
    """Keep the KV cache in main memory although the blocks are on the device.

    It frees device memory for more layers or more context. Attention then runs where the cache is, on the CPU, so decode
    slows down with every token of depth, and prefill too. Worth it only when the freed memory takes in layers that weigh
    more than the cache costs: shallow conversations, large models. (cparams.offload_kqv = false.)
    """

    name: ClassVar[str] = "no_kv_offload"
    title: ClassVar[str] = "KV cache in main memory"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if count_devices(situation) == 0:
            return Absent(reason=explain_no_device(situation))
        if not has_cache(situation):
            return Absent(reason="this model keeps a fixed state in place of a KV cache")
        return Domain(values=(False, True), ordered=False)

    def find_default(self, situation: SpaceSituation) -> bool:
        del situation
        return False

    def parse_value(self, value: object) -> bool:
        return read_flag(self.name, value)
