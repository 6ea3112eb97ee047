"""Tokens computed at once."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.batches import list_batches
from tuner.space.parsing import read_integer

_LEAST = 32
_BOUND = 1_048_576


class UbatchSize(Dimension):
    """Most tokens computed in one pass through the model (the physical batch).

    The main setting of prefill. Each pass reads all weights once, so a larger micro-batch spreads that reading over more
    tokens, until the processor's arithmetic is what is waited for; beyond that its intermediate results fall out of the
    caches and it may get slower again. Where the best lies depends on the model as much as on the chip, so it is searched.

    It costs memory: compute buffers grow with it, most of all without flash attention, where n_head × ubatch_size × n_ctx × 4
    bytes of scores are kept, and so does the cache of sliding-window layers. Decode of a few slots does not see it.
    The default is 512; more than batch_size is cut to batch_size (llama-context.cpp).
    """

    name: ClassVar[str] = "ubatch_size"
    title: ClassVar[str] = "Micro-batch"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        return list_batches(situation, least=_LEAST, default=self.find_default(situation))

    def find_default(self, situation: SpaceSituation) -> int:
        del situation
        return 512

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=1, most=_BOUND, thousands=True)
