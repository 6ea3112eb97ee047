"""Threads of decode."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_integer
from tuner.space.threadcounts import MOST_THREADS, list_thread_counts
from tuner.space.traits import count_default_slots, find_quietest_threads


class Threads(Dimension):
    """Threads while one token is computed: decode with a single slot.

    Decode waits for memory, not for arithmetic. Once the threads ask for as much as memory can give, more of them only wait
    for each other at every layer, so the best is often fewer than there are cores, and two threads on one core rarely pay.
    More threads than free cores are ruinous: the slowest holds up all others, and one busy neighbour can cost half the speed.
    Slow cores of a CPU with two kinds hold up the fast ones in the same way.

    The default is llama-server's: physical cores (fast ones where there are two kinds), within what affinity and the
    container's quota leave. Prefill has its own setting, threads_batch. With several slots, decode is a batch as well and
    uses that. (llama-context.cpp: n_threads where a micro-batch has one token, n_threads_batch otherwise.)
    """

    name: ClassVar[str] = "threads"
    title: ClassVar[str] = "Threads (decode)"
    affects: ClassVar[frozenset[Phase]] = frozenset({"decode"})
    cost: ClassVar[Cost] = "live"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if count_default_slots(situation) > 1:
            reason = "with several slots decode is a batch too, and threads_batch counts there"
            return Absent(reason=reason, may_be_asked_for=True)
        return list_thread_counts(situation)

    def find_default(self, situation: SpaceSituation) -> int:
        return find_quietest_threads(situation)

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=1, most=MOST_THREADS)

    def affects_in(self, situation: SpaceSituation) -> frozenset[Phase]:
        return frozenset() if count_default_slots(situation) > 1 else self.affects
