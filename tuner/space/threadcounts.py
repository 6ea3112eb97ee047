"""Which thread counts are worth trying on this machine, for both phases."""

from __future__ import annotations

from typing import Final

from tuner.space.base import Absent, Domain, SpaceSituation
from tuner.space.spread import list_powers, sort_distinct
from tuner.space.traits import find_quietest_threads

MOST_THREADS: Final = 512
"""GGML_MAX_N_THREADS of ggml."""

_ALL_UP_TO: Final = 8


def list_thread_counts(situation: SpaceSituation) -> Domain | Absent:
    """Counts from 1 to what affinity and quota let run at once: all of them when few, else a spread around the cores."""
    usable = min(situation.hardware.limits.usable_threads, MOST_THREADS)
    if usable < 2:
        return Absent(reason="this process may run one thread at a time", may_be_asked_for=True)
    if usable <= _ALL_UP_TO:
        return Domain(values=tuple(range(1, usable + 1)), ordered=True)
    cores = find_quietest_threads(situation)
    fast = situation.hardware.cpu.performance_cores or cores
    marks = {cores, cores - 1, cores * 3 // 4, cores // 2, cores + (usable - cores) // 2, fast, usable, usable - 1}
    values = sort_distinct(count for count in {*list_powers(1, usable), *marks} if 1 <= count <= usable)
    return Domain(values=values, ordered=True)
