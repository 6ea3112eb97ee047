"""What a machine can do at best, as figures that a prediction is made of: seconds per byte of weights, per operation of
attention, per layer and per step, by device and threads.

The time of one batch of n tokens computed at once (n = 1 while one slot decodes, n = slots while several do, n = a micro-batch
in prefill) is their sum:

    step_s + layers × layer_s + Σ over formats: weight bytes × seconds_per_byte(n) + attention operations × seconds_per_op(n)

with links added where data crosses from one device to another. The figures come from a calibration (measured through llama.cpp)
or from a data sheet (assumed, by fitted efficiencies); nothing here measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Source = Literal["calibrated", "data sheet"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity with what it is worth."""

    value: float
    """In the unit that the field around it names."""
    spread: float = 0.0
    """Relative standard deviation of the value (0.05 = 5 %); 0 where unknown."""
    marked: str = ""
    """Why this figure is doubtful, in plain words; "" when it is not."""


class FormatCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """What multiplying weights of one format with n tokens costs."""

    device: str
    """Name in llama.cpp's device list; "CPU" is main memory and processor."""
    format: str
    """Tensor type as the model's tensor table spells it (F16, Q8_0, Q4_K, …)."""
    threads: int
    """Threads at work; 0 where they mean nothing (a GPU)."""
    tokens: int
    """n: tokens computed at once."""
    routed: bool = False
    """Of experts that a router chose, n of them being one expert's tokens; False: of all matrices without such a figure."""
    seconds_per_byte: Figure
    """Seconds per byte of weights for all n tokens together. At n = 1 its inverse is bytes per second of decode; at a large n,
    2 × n × elements per byte over it is operations per second of prefill."""


class ReadingCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """How reading depends on how much there is to read: of a small model, a part stays in a cache from step to step."""

    device: str
    """Name in llama.cpp's device list."""
    format: str
    """Tensor type: what computes much for each byte gains little from a cache."""
    threads: int
    """Threads at work; 0 where they mean nothing."""
    tokens: int
    """n: tokens computed at once; where computing binds, the factor is 1."""
    n_bytes: int
    """Weights of the whole model there, bytes."""
    factor: Figure
    """Times the format's seconds_per_byte."""


class AttentionCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """What attending to the history costs. An operation is a multiplication or addition: one query token that attends to one
    position costs 2 × query heads × (key length + value length) of them in a layer.
    """

    device: str
    """Where the KV cache lies and is read."""
    cache_type_k: str
    """Type of the K cache."""
    cache_type_v: str
    """Type of the V cache."""
    flash_attn: bool
    """With flash attention."""
    threads: int
    """Threads at work; 0 where they mean nothing."""
    tokens: int
    """n: query tokens computed at once."""
    head_size: int = 0
    """Length of the keys that it was taken at, elements; 0 where it holds for all."""
    seconds_per_op: Figure
    """Seconds per operation, over all n tokens together (so an n-token batch costs n × operations of one × this)."""


class FixedCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """What a step costs beside weights and history: starting operations, waiting for threads, norms, activations."""

    device: str
    """Where the layers are computed."""
    threads: int
    """Threads at work; 0 where they mean nothing."""
    tokens: int
    """n: tokens computed at once."""
    step_s: Figure
    """Once a step, s."""
    layer_s: Figure
    """Once a layer and step, s, for a layer of `width` elements."""
    width: int
    """Hidden size at which layer_s was taken; the part of it that grows with n grows with the hidden size too."""


class LinkCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """The way from main memory to a device."""

    device: str
    """The far end."""
    bytes_per_s: Figure
    """How fast much data crosses, bytes/s."""
    latency_s: Figure
    """What one crossing costs however small, s."""


class DeviceCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """The two roofs of one device."""

    device: str
    """Name in llama.cpp's device list."""
    bandwidth: Figure
    """Fastest reading of weights seen or stated, bytes/s."""
    compute: Figure
    """Fastest matrix multiplication seen or stated, operations/s."""
    memory_bytes: int | None = None
    """Memory of the device, bytes; None: unknown, or the machine's own."""


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one machine with one build of llama.cpp."""

    schema: Literal["rooftune-ceilings/2"] = "rooftune-ceilings/2"
    """Version of these keys."""
    source: Source
    """How the figures were come by; a prediction repeats it."""
    machine: str
    """Fingerprint of the machine, or the name of the data sheet."""
    summary: str
    """The machine in one line."""
    llama_cpp: str = ""
    """llama.cpp's version, commit and digest of its libraries; "" for a data sheet."""
    engine: str = ""
    """Engine and version that measured; "" for a data sheet."""
    made: str = ""
    """When, ISO 8601 in UTC; "" for a data sheet."""
    devices: tuple[DeviceCeiling, ...]
    """CPU first where it has figures."""
    formats: tuple[FormatCeiling, ...]
    """By device, format, threads and tokens."""
    attention: tuple[AttentionCeiling, ...]
    """By device, cache types, flash attention, threads and tokens."""
    fixed: tuple[FixedCeiling, ...]
    """By device, threads and tokens."""
    readings: tuple[ReadingCeiling, ...] = ()
    """By device, threads, tokens and bytes; () where the size of a model is taken to mean nothing."""
    links: tuple[LinkCeiling, ...] = ()
    """One per device that is not the CPU."""
    doubts: tuple[str, ...] = ()
    """What makes the whole of it doubtful (a busy machine), one sentence each."""
    elapsed_s: float = 0.0
    """What making it cost, s; 0 for a data sheet."""


def join_ceilings(host: Ceilings, remote: Sequence[Ceilings]) -> Ceilings:
    """The machine with the devices of RPC servers, numbered and placed as llama.cpp does: remote ones before its own."""
    counts = [len(each.devices) for each in remote]
    servers = [_number_devices(each, sum(counts[:number])) for number, each in enumerate(remote)]
    everything = (host, *servers)
    return msgspec.structs.replace(
        host,
        devices=(*host.devices[:1], *(device for server in servers for device in server.devices), *host.devices[1:]),
        formats=tuple(figure for each in everything for figure in each.formats),
        attention=tuple(figure for each in everything for figure in each.attention),
        fixed=tuple(figure for each in everything for figure in each.fixed),
        links=tuple(figure for each in everything for figure in each.links),
        doubts=tuple(dict.fromkeys(doubt for each in everything for doubt in each.doubts)),
    )


def _number_devices(remote: Ceilings, first: int) -> Ceilings:
    names = {each.device: f"RPC{first + number}" for number, each in enumerate(remote.devices)}
    return msgspec.structs.replace(
        remote,
        devices=tuple(msgspec.structs.replace(each, device=names[each.device]) for each in remote.devices),
        formats=tuple(msgspec.structs.replace(each, device=names[each.device]) for each in remote.formats),
        attention=tuple(msgspec.structs.replace(each, device=names[each.device]) for each in remote.attention),
        fixed=tuple(msgspec.structs.replace(each, device=names[each.device]) for each in remote.fixed),
        links=tuple(msgspec.structs.replace(each, device=names[each.device]) for each in remote.links),
    )
