"""How keys are kept."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.cachetypes import list_cache_types, read_cache_type


class CacheTypeK(Dimension):
    """Number format of the keys in the KV cache.

    A smaller format makes the cache smaller, so more context fits, and decode at depth has less to read. It is not free:
    the values are packed when written and unpacked when read, which can cost prefill, and decode on a CPU, more than the
    saved reading brings. At shallow depth there is little to gain.

    Keys feel rounding more than values do, so keys are kept at least as precise as values. q8_0 is the smallest that is
    tried unasked; four and five bits are tried only where quality loss is allowed. Blocks hold 32 values: a head size that
    is no multiple of 32 cannot be quantised. (llama-context.cpp checks it; formats as --cache-type-k lists them.)
    """

    name: ClassVar[str] = "cache_type_k"
    title: ClassVar[str] = "K cache format"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        return list_cache_types(situation, side="K")

    def find_default(self, situation: SpaceSituation) -> str:
        del situation
        return "f16"

    def parse_value(self, value: object) -> str:
        return read_cache_type(self.name, value)
