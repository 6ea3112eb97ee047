"""KV bytes written out from the formulas once more, independently of the product's own memory arithmetic."""

from __future__ import annotations

from tuner.model import ModelSpec

F16_BYTES = 2
F32_BYTES = 4


def pad256(cells: int) -> int:
    return -(-cells // 256) * 256


def kv_bytes(spec: ModelSpec, n_ctx: int, *, n_ubatch: int = 512, swa_full: bool = False) -> int:
    """f16 cache of one sequence."""
    total = 0
    for layer in spec.layers:
        cells = pad256(n_ctx)
        if layer.kind == "sliding" and not swa_full:
            assert spec.n_swa is not None
            cells = pad256(min(cells, spec.n_swa + n_ubatch))
        assert layer.k_elements is not None
        assert layer.v_elements is not None
        total += cells * F16_BYTES * (layer.k_elements + layer.v_elements)
    return total


def state_bytes(spec: ModelSpec) -> int:
    """f32 state of one sequence."""
    return sum(F32_BYTES * layer.recurrent_state for layer in spec.layers)
