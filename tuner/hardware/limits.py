"""How much of the machine this process may use: affinity, and cgroup quota and memory with the tightest ancestor.

A container sees all CPUs and all memory of its host; only these files say what it will be given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from tuner.hardware.cpu import group_cores
from tuner.hardware.record import CpuFacts, LimitFacts, MemoryFacts
from tuner.hardware.tree import Tree, parse_int

_MOUNT = "/sys/fs/cgroup"
_NO_LIMIT = 2**60
"""cgroup v1 writes a number of about 2^63 where nothing limits memory."""


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What one cgroup says."""

    source: str
    """The file it says it in."""
    cpus: float | None = None
    """CPUs' worth of time; None when nothing limits it."""
    memory_bytes: int | None = None
    """Memory, bytes; None when nothing limits it."""
    memory_free_bytes: int | None = None
    """Limit less what is used and cannot be reclaimed, bytes."""


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


def find_version(tree: Tree) -> str | None:
    """v1, v2 or hybrid; None without cgroups."""
    lines = (tree.read("/proc/self/cgroup") or "").splitlines()
    unified = any(line.startswith("0::") for line in lines)
    named = any(not line.startswith("0::") for line in lines)
    if unified and named and not tree.exists(f"{_MOUNT}/cgroup.controllers"):
        return "hybrid" if tree.exists(f"{_MOUNT}/unified") else "v1"
    if unified:
        return "v2"
    return "v1" if named else None


def read_groups(tree: Tree) -> Iterator[Granted]:
    """What this process's groups and all their ancestors say."""
    for line in (tree.read("/proc/self/cgroup") or "").splitlines():
        match = re.fullmatch(r"(\d+):([^:]*):(.*)", line)
        if not match:
            continue
        number, controllers, path = match.groups()
        if number == "0" and not controllers:
            for folder in _climb(tree, _MOUNT, path):
                yield from _read_v2(tree, folder)
        names = set(controllers.split(","))
        if "cpu" in names:
            for folder in _climb(tree, _find_mount(tree, ("cpu", "cpu,cpuacct", "cpuacct,cpu")), path):
                yield from _read_v1_cpu(tree, folder)
        if "memory" in names:
            for folder in _climb(tree, f"{_MOUNT}/memory", path):
                yield from _read_v1_memory(tree, folder)


def _find_mount(tree: Tree, names: tuple[str, ...]) -> str:
    return next((f"{_MOUNT}/{name}" for name in names if tree.exists(f"{_MOUNT}/{name}")), f"{_MOUNT}/{names[0]}")


def _climb(tree: Tree, mount: str, path: str) -> Iterator[str]:
    """The group's folder and those above it; inside a container the path may be the host's, and only the mount is there."""
    parts = [part for part in path.split("/") if part not in ("", "..", ".")]
    for length in range(len(parts), -1, -1):
        folder = "/".join((mount, *parts[:length]))
        if tree.exists(folder):
            yield folder


def _read_v2(tree: Tree, folder: str) -> Iterator[Granted]:
    words = (tree.read(f"{folder}/cpu.max") or "").split()
    quota, period = parse_int(words[0]) if words else None, parse_int(words[1]) if len(words) > 1 else 100_000
    if quota and quota > 0 and period:
        yield Granted(source=f"{folder}/cpu.max", cpus=quota / period)
    limit = tree.read_int(f"{folder}/memory.max")
    if limit is not None:
        cached = parse_int(tree.read_table(f"{folder}/memory.stat", " ").get("inactive_file"))
        yield _grant_memory(f"{folder}/memory.max", limit, tree.read_int(f"{folder}/memory.current"), cached)


def _read_v1_cpu(tree: Tree, folder: str) -> Iterator[Granted]:
    quota, period = tree.read_int(f"{folder}/cpu.cfs_quota_us"), tree.read_int(f"{folder}/cpu.cfs_period_us")
    if quota and quota > 0 and period:
        yield Granted(source=f"{folder}/cpu.cfs_quota_us", cpus=quota / period)


def _read_v1_memory(tree: Tree, folder: str) -> Iterator[Granted]:
    limit = tree.read_int(f"{folder}/memory.limit_in_bytes")
    if limit is not None and limit < _NO_LIMIT:
        cached = parse_int(tree.read_table(f"{folder}/memory.stat", " ").get("total_inactive_file"))
        used = tree.read_int(f"{folder}/memory.usage_in_bytes")
        yield _grant_memory(f"{folder}/memory.limit_in_bytes", limit, used, cached)


def _grant_memory(source: str, limit: int, used: int | None, cached: int | None) -> Granted:
    """Page cache that the kernel would give back does not count as used."""
    free = None if used is None else max(0, limit - max(0, used - (cached or 0)))
    return Granted(source=source, memory_bytes=limit, memory_free_bytes=free)


def count_decode_cores(tree: Tree, cpu: CpuFacts, allowed: tuple[int, ...]) -> int:
    """Physical cores among the allowed CPUs, fast ones only where there are two kinds and a fast one is allowed."""
    fast = tuple(number for number in allowed if number in set(cpu.performance_cpus))
    touched = len(group_cores(tree, fast or allowed))
    cores = cpu.performance_cores if fast and cpu.performance_cores else cpu.physical_cores
    return min(cores, touched or cores)
