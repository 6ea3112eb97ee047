"""Experts that stay in main memory."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.dimensions.n_gpu_layers import explain_no_device
from tuner.space.parsing import read_integer
from tuner.space.spread import list_evenly
from tuner.space.traits import count_devices, count_units, has_experts

_STEPS = 12
_MOST = 100_000


class NCpuMoe(Dimension):
    """Experts of this many first blocks stay in main memory, while everything else goes to the device.

    For a mixture-of-experts model that does not fit the device. Experts are most of the bytes but each token uses a few of
    them, so they are the cheapest part to leave to the CPU; attention and the cache, which every token uses whole, stay on
    the device. The smallest number that fits is usually the best, with n_gpu_layers at everything; whole blocks on the CPU
    are the other way, and which of the two wins differs between machines.

    It hurts when everything would fit: then 0 is best. llama-server takes it as --n-cpu-moe; the Python binding's Llama
    class has no such argument. (common.h: tensors blk.i.ffn_(up|down|gate|gate_up)_exps for i below the number.)
    """

    name: ClassVar[str] = "n_cpu_moe"
    title: ClassVar[str] = "Expert blocks on the CPU"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "model"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if not has_experts(situation):
            return Absent(reason="this model has no experts")
        if count_devices(situation) == 0:
            return Absent(reason=explain_no_device(situation))
        blocks = count_units(situation)
        if blocks is None:
            return Absent(reason="the file does not say how many layers it has", may_be_asked_for=True)
        return Domain(values=list_evenly(blocks, _STEPS), ordered=True)

    def find_default(self, situation: SpaceSituation) -> int:
        del situation
        return 0

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=0, most=_MOST)
