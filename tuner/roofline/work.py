"""How much work one batch is: bytes of weights touched and operations, by device and format.

The counts are those of the roofline model (Williams, Waterman, Patterson: Roofline, 2009): a multiplication and an addition for
each weight and token, and each weight read once for all tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tuner.memory.record import HOST
from tuner.model.ggml import TENSOR_TYPES
from tuner.roofline.layout import FormatBytes, History, Layout
from tuner.runconfig import pad256

OP_OFFLOAD_TOKENS: Final = 32
"""From so many tokens on a device computes weights of main memory (GGML_OP_OFFLOAD_MIN_BATCH in llama.cpp)."""

STATE_OPERATIONS: Final = 5
"""For each state element and token: decay, outer product, their sum, read-out, its sum (ggml-cpu/ops.cpp, ssm_scan)."""

TILE: Final = 64
"""Tokens and positions that a tile of the processor's flash attention has, and tokens from which on it works in tiles
(GGML_FA_TILE_Q and _KV in ggml-cpu)."""

CHUNKS: Final = 4
"""Parts that ggml cuts the rows of flash attention into, for each thread."""

_BITS: Final = {kind.name: 8 * kind.size / kind.block for kind in TENSOR_TYPES.values()}


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one sequence within a batch."""

    tokens: int
    """How many."""
    end: int
    """Positions of the sequence in use once they are computed."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens computed at once."""

    segments: tuple[Segment, ...]
    """By sequence."""
    outputs: int
    """Tokens whose logits are wanted."""

    @property
    def tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)


class WeightWork(msgspec.Struct, frozen=True, kw_only=True):
    """Multiplying matrices of one format."""

    device: str
    """Where it is computed."""
    format: str
    """Tensor type."""
    n_bytes: float
    """Bytes touched."""
    tokens: float
    """Tokens that meet each touched matrix."""
    fetched: float = 0.0
    """Of the bytes, those that cross from main memory first."""
    routed: bool = False
    """Experts that a router chose."""

    @property
    def operations(self) -> float:
        """2 × elements × tokens."""
        return 2 * self.n_bytes * 8 / bits_of(self.format) * self.tokens


class HistoryWork(msgspec.Struct, frozen=True, kw_only=True):
    """Looking back, or carrying a state along."""

    device: str
    """Where it is computed."""
    operations: float
    """Multiplications and additions."""
    n_bytes: float
    """Bytes of K, V or state read (a state is written as well)."""
    head_size: int = 0
    """Length of the keys, elements; 0 where there are none."""
    tokens: float = 1.0
    """Tokens of one sequence computed at once: each sequence looks back by itself."""
    heads: int = 0
    """Query heads that are worked through in tiles; 0 where none are."""


def bits_of(form: str) -> float:
    """Bits of one element of a tensor type; 16 for one that nobody knows."""
    return _BITS.get(form, 16.0)


def experts_touched(n_expert: int, used: int, tokens: float) -> float:
    """Experts of a layer that `tokens` tokens need, each drawing `used` of `n_expert` evenly: E × (1 − (1 − k/E)^n).

    The expectation of a draw without preference; a router that prefers some experts touches fewer.
    """
    missed: float = (1 - min(used, n_expert) / n_expert) ** tokens
    return n_expert * (1 - missed)


def count_weights(layout: Layout, tokens: int, outputs: int) -> tuple[WeightWork, ...]:
    """Matrix work of a batch; the output matrix only meets the tokens whose logits are wanted."""
    return tuple(_list_weights(layout, tokens, outputs))


def sum_weights(layout: Layout) -> dict[str, float]:
    """Device → bytes of all matrices there, touched or not."""
    sums: dict[str, float] = {}
    for group in (layout.dense, layout.experts, layout.late, layout.late_experts):
        for (device, _), size in group.items():
            sums[device] = sums.get(device, 0.0) + size
    if layout.output is not None:
        device, _, size = layout.output
        sums[device] = sums.get(device, 0.0) + size
    return sums


def _list_weights(layout: Layout, tokens: int, outputs: int) -> Iterator[WeightWork]:
    for (device, form), size in layout.dense.items():
        yield _place(layout, device, form, n_bytes=size, tokens=tokens, batch=tokens)
    yield from _list_experts(layout, layout.experts, tokens)
    if outputs:
        for (device, form), size in layout.late.items():
            yield _place(layout, device, form, n_bytes=size, tokens=outputs, batch=outputs)
        yield from _list_experts(layout, layout.late_experts, outputs)
    if layout.output is not None and outputs:
        device, form, size = layout.output
        yield _place(layout, device, form, n_bytes=size, tokens=outputs, batch=outputs)


def _list_experts(layout: Layout, experts: FormatBytes, tokens: int) -> Iterator[WeightWork]:
    if not experts:
        return
    touched = experts_touched(layout.n_expert, layout.n_expert_used, tokens)
    each = tokens * min(layout.n_expert_used, layout.n_expert) / touched
    for (device, form), size in experts.items():
        placed = _place(layout, device, form, n_bytes=size * touched / layout.n_expert, tokens=each, batch=tokens)
        yield msgspec.structs.replace(placed, routed=True)


def _place(layout: Layout, device: str, form: str, *, n_bytes: float, tokens: float, batch: int) -> WeightWork:
    if device == HOST and layout.helper is not None and batch >= OP_OFFLOAD_TOKENS:
        return WeightWork(device=layout.helper, format=form, n_bytes=n_bytes, tokens=tokens, fetched=n_bytes)
    return WeightWork(device=device, format=form, n_bytes=n_bytes, tokens=tokens)


def count_history(layout: Layout, batch: Batch) -> tuple[HistoryWork, ...]:
    """Attention of a batch: every token looks at all cells in use, padded to 256 (llama-kv-cache.cpp, get_n_kv).

    The processor's flash attention skips those that the mask hides (ggml-cpu/ops.cpp), so only what a token may see counts.
    """
    return tuple(_attend(history, batch) for history in layout.histories)


def _attend(history: History, batch: Batch) -> HistoryWork:
    positions = [_positions(history, segment.end) for segment in batch.segments]
    looks = sum(_count_looks(history, segment, alone=batch.tokens == 1) for segment in batch.segments)
    tokens = batch.tokens / len(batch.segments)
    return HistoryWork(
        device=history.device,
        operations=looks * history.operations,
        n_bytes=sum(positions) * history.n_bytes,
        head_size=history.head_size,
        tokens=tokens,
        heads=history.heads if history.tiles and tokens >= TILE else 0,
    )


def _count_looks(history: History, segment: Segment, *, alone: bool) -> float:
    """Pairs of a token and a position."""
    if not history.skips:
        return segment.tokens * _positions(history, segment.end)
    window = history.window_cells if alone else _widen_window(history)
    return count_seen(segment.tokens, segment.end, alone=alone, window=window, tiles=history.tiles)


def _widen_window(history: History) -> int | None:
    """What is hidden behind the window is skipped, but for the tile that it begins in."""
    if history.visible is None or history.window_cells is None:
        return history.window_cells
    return min(history.window_cells, history.visible + (TILE if history.tiles else 0))


def count_seen(tokens: int, end: int, *, alone: bool, window: int | None = None, tiles: bool = False) -> float:
    """Pairs of a token and a position it may see, where the last of `tokens` is at position `end`.

    From 512 cells on, a token alone has the padded cells shared out to the threads, the slowest of which has a full share. In
    `tiles`, a tile that any token may look into is computed wholly.
    """
    seen = float(pad256(end)) if alone and end > 256 else end - (tokens - 1) / 2
    if tiles and tokens >= TILE:
        seen = min(float(pad256(end)), end - (tokens - TILE) / 2)
    return tokens * (seen if window is None else min(seen, window))


def count_waste(tokens: int, heads: int, threads: int) -> float:
    """How many times the rows that are wanted flash attention computes when it works in tiles.

    ggml cuts the rows of all heads into equal parts, four for each thread; a part that ends within a tile leaves a tile on
    each side, and every tile is computed at full size (ggml-cpu/ops.cpp, ggml_compute_forward_flash_attn_ext_f16).
    """
    rows = tokens * heads
    if tokens < TILE or not rows:
        return 1.0
    size = rows if threads <= 1 else -(-rows // (CHUNKS * threads))
    tiles = heads * -(-tokens // TILE)
    for cut in range(size, rows, size):
        within = cut % tokens
        tiles += -(-within // TILE) + -(-(tokens - within) // TILE) - -(-tokens // TILE) if within else 0
    return tiles * TILE / rows


def _positions(history: History, end: int) -> int:
    used = pad256(end)
    return used if history.window_cells is None else min(used, history.window_cells)


def count_states(layout: Layout, batch: Batch) -> tuple[HistoryWork, ...]:
    """Recurrent layers: a state of fixed size for each sequence, read and written once a batch, changed by each token."""
    return tuple(
        HistoryWork(
            device=device,
            operations=float(STATE_OPERATIONS * elements * batch.tokens),
            n_bytes=float(2 * 4 * elements * len(batch.segments)),
        )
        for device, elements in layout.state_elements.items()
    )


def cut_prompts(prompt: int, depth: int, slots: int, *, batch: int, ubatch: int) -> tuple[Batch, ...]:
    """Micro-batches of all slots' prompts, read one after another: cut at `batch` tokens, these at `ubatch` (llama-batch.cpp).

    Only the last token of each prompt gives logits.
    """
    total, found = prompt * slots, []
    for start in range(0, total, batch):
        stop = min(start + batch, total)
        found += [_cut(a, min(a + ubatch, stop), prompt, depth) for a in range(start, stop, ubatch)]
    return tuple(found)


def _cut(start: int, stop: int, prompt: int, depth: int) -> Batch:
    segments, outputs = [], 0
    for slot in range(start // prompt, (stop - 1) // prompt + 1):
        first, last = max(start, slot * prompt), min(stop, (slot + 1) * prompt)
        outputs += last == (slot + 1) * prompt
        segments.append(Segment(tokens=last - first, end=depth + last - slot * prompt))
    return Batch(segments=tuple(segments), outputs=outputs)


def step_batch(history: int, slots: int) -> Batch:
    """One decode step: a token for each slot, whose `history` positions are in the cache already."""
    return Batch(segments=(Segment(tokens=1, end=history + 1),) * slots, outputs=slots)
