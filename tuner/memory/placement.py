"""Which unit of a model lies on which device, as llama.cpp decides it (llama-model.cpp, load_tensors).

Layers count from the end: the output is the first unit that goes to a device, block 0 the last. The input embedding stays in
main memory always.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from tuner.hardware.record import HardwareProfile
from tuner.memory.record import HOST
from tuner.model.spec import ModelSpec
from tuner.runconfig import RunConfig

_REPACK_AVX2: Final = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
_REPACK_AVX512: Final = frozenset({"Q2_K"})
_REPACK_AMX: Final = frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"})
_REPACK_ARM: Final = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"})
_REPACK_ROWS: Final = 8
_ALWAYS_COPIED: Final = frozenset({"gemma3n", "gemma4"})
"""llama.cpp makes their output before their input embedding, so it finds nothing to share."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Device of each block, and of the output."""

    blocks: tuple[str, ...]
    """Device of each block of the main context."""
    output: str
    """Device of the output matrix."""
    devices: tuple[str, ...]
    """Devices that take layers, in llama.cpp's order; empty without any."""
    assumed_split: bool
    """Several devices share by free memory that nobody told: equal shares were assumed."""


def place_layers(model: ModelSpec, config: RunConfig, machine: HardwareProfile | None) -> Placement:
    """Where each unit goes; everything in main memory without a device that takes layers."""
    names, shares, assumed = _list_shares(config, machine)
    n_all = len(model.layers) if model.n_layer_all is None else model.n_layer_all
    offloaded = count_offloaded(n_all, config.n_gpu_layers) if names else 0
    first = n_all + 1 - offloaded
    units = [_pick(unit - first, offloaded, names, shares) if unit >= first else HOST for unit in range(n_all + 1)]
    return Placement(
        blocks=tuple(units[: len(model.layers)]), output=units[n_all], devices=names, assumed_split=assumed and len(names) > 1
    )


def count_offloaded(n_layer: int, n_gpu_layers: int) -> int:
    """Units on devices, output included: n_gpu_layers cut to n_layer + 1, which -1 stands for."""
    full = n_layer + 1
    return full if n_gpu_layers < 0 else min(n_gpu_layers, full)


def copies_tied_output(model: ModelSpec, placement: Placement, machine: HardwareProfile | None) -> bool:
    """Whether llama.cpp makes a second copy of the input embedding to serve as the output matrix.

    It does where the two land in different kinds of memory: on a device, or in the layout that the CPU's vector units want.
    """
    if not model.tied_embeddings or model.is_encoder_only or not model.token_embd_bytes:
        return False
    return placement.output != HOST or model.architecture in _ALWAYS_COPIED or _repacks(model, placement, machine)


def _repacks(model: ModelSpec, placement: Placement, machine: HardwareProfile | None) -> bool:
    """With a device, pinned host memory comes before the repacked layout."""
    build = machine.build if machine else None
    if build is None or not build.repack or placement.devices or not model.n_vocab or model.n_vocab % _REPACK_ROWS:
        return False
    return model.token_embd_type in list_repacked_types(build.simd)


def list_repacked_types(simd: Sequence[str]) -> frozenset[str]:
    """Formats that a build with these vector features lays out anew for them (ggml-cpu, repack.cpp and amx.cpp)."""
    features = {name.upper() for name in simd}
    found: frozenset[str] = frozenset()
    for names, types in (
        ({"AVX2"}, _REPACK_AVX2),
        ({"AVX512"}, _REPACK_AVX512),
        ({"AMX_INT8"}, _REPACK_AMX),
        ({"DOTPROD", "MATMUL_INT8", "I8MM"}, _REPACK_ARM),
    ):
        if names & features:
            found |= types
    return found


def _list_shares(config: RunConfig, machine: HardwareProfile | None) -> tuple[tuple[str, ...], list[float], bool]:
    """(devices, cumulative share of each, whether the shares are only assumed)."""
    found = [device for device in machine.devices if device.takes_layers] if machine else []
    if config.split_mode == "none" and found:
        found = [found[min(max(config.main_gpu, 0), len(found) - 1)]]
    names = tuple(device.name for device in found)
    told = [*config.tensor_split, *([0.0] * len(names))][: len(names)]
    free = [float(device.free_bytes or 0) for device in found]
    known = any(told) or all(free)
    weights = told if any(told) else free if all(free) else [1.0] * len(names)
    total = sum(weights) or 1.0
    return names, [share / total for share in accumulate(weights)], not known


def _pick(index: int, offloaded: int, names: Sequence[str], shares: Sequence[float]) -> str:
    return names[min(bisect_right(shares, index / offloaded), len(names) - 1)]
