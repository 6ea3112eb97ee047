"""How values are kept."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.cachetypes import list_cache_types, read_cache_type
from tuner.space.traits import can_use_flash_attn, has_one_cache_type


class CacheTypeV(Dimension):
    """Number format of the values in the KV cache.

    Smaller saves memory and, at depth, reading in decode; packing and unpacking cost time, as for the keys. A quantised
    V cache needs flash attention inside llama.cpp (the Python package of that name has nothing to do with it): with
    flash_attn off it is refused, with auto it turns flash attention on.

    Values bear rounding better than keys. q8_0 is the smallest that is tried unasked. Models with latent attention (MLA)
    keep keys only, and both formats must be the same there. (llama-context.cpp: "quantized V cache requires flash_attn".)
    """

    name: ClassVar[str] = "cache_type_v"
    title: ClassVar[str] = "V cache format"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if has_one_cache_type(situation):
            return Absent(reason="this model keeps keys only; the V format follows cache_type_k")
        if not can_use_flash_attn(situation):
            return Absent(reason="a smaller V format needs flash attention, which this architecture runs without")
        return list_cache_types(situation, side="V")

    def find_default(self, situation: SpaceSituation) -> str:
        del situation
        return "f16"

    def parse_value(self, value: object) -> str:
        return read_cache_type(self.name, value)
