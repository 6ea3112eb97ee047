"""Main memory, and budgets: what is free counts, not what is there, and shared memory counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.trees import list_desktop, make_tree
from tuner.hardware.memory import device_budget_bytes, host_budget_bytes, probe_memory
from tuner.hardware.record import DeviceFacts, GpuFacts, HardwareProfile, LimitFacts, MemoryFacts

GIB = 2**30
CARD = DeviceFacts(name="CUDA0", gpu_uuid="GPU-a", total_bytes=24 * GIB, free_bytes=22 * GIB)


def test_a_desktop(tmp_path: Path) -> None:
    """Available memory is what the kernel can free for new work, not its idle pages."""
    files = {**list_desktop(), "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"}
    assert probe_memory(make_tree(tmp_path, files)) == MemoryFacts(
        total_bytes=32 * GIB,
        available_bytes=20 * GIB,
        swap_total_bytes=8 * GIB,
        swap_used_bytes=3 * GIB,
        huge_pages="madvise",
    )


def test_no_swap_is_zero_and_no_answer_is_unknown(tmp_path: Path) -> None:
    """The two are told apart."""
    assert probe_memory(make_tree(tmp_path, {})) == MemoryFacts()
    memory = probe_memory(make_tree(tmp_path, {"/proc/meminfo": "SwapTotal: 0 kB\nSwapFree: 0 kB\n"}))
    assert (memory.swap_total_bytes, memory.swap_used_bytes, memory.available_bytes) == (0, 0, None)


@pytest.mark.parametrize(
    ("available", "reserve", "expected"),
    [(20 * GIB, 0, 20 * GIB), (20 * GIB, 2 * GIB, 18 * GIB), (GIB, 2 * GIB, 0), (None, 1, None)],
)
def test_host_budget(available: int | None, reserve: int, expected: int | None) -> None:
    """What limits leave, less the reserve; unknown stays unknown."""
    profile = HardwareProfile(memory=MemoryFacts(available_bytes=99 * GIB), limits=LimitFacts(memory_available_bytes=available))
    assert host_budget_bytes(profile, reserve_bytes=reserve) == expected


@pytest.mark.parametrize(
    ("driver_free", "told_free", "reserve", "expected"),
    [
        (20 * GIB, 22 * GIB, 0, 20 * GIB),
        (23 * GIB, 22 * GIB, GIB, 21 * GIB),
        (None, 22 * GIB, 0, 22 * GIB),
        (20 * GIB, None, 0, 20 * GIB),
        (GIB, GIB, 2 * GIB, 0),
        (None, None, 0, None),
    ],
)
def test_device_budget(driver_free: int | None, told_free: int | None, reserve: int, expected: int | None) -> None:
    """The lesser of what driver and llama.cpp call free, less the reserve: other programs hold the rest."""
    device = DeviceFacts(name="CUDA0", gpu_uuid="GPU-a", total_bytes=24 * GIB, free_bytes=told_free)
    gpus = (
        GpuFacts(index=0, uuid="GPU-b", memory_free_bytes=1),
        GpuFacts(index=1, uuid="GPU-a", memory_free_bytes=driver_free),
    )
    assert device_budget_bytes(HardwareProfile(gpus=gpus), device, reserve_bytes=reserve) == expected


def test_a_device_without_uuid_is_not_taken_for_a_card_without_one() -> None:
    """Two unknowns are not the same thing."""
    device = DeviceFacts(name="Vulkan0", free_bytes=8 * GIB)
    profile = HardwareProfile(gpus=(GpuFacts(index=0, memory_free_bytes=GIB),))
    assert device_budget_bytes(profile, device) == 8 * GIB


def test_shared_memory_has_one_budget() -> None:
    """A device that shares main memory has the host's budget, so that 40 + 30 GiB are never taken to fit into 64."""
    device = DeviceFacts(name="CUDA0", kind="IGPU", unified=True, total_bytes=64 * GIB, free_bytes=3 * GIB)
    profile = HardwareProfile(devices=(device,), limits=LimitFacts(memory_available_bytes=64 * GIB))
    budget = device_budget_bytes(profile, device)
    assert budget == host_budget_bytes(profile) == 64 * GIB
    assert profile.unified_memory


def test_a_plain_card_does_not_share() -> None:
    """A profile with it has two budgets."""
    assert not HardwareProfile(devices=(CARD,)).unified_memory
