"""Main memory and swap from /proc/meminfo, and what of it a run may take."""

from __future__ import annotations

import re

from tuner.hardware.record import DeviceFacts, HardwareProfile, MemoryFacts
from tuner.hardware.tree import Tree, parse_size


def probe_memory(tree: Tree) -> MemoryFacts:
    """Memory of the machine; no cgroup considered."""
    table = tree.read_table("/proc/meminfo")
    swap_total, swap_free = parse_size(table.get("SwapTotal")), parse_size(table.get("SwapFree"))
    pages = re.search(r"\[(\w+)\]", tree.read("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    return MemoryFacts(
        total_bytes=parse_size(table.get("MemTotal")),
        available_bytes=parse_size(table.get("MemAvailable")),
        swap_total_bytes=swap_total,
        swap_used_bytes=swap_total - swap_free if swap_total is not None and swap_free is not None else None,
        huge_pages=pages[1] if pages else None,
    )


def host_budget_bytes(profile: HardwareProfile, *, reserve_bytes: int = 0) -> int | None:
    """Main memory that a run may take, bytes; None when unknown."""
    available = profile.limits.memory_available_bytes
    return None if available is None else max(0, available - reserve_bytes)


def device_budget_bytes(profile: HardwareProfile, device: DeviceFacts, *, reserve_bytes: int = 0) -> int | None:
    """A device's memory that a run may take, bytes: what is free, not what it has; a unified one shares the host's budget."""
    if device.unified:
        return host_budget_bytes(profile, reserve_bytes=reserve_bytes)
    driver = next((gpu for gpu in profile.gpus if gpu.uuid and gpu.uuid == device.gpu_uuid), None)
    free = driver.memory_free_bytes if driver is not None else None
    known = [value for value in (free, device.free_bytes) if value is not None]
    return max(0, min(known) - reserve_bytes) if known else None
