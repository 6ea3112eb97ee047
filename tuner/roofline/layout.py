"""What of a model lies where, by format: the part of a prediction that does not change from batch to batch.

Follows llama.cpp: layers count from the end (llama-model.cpp, load_tensors), the KV cache lies with its layer unless it is kept
in main memory (llama-kv-cache.cpp), the input embedding is a look-up of rows and no matrix, and a tied embedding is read once a
step as the output matrix.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from tuner.errors import BadInputError
from tuner.hardware.record import BuildFacts, CpuFacts, DeviceFacts, HardwareProfile, LimitFacts
from tuner.memory.cache import attends_flash, row_bytes, settle_geometry
from tuner.memory.placement import Placement, place_layers
from tuner.memory.record import HOST
from tuner.model.spec import LayerSpec, ModelSpec
from tuner.roofline.ceilings import Ceilings
from tuner.runconfig import RunConfig

_OWN_CACHE: Final = frozenset({"attention", "sliding"})
_LOOKING: Final = _OWN_CACHE | {"shared"}
_TILED: Final = frozenset({"f16", "f32"})
_SILENT_HINT: Final = "Measure it instead: `rooftune measure`."

FormatBytes = dict[tuple[str, str], float]
"""(device, format) → bytes."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that look back in the same way."""

    device: str
    """Where their KV cache lies."""
    window_cells: int | None
    """Positions they look back at, at most; None: all."""
    visible: int | None
    """Of these positions, those that the window lets one token see; None: all."""
    operations: float
    """Multiplications and additions of one token for one position, over these layers."""
    n_bytes: float
    """Bytes of K and V of one position, over these layers."""
    head_size: int = 0
    """Length of their keys, elements; 0: unknown."""
    heads: int = 0
    """Query heads of one layer, the most of these; 0: unknown."""
    tiles: bool = False
    """Large batches are worked through in square tiles (the processor's flash attention over an unquantised cache)."""
    skips: bool = False
    """Positions that a token may not see cost nothing (the processor's flash attention leaves them out)."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """One model under one configuration."""

    dense: FormatBytes
    """Matrices that every token meets, the output matrix left out, bytes."""
    experts: FormatBytes
    """Matrices of all routed experts, bytes."""
    late: FormatBytes
    """The last layer's matrices behind its attention: only tokens whose logits are wanted go on from there, bytes."""
    late_experts: FormatBytes
    """The last layer's routed experts, which the same tokens meet, bytes."""
    output: tuple[str, str, float] | None
    """Device, format and bytes of the output matrix; None: the file has none."""
    n_expert: int
    """Routed experts of a layer; 0 without any."""
    n_expert_used: int
    """Experts that one token passes."""
    histories: tuple[History, ...]
    """What looks back at the history."""
    state_elements: dict[str, int]
    """Device → f32 elements of recurrent state of one sequence."""
    layers: dict[str, int]
    """Device → layers it computes."""
    output_device: str
    """Where the output matrix is."""
    jumps: dict[str, int]
    """Device → how many times a step's hidden state crosses to or from it."""
    expert_trips: dict[str, int]
    """Device → further crossings because experts stay in main memory."""
    cache_trips: dict[str, int]
    """Device → further crossings because the KV cache stays in main memory."""
    width: int
    """Hidden size, elements."""
    n_vocab: int
    """Rows of logits."""
    helper: str | None
    """Device that computes big batches of weights in main memory (op_offload); None: no device does."""


def lay_out(model: ModelSpec, config: RunConfig, ceilings: Ceilings) -> Layout:
    """Where everything is on the devices that `ceilings` know. Raises BadInputError where the file tells too little."""
    if model.n_layer is None or not model.layers:
        raise BadInputError(f"{model.name} does not say how many layers it has, so nothing can be predicted.", _SILENT_HINT)
    placement = place_layers(model, config, imagine_machine(ceilings))
    dense, experts = _sum_matrices(model, config, placement)
    late, late_experts = _take_last(model, config, placement, dense, experts)
    return Layout(
        dense=dense,
        experts=experts,
        late=late,
        late_experts=late_experts,
        output=_find_output(model, placement),
        n_expert=model.n_expert,
        n_expert_used=model.n_expert_used or 1,
        histories=_list_histories(model, config, placement),
        state_elements=_sum_states(model, placement),
        layers=dict(Counter(placement.blocks)),
        output_device=placement.output,
        jumps=_count_jumps(placement),
        expert_trips=_count_trips(placement, [bool(each.expert_bytes) for each in model.layers[: config.n_cpu_moe]]),
        cache_trips=_count_trips(placement, [config.no_kv_offload and each.kind in _LOOKING for each in model.layers]),
        width=model.n_embd or 0,
        n_vocab=model.n_vocab or 0,
        helper=_find_helper(config, placement),
    )


def imagine_machine(ceilings: Ceilings) -> HardwareProfile:
    """A machine of which nothing is known but its ceilings: devices with figures count, whatever else there is."""
    devices = tuple(
        DeviceFacts(name=each.device, backend=each.device.rstrip("0123456789"), free_bytes=each.memory_bytes)
        for each in ceilings.devices
        if each.device != HOST
    )
    threads = max((each.threads for each in ceilings.fixed if each.device == HOST), default=1)
    return HardwareProfile(
        cpu=CpuFacts(physical_cores=threads, logical_cpus=threads),
        limits=LimitFacts(usable_threads=threads, usable_physical=threads),
        devices=devices,
        build=BuildFacts(supports_gpu_offload=bool(devices), devices=devices),
    )


def _sum_matrices(model: ModelSpec, config: RunConfig, placement: Placement) -> tuple[FormatBytes, FormatBytes]:
    dense: FormatBytes = defaultdict(float)
    experts: FormatBytes = defaultdict(float)
    for i, layer in enumerate(model.layers):
        for form, size in layer.matrices or _assume_matrices(model, layer):
            dense[placement.blocks[i], form] += size
        device = HOST if i < config.n_cpu_moe else placement.blocks[i]
        for form, size in layer.expert_matrices or _share_out(model, layer.expert_bytes):
            experts[device, form] += size
    return dict(dense), dict(experts)


def _take_last(
    model: ModelSpec, config: RunConfig, placement: Placement, dense: FormatBytes, experts: FormatBytes
) -> tuple[FormatBytes, FormatBytes]:
    """Move out of the sums what llama.cpp computes for wanted logits only (inp_out_ids in llama-graph.cpp)."""
    number, last = len(model.layers) - 1, model.layers[-1]
    device = HOST if number < config.n_cpu_moe else placement.blocks[number]
    late: FormatBytes = {(placement.blocks[number], form): float(size) for form, size in last.feed_forward}
    late_experts: FormatBytes = {(device, form): float(size) for form, size in last.expert_matrices}
    for sums, taken in ((dense, late), (experts, late_experts)):
        for key, size in taken.items():
            sums[key] -= size
            if sums[key] <= 0:
                del sums[key]
    return late, late_experts


def _assume_matrices(model: ModelSpec, layer: LayerSpec) -> list[tuple[str, float]]:
    """Where nobody told formats block by block, each block has its part of the file's."""
    if layer.expert_matrices:
        return []
    if model.block_bytes:
        return _share_out(model, layer.weight_bytes - layer.expert_bytes)
    embedding = 0 if model.tied_embeddings else model.token_embd_bytes
    rest = model.weights_bytes - embedding - model.output_bytes - model.mtp_bytes
    return _share_out(model, max(0, rest) / len(model.layers))


def _share_out(model: ModelSpec, n_bytes: float) -> list[tuple[str, float]]:
    total = sum(size for _, size in model.bytes_by_type)
    return [(form, n_bytes * size / total) for form, size in model.bytes_by_type] if n_bytes and total else []


def _find_output(model: ModelSpec, placement: Placement) -> tuple[str, str, float] | None:
    usual = model.bytes_by_type[0][0] if model.bytes_by_type else "F16"
    if model.output_bytes:
        return placement.output, model.output_type or usual, model.output_bytes
    if model.tied_embeddings and model.token_embd_bytes:
        return placement.output, model.token_embd_type or usual, model.token_embd_bytes
    return None


def _list_histories(model: ModelSpec, config: RunConfig, placement: Placement) -> tuple[History, ...]:
    window = _find_window(model, config)
    flash = attends_flash(model, config)
    tiles = config.cache_type_k == config.cache_type_v and config.cache_type_k in _TILED
    sums: dict[tuple[str, int | None, int], list[float]] = {}
    for i, layer in enumerate(model.layers):
        if layer.kind not in _LOOKING:
            continue
        source = layer if layer.kind in _OWN_CACHE else _find_usual_cache(model)
        if source is None:
            continue
        device = HOST if config.no_kv_offload else placement.blocks[i]
        cells = window if source.kind == "sliding" else None
        group = sums.setdefault((device, cells, source.key_length or 0), [0.0, 0.0, 0.0])
        group[0] += _operations_of(model, layer, source)
        group[1] += _bytes_of(model, source, config)
        group[2] = max(group[2], layer.n_head or 0)
    return tuple(
        History(
            device=device,
            window_cells=cells,
            visible=model.n_swa if cells is not None else None,
            operations=operations,
            n_bytes=n_bytes,
            head_size=head_size,
            heads=int(heads),
            tiles=flash and tiles and device == HOST,
            skips=flash and device == HOST,
        )
        for (device, cells, head_size), (operations, n_bytes, heads) in sums.items()
    )


def _find_usual_cache(model: ModelSpec) -> LayerSpec | None:
    """Layers that share a cache look back as most of the others do."""
    counted = Counter(layer.kind for layer in model.layers if layer.kind in _OWN_CACHE)
    if not counted:
        return None
    usual = counted.most_common(1)[0][0]
    return next(layer for layer in model.layers if layer.kind == usual)


def _operations_of(model: ModelSpec, layer: LayerSpec, source: LayerSpec) -> float:
    """2 × query heads × (key length + value length): one multiplication and one addition for each element of q·k and of p·v."""
    if layer.n_head is None or source.key_length is None or source.value_length is None:
        raise BadInputError(f"{model.name} does not say how wide its attention is, so nothing can be predicted.", _SILENT_HINT)
    return 2.0 * layer.n_head * (source.key_length + source.value_length)


def _bytes_of(model: ModelSpec, source: LayerSpec, config: RunConfig) -> float:
    keys, values = source.k_elements, source.v_elements
    if keys is None or values is None:
        raise BadInputError(f"{model.name} does not say how large its KV cache is, so nothing can be predicted.", _SILENT_HINT)
    return float(row_bytes(config.cache_type_k, keys) + row_bytes(config.cache_type_v, values))


def _find_window(model: ModelSpec, config: RunConfig) -> int | None:
    """Cells that a sliding layer's cache has (llama-kv-cache-iswa.cpp); it looks at all that are in use."""
    if model.n_swa is None or config.swa_full:
        return None
    geometry = settle_geometry(model, config if config.ctx_size or model.context_length else config.replace(ctx_size=2**20))
    return geometry.window_cells if geometry else None


def _sum_states(model: ModelSpec, placement: Placement) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for i, layer in enumerate(model.layers):
        if layer.recurrent_state:
            sums[placement.blocks[i]] += layer.recurrent_state
    return dict(sums)


def _count_jumps(placement: Placement) -> dict[str, int]:
    """The hidden state goes from main memory through all blocks to the output; logits come back."""
    jumps: Counter[str] = Counter()
    for here, there in pairwise([HOST, *placement.blocks, placement.output, HOST]):
        jumps.update({here, there} - {HOST} if here != there else ())
    return dict(jumps)


def _count_trips(placement: Placement, stays_behind: Sequence[bool]) -> dict[str, int]:
    """There and back for each layer of a device whose work is partly in main memory."""
    trips: Counter[str] = Counter()
    for device, stays in zip(placement.blocks, stays_behind, strict=False):
        trips[device] += 2 if stays and device != HOST else 0
    return {device: count for device, count in trips.items() if count}


def _find_helper(config: RunConfig, placement: Placement) -> str | None:
    """ggml-backend.cpp: the first device whose backend takes over operations on weights in main memory; RPC's does not."""
    if not config.op_offload:
        return None
    return next((name for name in placement.devices if not name.startswith("RPC")), None)
