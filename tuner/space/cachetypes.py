"""Which KV cache formats are worth trying, for both halves of the cache."""

from __future__ import annotations

from typing import Final, Literal

from tuner.runconfig import CACHE_TYPES
from tuner.space.base import Absent, Domain, SpaceSituation
from tuner.space.parsing import read_word
from tuner.space.refusal import CACHE_BLOCK
from tuner.space.traits import cached_head_sizes, has_cache

CAREFUL: Final = ("f16", "q8_0")
"""Formats that a careful user accepts unasked."""

LOSSY: Final = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Formats tried where quality loss is allowed."""


def list_cache_types(situation: SpaceSituation, *, side: Literal["K", "V"]) -> Domain | Absent:
    """The formats to try for one half of the cache."""
    if not has_cache(situation):
        return Absent(reason="this model keeps a fixed state in place of a KV cache")
    half = 0 if side == "K" else 1
    told = [cached_head_sizes(spec)[half] for spec in situation.models if spec.has_kv or not spec.layers]
    if not all(told):
        return Absent(
            reason="the file does not say how large a head is, so no other format is sure to fit", may_be_asked_for=True
        )
    sizes = {size for each in told for size in each}
    uneven = sorted(size for size in sizes if size % CACHE_BLOCK)
    if uneven:
        return Absent(
            reason=f"quantised formats have blocks of {CACHE_BLOCK}, and {uneven[0]} is not a multiple of {CACHE_BLOCK}"
        )
    return Domain(values=LOSSY if situation.allow_quality_loss else CAREFUL, ordered=False)


def read_cache_type(name: str, value: object) -> str:
    """One of llama.cpp's own names."""
    return read_word(name, value, CACHE_TYPES)


def is_less_precise(kind: str, other: str) -> bool:
    """`kind` keeps less of a number than `other` does."""
    return CACHE_TYPES.index(kind) > CACHE_TYPES.index(other)
