"""What attending to the history costs: the difference between two lengths of it, and nothing else."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tuner.calibration.plan import CACHES, HEAD_SIZES
from tuner.calibration.timed import Cache, Timed
from tuner.roofline.ceilings import AttentionCeiling, Figure

SMALLEST_OP_S: Final = 1e-15
"""An attention figure is never below this: a difference of two times may be lost in their noise."""


def fit_attention(timed: Sequence[Timed]) -> tuple[AttentionCeiling, ...]:
    """Seconds per operation, from batches of one model that differ in the length of their history only."""
    pairs: dict[tuple[str, Cache, int, int, int], list[Timed]] = defaultdict(list)
    for each in timed:
        if each.history:
            pairs[each.device, each.cache, each.shape.head_size, each.threads, each.tokens].append(each)
    return tuple(
        AttentionCeiling(
            device=device,
            cache_type_k=cache[0],
            cache_type_v=cache[1],
            flash_attn=cache[2],
            threads=threads,
            tokens=tokens,
            head_size=head_size,
            seconds_per_op=_find_slope(sorted(pair, key=lambda each: each.depth)),
        )
        for (device, cache, head_size, threads, tokens), pair in sorted(pairs.items())
        if len(pair) > 1
    )


def find_op(attention: Sequence[AttentionCeiling], threads: int, tokens: int) -> float:
    """Seconds per operation with the usual cache; the nearest number of tokens will do for so small a share of the time."""
    known = [each for each in attention if each.threads == threads and _cache_of(each) == CACHES[0]]
    known = [each for each in known if each.head_size == HEAD_SIZES[0]] or known
    if not known:
        return 0.0
    return min(known, key=lambda each: abs(each.tokens - tokens)).seconds_per_op.value


def _cache_of(each: AttentionCeiling) -> Cache:
    return each.cache_type_k, each.cache_type_v, each.flash_attn


def _find_slope(pair: Sequence[Timed]) -> Figure:
    low, high = pair[0], pair[-1]
    operations = high.operations - low.operations
    slopes = [(b - a) / operations for a, b in zip(low.seconds, high.seconds, strict=False)]
    value = (statistics.median_low(high.seconds) - statistics.median_low(low.seconds)) / operations
    value = max(SMALLEST_OP_S, value)
    return Figure(value=value, spread=find_spread(slopes, value), marked=high.marked or low.marked)


def find_spread(values: Sequence[float], middle: float) -> float:
    """Relative standard deviation of the middle of such values."""
    if len(values) < 2 or middle <= 0:
        return 0.0
    return float(statistics.stdev(values) / middle / len(values) ** 0.5)
