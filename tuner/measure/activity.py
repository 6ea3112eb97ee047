"""What else the machine does while a sample is taken: two snapshots of the kernel's counters, and their difference.

Linux only; elsewhere, and where a counter is missing, the fields are None. Readers take the root of the file tree.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

SHORTEST_S = 0.1
"""The kernel counts processor time in ticks of 10 ms: over less than this, s, a share of cores says nothing."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's counters at one moment."""

    at_s: float
    """Steady clock, s."""
    busy_s: float | None
    """Processor time spent by everybody on the watched cores since boot, s; None when unknown."""
    steal_s: float | None
    """Processor time that the hypervisor gave to other guests, s; None when unknown."""
    own_s: float | None
    """Processor time of the measured processes, s; None when unknown."""
    swapped_pages: int | None
    """Pages read from and written to swap since boot; None when unknown."""
    throttle_ms: int | None
    """Time the hottest core was slowed down by heat since boot, ms; None when unknown."""
    throttle_count: int | None
    """Times a core was slowed down by heat since boot; None when unknown."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between two snapshots."""

    wall_s: float
    """Time between them, s."""
    others_cores: float | None
    """Cores kept busy by others, on the cores we may use; None when unknown or too short to tell."""
    steal_cores: float | None
    """Cores that the hypervisor took away; None when unknown or too short to tell."""
    swapped_pages: int | None
    """Pages swapped in or out by anybody; None when unknown."""
    throttled_share: float | None
    """Share of the time that a core was slowed down by heat; None when unknown."""
    throttle_count: int | None
    """Times a core was slowed down by heat; None when unknown."""


def take_snapshot(
    *,
    own_s: float | None,
    root: Path = Path("/"),
    cores: frozenset[int] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """The counters now. `cores` are the processors to watch; None means those that this process may use."""
    watched = read_affinity() if cores is None else cores
    busy, steal = _read_processor_time(root / "proc/stat", watched)
    throttled, throttles = _read_throttling(root / "sys/devices/system/cpu", watched)
    return Snapshot(
        at_s=clock(),
        busy_s=busy,
        steal_s=steal,
        own_s=own_s,
        swapped_pages=_read_swapping(root / "proc/vmstat"),
        throttle_ms=throttled,
        throttle_count=throttles,
    )


def compare_snapshots(before: Snapshot, after: Snapshot) -> Activity:
    """What happened in between."""
    wall = max(after.at_s - before.at_s, 1e-9)
    long_enough = wall >= SHORTEST_S
    busy, own = _difference(before.busy_s, after.busy_s), _difference(before.own_s, after.own_s)
    steal = _difference(before.steal_s, after.steal_s)
    throttled = _difference(before.throttle_ms, after.throttle_ms)
    swapped = _difference(before.swapped_pages, after.swapped_pages)
    count = _difference(before.throttle_count, after.throttle_count)
    return Activity(
        wall_s=wall,
        others_cores=max(0.0, busy - own) / wall if busy is not None and own is not None and long_enough else None,
        steal_cores=steal / wall if steal is not None and long_enough else None,
        swapped_pages=None if swapped is None else int(swapped),
        throttled_share=None if throttled is None else min(1.0, throttled / 1000 / wall),
        throttle_count=None if count is None else int(count),
    )


def survey_load(
    seconds: float,
    *,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Activity:
    """How busy the machine is before we start: everything is "others", as this process only sleeps meanwhile."""
    before = take_snapshot(own_s=time.process_time(), root=root, clock=clock)
    sleep(seconds)
    return compare_snapshots(before, take_snapshot(own_s=time.process_time(), root=root, clock=clock))


def read_affinity() -> frozenset[int]:
    """Numbers of the processors that this process may use; empty where the platform won't say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _read_processor_time(path: Path, cores: frozenset[int]) -> tuple[float | None, float | None]:
    """Busy and stolen seconds over the watched cores; guest time is part of user time and not added again."""
    text = _read_text(path)
    tick = os.sysconf("SC_CLK_TCK")
    busy = steal = 0.0
    seen = False
    for number, fields in re.findall(r"^cpu(\d+) ([\d ]+)$", text, re.MULTILINE):
        values = [int(each) for each in fields.split()]
        if int(number) in cores and len(values) >= 8:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = values[:8]
            busy += (user + nice + system + irq + softirq) / tick
            steal += stolen / tick
            seen = True
    return (busy, steal) if seen else (None, None)


def _read_swapping(path: Path) -> int | None:
    found = re.findall(r"^pswp(?:in|out) (\d+)$", _read_text(path), re.MULTILINE)
    return sum(int(each) for each in found) if found else None


def _read_throttling(folder: Path, cores: frozenset[int]) -> tuple[int | None, int | None]:
    """Longest throttled time, ms, and all throttle events of the watched cores."""
    times = [_read_number(folder / f"cpu{core}/thermal_throttle/core_throttle_total_time_ms") for core in sorted(cores)]
    counts = [_read_number(folder / f"cpu{core}/thermal_throttle/core_throttle_count") for core in sorted(cores)]
    known_times = [each for each in times if each is not None]
    known_counts = [each for each in counts if each is not None]
    return (max(known_times) if known_times else None, sum(known_counts) if known_counts else None)


def _read_number(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_text(path: Path) -> str:
    """Empty for what this machine does not have or does not show."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
