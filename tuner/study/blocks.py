"""Settings that act on each other are searched together, the others one after another; long domains coarse first.

Values only; nothing here knows what was measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

GROUPS: Final = (
    ("n_gpu_layers", "n_cpu_moe", "split_mode", "tensor_split", "main_gpu", "no_kv_offload"),
    ("threads",),
    ("threads_batch",),
    ("flash_attn", "cache_type_k", "cache_type_v"),
    ("batch_size", "ubatch_size"),
    ("parallel", "ctx_size"),
)
"""In the order in which they are searched; what is in no group comes last, each setting on its own."""
COARSE: Final = 5
"""Values of a long ordered domain that are tried before it is refined."""
LARGEST: Final = 24
"""Combinations of a block tried as a whole; larger blocks vary one setting at a time."""


def form_blocks(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The names in their groups, `model` left out."""
    blocks = [tuple(name for name in group if name in names) for group in GROUPS]
    grouped = {name for group in GROUPS for name in group}
    rest = [(name,) for name in names if name not in grouped and name != "model"]
    return [block for block in (*blocks, *rest) if block]


def combine(block: Sequence[str], choices: Mapping[str, Sequence[Any]], current: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Combinations of the block's values to try: all of them, or one setting at a time where they are too many."""
    if math.prod(len(choices[name]) for name in block) <= LARGEST:
        products = itertools.product(*(choices[name] for name in block))
        return [dict(zip(block, values, strict=True)) for values in products]
    kept = {name: current[name] for name in block}
    return [{**kept, name: value} for name in block for value in choices[name]]


def thin_out(values: Sequence[Any], current: Any) -> list[Any]:
    """A coarse grid over an ordered domain: both ends, the current value and evenly spaced ones between."""
    if len(values) <= COARSE + 1:
        return list(values)
    last = len(values) - 1
    indices = {round(step * last / (COARSE - 1)) for step in range(COARSE)}
    indices |= {index for index, value in enumerate(values) if value == current}
    return [values[index] for index in sorted(indices)]


def find_between(values: Sequence[Any], tried: Sequence[Any], best: Any) -> list[Any]:
    """The values half-way between the best one and the nearest tried ones on each side; [] once neighbours were tried."""
    if best not in values:
        return []
    place = list(values).index(best)
    known = sorted(index for index, value in enumerate(values) if value in tried)
    below = max((index for index in known if index < place), default=None)
    above = min((index for index in known if index > place), default=None)
    middles = [
        (place + other) // 2 if other < place else (place + other + 1) // 2 for other in (below, above) if other is not None
    ]
    return [values[index] for index in dict.fromkeys(middles) if index not in known]
