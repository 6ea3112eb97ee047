"""Tokens handed over at once."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.batches import list_batches
from tuner.space.parsing import read_integer

_LEAST = 256
_BOUND = 1_048_576


class BatchSize(Dimension):
    """Most tokens that one call of llama_decode is given (the logical batch).

    llama.cpp cuts it into micro-batches of ubatch_size and computes those one after the other. It moves prefill, and only
    so far as it is smaller than the prompt or caps ubatch_size. With several devices it is what keeps them all busy, each
    with its own micro-batch. With several slots it bounds how many prompts are read together. Decode does not see it.

    More than the context is cut to the context; the default is 2048 (llama-context.cpp: n_batch = min(n_ctx, n_batch)).
    """

    name: ClassVar[str] = "batch_size"
    title: ClassVar[str] = "Batch"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        return list_batches(situation, least=_LEAST, default=self.find_default(situation))

    def find_default(self, situation: SpaceSituation) -> int:
        del situation
        return 2048

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=1, most=_BOUND, thousands=True)
