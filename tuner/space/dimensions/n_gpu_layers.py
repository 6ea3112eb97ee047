"""How much of the model lies on the device."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_integer
from tuner.space.traits import count_devices, count_units

ALL = -1
"""llama.cpp's way to say everything."""

_MOST = 100_000


class NGpuLayers(Dimension):
    """How many units of the model the device holds: its blocks, and the output layer as one more.

    Counted from the end: 1 offloads the output layer alone, 2 the last block too, and n_layer + 1 is everything. More than
    that means the same as everything; -1 says it without counting. The input embedding always stays with the CPU.

    Both phases gain from a device with fast memory, and the KV cache of a block lies where the block lies. With part of the
    model left on the CPU, each token crosses the link, and decode is soon ruled by the slower side: over a slow link part of
    the model on the device can be slower than none of it. What does not fit makes loading fail, or, under WSL and Windows,
    spills into main memory without a word.

    The model is loaded anew for each value (llama-model.cpp: i_gpu_start = n_layer + 1 − n_gpu_layers).
    """

    name: ClassVar[str] = "n_gpu_layers"
    title: ClassVar[str] = "Layers on the device"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "model"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if count_devices(situation) == 0:
            return Absent(reason=explain_no_device(situation))
        blocks = count_units(situation)
        if blocks is None:
            return Absent(reason="the file does not say how many layers it has", may_be_asked_for=True)
        return Domain(values=tuple(range(blocks + 2)), ordered=True)

    def find_default(self, situation: SpaceSituation) -> int:
        return ALL if count_devices(situation) else 0

    def parse_value(self, value: object) -> int:
        if value in ("all", "auto", "-1", "-2", -1, -2) and not isinstance(value, bool):
            return ALL
        return read_integer(self.name, value, least=0, most=_MOST)


def explain_no_device(situation: SpaceSituation) -> str:
    """Why there is nothing to offload to."""
    build = situation.hardware.build
    if build is not None and build.supports_gpu_offload is False:
        return (
            "this llama.cpp build cannot use a GPU; where there is one, reinstall llama-cpp-python with its backend, "
            'such as CMAKE_ARGS="-DGGML_CUDA=on"'
        )
    return "llama.cpp sees no device here that takes layers"
