"""Threads of prefill."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_integer
from tuner.space.threadcounts import MOST_THREADS, list_thread_counts
from tuner.space.traits import count_default_slots, find_quietest_threads


class ThreadsBatch(Dimension):
    """Threads while several tokens are computed together: prefill, and decode with several slots.

    Prefill is arithmetic, so it scales with cores further than decode does, and a second thread per core can still help a
    little. It hurts as soon as there are more threads than the quota or the affinity lets run at once, or when a neighbour
    holds one of the cores.

    The default is the value of threads. The two are apart because the best differs between the phases.
    (llama-context.cpp: n_threads_batch for every micro-batch of more than one token.)
    """

    name: ClassVar[str] = "threads_batch"
    title: ClassVar[str] = "Threads (prefill)"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill"})
    cost: ClassVar[Cost] = "live"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        return list_thread_counts(situation)

    def find_default(self, situation: SpaceSituation) -> int:
        return find_quietest_threads(situation)

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=1, most=MOST_THREADS)

    def affects_in(self, situation: SpaceSituation) -> frozenset[Phase]:
        return self.affects | {"decode"} if count_default_slots(situation) > 1 else self.affects
