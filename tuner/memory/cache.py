"""The KV cache and the recurrent state, to the byte, by llama.cpp's own rules.

A cache is allocated whole when the context is created; it does not grow while tokens are written.
Formulas: llama-kv-cache.cpp (cells × rows per block, per stream), llama-kv-cache-iswa.cpp (cells of a window),
llama-memory-recurrent.cpp (f32 state per sequence).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tuner.model.spec import LayerSpec, ModelSpec
from tuner.runconfig import QUANTISED_CACHE_TYPES, RunConfig, pad256

_BLOCKS: Final = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""Cache type → values per block, bytes per block."""

_F32: Final = 4


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """Cells and batches as llama.cpp settles them."""

    cells: int
    """Cells of one stream's cache for blocks that attend to everything."""
    window_cells: int
    """Cells of one stream's cache for sliding-window blocks."""
    streams: int
    """Caches side by side: one per slot, or one in all when unified."""
    batch: int
    """Tokens of one decode call at most."""
    ubatch: int
    """Tokens computed at once at most."""

    @property
    def context(self) -> int:
        """Cells over all slots."""
        return self.cells * self.streams


class CacheBytes(msgspec.Struct, frozen=True, kw_only=True):
    """One block's share, over all slots."""

    kv: int | None
    """KV cache and index cache, bytes; None: unknown."""
    recurrent: int
    """Recurrent state, bytes; independent of the context."""


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache for one context and one type."""

    ctx_size: int
    """Context asked for, tokens over all slots."""
    cache_type: str
    """Type of K and V."""
    kv_bytes: int | None
    """Bytes; None: unknown."""


def row_bytes(cache_type: str, elements: int) -> int:
    """Bytes of one cache row; a part of a block counts as a whole one."""
    block, size = _BLOCKS[cache_type]
    return -(-elements // block) * size


def settle_geometry(model: ModelSpec, config: RunConfig, *, unified: bool = False) -> Geometry | None:
    """Cells and batches of `config`; None when neither it nor the file tells a context."""
    ctx = config.ctx_size or model.context_length
    if not ctx:
        return None
    slots = max(1, config.parallel)
    batch = min(ctx, config.batch_size)
    ubatch = min(batch, config.ubatch_size or batch)
    cells = pad256(ctx) if unified else pad256(pad256(ctx) // slots)
    return Geometry(
        cells=cells,
        window_cells=_count_window_cells(model, config, cells=cells, sequences=slots if unified else 1, ubatch=ubatch),
        streams=1 if unified else slots,
        batch=batch,
        ubatch=ubatch,
    )


def _count_window_cells(model: ModelSpec, config: RunConfig, *, cells: int, sequences: int, ubatch: int) -> int:
    if model.n_swa is None or config.swa_full:
        return cells
    return pad256(min(cells, model.n_swa * sequences + ubatch))


def attends_flash(model: ModelSpec, config: RunConfig) -> bool:
    """Whether flash attention runs, taking "auto" as on: llama.cpp's outcome wherever the device has the kernel."""
    return config.flash_attn != "off" and not model.flash_attn_forced_off


def cache_by_layer(model: ModelSpec, config: RunConfig, *, unified: bool = False) -> tuple[CacheBytes, ...]:
    """KV and state of each block of the main context, in order; () for models that keep none."""
    if model.is_encoder_only:
        return ()
    geometry = settle_geometry(model, config, unified=unified)
    return tuple(
        CacheBytes(
            kv=None if model.kv_basis == "unknown" or geometry is None else _layer_kv(model, layer, config, geometry),
            recurrent=layer.recurrent_state * _F32 * max(1, config.parallel),
        )
        for layer in model.layers
    )


def kv_bytes(model: ModelSpec, config: RunConfig, *, unified: bool = False) -> int | None:
    """KV cache over all blocks and slots, bytes; None when the file does not tell enough.

    Settings count as they are: the default of `swa_full` differs between front ends (see `default_config`).
    """
    if model.is_encoder_only:
        return 0
    if model.kv_basis == "unknown" or not model.layers:
        return None
    return _sum_known(part.kv for part in cache_by_layer(model, config, unified=unified))


def recurrent_bytes(model: ModelSpec, config: RunConfig) -> int:
    """Recurrent state over all blocks and slots, f32, bytes; does not grow with the context."""
    return sum(part.recurrent for part in cache_by_layer(model, config))


def kv_table(
    model: ModelSpec, contexts: Sequence[int], cache_types: Sequence[str], *, config: RunConfig | None = None
) -> tuple[TableRow, ...]:
    """The KV cache for each context and cache type (K and V alike), other settings as in `config`."""
    base = config or RunConfig()
    return tuple(
        TableRow(ctx_size=ctx, cache_type=kind, kv_bytes=kv_bytes(model, use_cache_type(base.replace(ctx_size=ctx), kind)))
        for ctx in contexts
        for kind in cache_types
    )


def use_cache_type(config: RunConfig, cache_type: str) -> RunConfig:
    """`config` with K and V of that type, and with the flash attention that a quantised V needs."""
    needs_flash = cache_type in QUANTISED_CACHE_TYPES and config.flash_attn == "off"
    flash = "on" if needs_flash else config.flash_attn
    return config.replace(cache_type_k=cache_type, cache_type_v=cache_type, flash_attn=flash)


def _layer_kv(model: ModelSpec, layer: LayerSpec, config: RunConfig, geometry: Geometry) -> int | None:
    if layer.kind not in {"attention", "sliding"}:
        return 0
    keys, values = layer.k_elements, layer.v_elements
    if keys is None or values is None:
        return None
    if layer.caches_values and not attends_flash(model, config):
        values = values if model.v_elements_max is None else model.v_elements_max
    row = row_bytes(config.cache_type_k, keys) + row_bytes(config.cache_type_v, values)
    index = row_bytes(config.cache_type_k, layer.index_k_elements) + row_bytes(config.cache_type_v, layer.index_v_elements)
    cells = geometry.window_cells if layer.kind == "sliding" else geometry.cells
    return geometry.streams * cells * (row + index)


def _sum_known(parts: Iterable[int | None]) -> int | None:
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
