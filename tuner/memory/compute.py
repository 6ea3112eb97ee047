"""What can be said of compute buffers without asking llama.cpp: a bound from below, and the output buffer, which is exact.

Scratch memory is reused along the graph, so the largest of its known users bounds it, not their sum.
"""

from __future__ import annotations

from tuner.memory.cache import Geometry, attends_flash
from tuner.memory.record import FrontEnd
from tuner.model.spec import ModelSpec
from tuner.runconfig import RunConfig

_F32 = 4
_F16 = 2


def attention_scratch_bytes(*, cells: int, ubatch: int, n_head: int) -> int:
    """Scores of one block without flash attention: n_ctx × n_ubatch × n_head × 4, bytes."""
    return cells * ubatch * n_head * _F32


def compute_floor(model: ModelSpec, config: RunConfig, geometry: Geometry, front_end: FrontEnd) -> int:
    """The least that compute buffers take, bytes: the largest of logits, attention scores and attention mask."""
    return max(
        _logits_bytes(model, config, geometry, front_end),
        _attention_bytes(model, config, geometry),
        _hidden_bytes(model, geometry),
    )


def output_buffer_bytes(model: ModelSpec, config: RunConfig) -> int | None:
    """Logits of one token per slot, kept in main memory outside the compute buffers, bytes; None without a vocabulary."""
    if model.is_encoder_only:
        return 0
    return None if model.n_vocab is None else model.n_vocab * max(1, config.parallel) * _F32


def _logits_bytes(model: ModelSpec, config: RunConfig, geometry: Geometry, front_end: FrontEnd) -> int:
    """llama-server keeps room for one output per slot; the C API's default, which `Llama()` leaves, for a whole batch."""
    if model.is_encoder_only or model.n_vocab is None:
        return 0
    outputs = max(1, config.parallel) if front_end == "llama-server" else geometry.batch
    return min(geometry.ubatch, outputs) * model.n_vocab * _F32


def _attention_bytes(model: ModelSpec, config: RunConfig, geometry: Geometry) -> int:
    found = 0
    for layer in model.layers:
        if layer.kind not in {"attention", "sliding"}:
            continue
        cells = geometry.window_cells if layer.kind == "sliding" else geometry.cells
        if attends_flash(model, config):
            found = max(found, cells * geometry.ubatch * _F16)
        else:
            found = max(found, attention_scratch_bytes(cells=cells, ubatch=geometry.ubatch, n_head=layer.n_head or 0))
    return found


def _hidden_bytes(model: ModelSpec, geometry: Geometry) -> int:
    return (model.n_embd or 0) * geometry.ubatch * _F32
