"""How much of the machine this process may use: affinity, and cgroup quota and memory with the tightest ancestor.

A container sees all CPUs and all memory of its host; only these files say what it will be given.
"""

from __future__ import annotations

import math

from tuner.hardware.cgroups import find_version, read_groups
from tuner.hardware.cpu import group_cores
from tuner.hardware.record import CpuFacts, LimitFacts, MemoryFacts
from tuner.hardware.tree import Tree


def probe_limits(
    tree: Tree, cpu: CpuFacts, memory: MemoryFacts, *, affinity: tuple[int, ...], memlock_bytes: int | None = None
) -> LimitFacts:
    """Everything that makes the usable part of the machine smaller than the machine."""
    groups = list(read_groups(tree))
    quota = min((group for group in groups if group.cpus), key=lambda group: group.cpus or 0.0, default=None)
    limited = min((g for g in groups if g.memory_bytes is not None), key=lambda g: g.memory_bytes or 0, default=None)
    rests = [group.memory_free_bytes for group in groups if group.memory_free_bytes is not None]
    known = [value for value in (memory.available_bytes, *rests) if value is not None]
    allowed = affinity or tuple(range(cpu.logical_cpus))
    threads = count_usable(len(allowed), quota.cpus if quota else None)
    return LimitFacts(
        affinity_cpus=affinity,
        affinity_count=len(allowed),
        cpu_quota=quota.cpus if quota else None,
        cpu_quota_source=quota.source if quota else None,
        memory_limit_bytes=limited.memory_bytes if limited else None,
        memory_limit_source=limited.source if limited else None,
        memory_available_bytes=min(known, default=None),
        memlock_bytes=memlock_bytes,
        cgroup=find_version(tree),
        usable_threads=threads,
        usable_physical=max(1, min(count_decode_cores(tree, cpu, allowed), threads)),
    )


def count_usable(affinity: int, quota: float | None) -> int:
    """Threads that can run at once: the quota rounded down, at least 1."""
    return max(1, min(affinity, math.floor(quota) if quota is not None else affinity))


def count_decode_cores(tree: Tree, cpu: CpuFacts, allowed: tuple[int, ...]) -> int:
    """Physical cores among the allowed CPUs, fast ones only where there are two kinds and a fast one is allowed."""
    fast = tuple(number for number in allowed if number in set(cpu.performance_cpus))
    touched = len(group_cores(tree, fast or allowed))
    cores = cpu.performance_cores if fast and cpu.performance_cores else cpu.physical_cores
    return min(cores, touched or cores)
