"""The whole footprint of a configuration: arithmetic where the rules are known, llama.cpp's own projection where it was asked.

Nothing is allocated and nothing is asked here; a projection is handed in.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from tuner.hardware.record import HardwareProfile
from tuner.memory.cache import cache_by_layer, kv_bytes, settle_geometry
from tuner.memory.compute import compute_floor, output_buffer_bytes
from tuner.memory.placement import Placement, copies_tied_output, place_layers
from tuner.memory.record import HOST, Basis, Cause, Footprint, FrontEnd, Part
from tuner.model.spec import ModelSpec
from tuner.runconfig import RunConfig
from tuner.units import format_bytes

_MAPPED: Final = frozenset({"auto", "mmap", "mlock", "mmap+mlock"})
_HOST_BUFFER: Final = re.compile(r"^(CPU|AMX|BLAS|ACCEL)|_Host$|^CUDA_Host$")


def estimate_footprint(
    model: ModelSpec,
    config: RunConfig,
    *,
    front_end: FrontEnd = "llama-server",
    machine: HardwareProfile | None = None,
    projected: Mapping[str, int] | None = None,
    unified: bool = False,
    projector_bytes: int | None = None,
    draft: ModelSpec | None = None,
) -> Footprint:
    """Memory of `model` under `config`, by cause and device.

    `projected` is llama.cpp's own answer ("weights CPU", "kv CPU", "compute CPU", …). Causes missing from it are computed;
    compute buffers are then only bounded from below. Without `machine`, or without devices in it, everything is in main memory.
    """
    placement = place_layers(model, config, machine)
    parts = _asked_parts(model, config, projected or {})
    asked = {part.cause for part in parts}
    if "weights" not in asked:
        parts += _weight_parts(model, config, placement, machine)
    if not asked & {"kv", "recurrent"}:
        parts += _cache_parts(model, config, placement, unified=unified)
    if "compute" not in asked:
        parts += _compute_parts(model, config, placement, front_end, unified=unified)
    parts.append(Part(cause="output", device=HOST, n_bytes=output_buffer_bytes(model, config), basis="exact"))
    parts += _extra_parts(config, placement, projector_bytes, draft)
    notes = _describe_rest(model, config, placement, front_end, asked="compute" in asked)
    return Footprint(parts=tuple(parts), notes=notes)


def device_of(buffer_type: str) -> str:
    """The device behind a buffer type of llama.cpp: RPC0 for "RPC0[host:port]", main memory for CPU_REPACK or CUDA_Host."""
    if _HOST_BUFFER.search(buffer_type):
        return HOST
    return re.sub(r"(\[.*\]|_Split)$", "", buffer_type)


def _asked_parts(model: ModelSpec, config: RunConfig, projected: Mapping[str, int]) -> list[Part]:
    """llama.cpp tells cache and state as one; the state is split off where arithmetic says the same sum."""
    sums: dict[tuple[Cause, str], int] = defaultdict(int)
    causes: dict[str, Cause] = {"weights": "weights", "kv": "kv", "state": "recurrent", "compute": "compute"}
    for key, size in projected.items():
        cause, _, buffer_type = key.partition(" ")
        if cause in causes:
            sums[causes[cause], device_of(buffer_type)] += size
    parts = [Part(cause=cause, device=device, n_bytes=size, basis="asked") for (cause, device), size in sums.items()]
    return [*_split_state(model, config, parts), *_file_pages(model, config, projected)]


def _file_pages(model: ModelSpec, config: RunConfig, projected: Mapping[str, int]) -> list[Part]:
    """A mapped file stays mapped beside weights that were laid out anew; the system takes such pages back when it must."""
    held = {key.removeprefix("weights "): size for key, size in projected.items() if key.startswith("weights ")}
    anew = any(name != HOST and device_of(name) == HOST for name in held)
    if not anew or config.load_mode not in _MAPPED or any(device_of(name) != HOST for name in held):
        return []
    rest = max(0, model.weights_bytes - held.get(HOST, 0))
    return [Part(cause="file pages", device=HOST, n_bytes=rest, basis="at most")]


def _split_state(model: ModelSpec, config: RunConfig, parts: list[Part]) -> list[Part]:
    states: dict[str, int] = defaultdict(int)
    cached = [part for part in parts if part.cause == "kv"]
    state = sum(part.recurrent for part in cache_by_layer(model, config))
    if not state or any(part.cause == "recurrent" for part in parts) or len(cached) != 1:
        return parts
    whole = cached[0]
    assert whole.n_bytes is not None
    if whole.n_bytes < state:
        return parts
    states[whole.device] = state
    rest = [part for part in parts if part is not whole]
    return [
        *rest,
        Part(cause="kv", device=whole.device, n_bytes=whole.n_bytes - state, basis="asked"),
        Part(cause="recurrent", device=whole.device, n_bytes=state, basis="exact"),
    ]


def _weight_parts(model: ModelSpec, config: RunConfig, placement: Placement, machine: HardwareProfile | None) -> list[Part]:
    """Bytes of tensors; what a device's alignment adds is below one part in ten thousand."""
    sums: dict[str, int] = defaultdict(int)
    for i, layer in enumerate(model.layers):
        experts = layer.expert_bytes if i < config.n_cpu_moe else 0
        sums[placement.blocks[i]] += layer.weight_bytes - experts
        sums[HOST] += experts
    output = model.output_bytes
    if copies_tied_output(model, placement, machine):
        output = model.token_embd_bytes
    sums[placement.output] += output
    blocks = sum(layer.weight_bytes for layer in model.layers)
    sums[HOST] += model.weights_bytes - blocks - model.output_bytes
    return [Part(cause="weights", device=device, n_bytes=size, basis="exact") for device, size in sums.items() if size]


def _cache_parts(model: ModelSpec, config: RunConfig, placement: Placement, *, unified: bool) -> list[Part]:
    basis: Basis = "exact" if model.kv_basis == "exact" else "at most"
    if not model.is_encoder_only and kv_bytes(model, config, unified=unified) is None:
        return [Part(cause="kv", device=HOST, n_bytes=None, basis=basis)]
    kv: dict[str, int] = defaultdict(int)
    state: dict[str, int] = defaultdict(int)
    for i, part in enumerate(cache_by_layer(model, config, unified=unified)):
        device = HOST if config.no_kv_offload else placement.blocks[i]
        kv[device] += part.kv or 0
        state[device] += part.recurrent
    parts = [Part(cause="kv", device=device, n_bytes=size, basis=basis) for device, size in kv.items() if size]
    parts += [Part(cause="recurrent", device=device, n_bytes=size, basis="exact") for device, size in state.items() if size]
    return parts or [Part(cause="kv", device=HOST, n_bytes=0, basis="exact")]


def _compute_parts(
    model: ModelSpec, config: RunConfig, placement: Placement, front_end: FrontEnd, *, unified: bool
) -> list[Part]:
    geometry = settle_geometry(model, config, unified=unified)
    if geometry is None:
        return [Part(cause="compute", device=HOST, n_bytes=None, basis="at least")]
    floor = compute_floor(model, config, geometry, front_end)
    return [Part(cause="compute", device=placement.output, n_bytes=floor, basis="at least")]


def _extra_parts(config: RunConfig, placement: Placement, projector_bytes: int | None, draft: ModelSpec | None) -> list[Part]:
    """A projector's tensors, and a draft model's weights and cache: both go where the model's output goes."""
    parts = []
    if projector_bytes is not None:
        parts.append(Part(cause="projector", device=placement.output, n_bytes=projector_bytes, basis="at least"))
    if draft is not None:
        own = RunConfig(ctx_size=config.ctx_size, parallel=config.parallel, ubatch_size=config.ubatch_size)
        cache = kv_bytes(draft, own)
        whole = None if cache is None else draft.weights_bytes + cache
        parts.append(Part(cause="draft", device=placement.output, n_bytes=whole, basis="at least"))
    return parts


def _describe_rest(
    model: ModelSpec, config: RunConfig, placement: Placement, front_end: FrontEnd, *, asked: bool
) -> tuple[str, ...]:
    notes = list(model.notes)
    if not asked:
        notes.append("Compute buffers are shown as the least they take; llama.cpp was not asked.")
    if placement.assumed_split and not asked:
        notes.append("The devices' free memory is not known: equal shares were assumed.")
    if front_end == "llama-cpp-python" and model.n_vocab:
        scores = format_bytes(min(config.batch_size, config.ctx_size or config.batch_size) * model.n_vocab * 4)
        notes.append(f"llama-cpp-python also reserves {scores} for scores, touched only when all logits are asked for.")
    if front_end == "llama-server":
        notes.append("llama-server may keep up to 8 GiB of former prompts in main memory (--cache-ram).")
    return tuple(notes)
