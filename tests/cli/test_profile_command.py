"""What `rooftune profile` shows: every part of the profile that decides something, and n/a for what is unknown."""

from __future__ import annotations

import msgspec
from rich.console import Console

from tuner.cli.commands.profile import draw_profile
from tuner.hardware import (
    BuildFacts,
    CpuFacts,
    DeviceFacts,
    EnvironmentFacts,
    GpuFacts,
    GpuProcess,
    HardwareProfile,
    LimitFacts,
    MemoryFacts,
    NumaNode,
)

GIB = 2**30
CARD = GpuFacts(
    index=0,
    name="A card",
    uuid="GPU-1",
    memory_total_bytes=24 * GIB,
    memory_free_bytes=20 * GIB,
    driver="550.1",
    link_generation=1,
    link_generation_max=4,
    link_width=8,
    link_width_max=16,
    power_limit_w=300.0,
    power_limit_default_w=450.0,
    mig=False,
    cuda_ordinal=1,
    processes=(GpuProcess(pid=77, memory_bytes=4 * GIB),),
)
FULL = HardwareProfile(
    cpu=CpuFacts(
        model="A CPU",
        physical_cores=4,
        logical_cpus=8,
        performance_cores=2,
        efficiency_cores=2,
        numa_nodes=(NumaNode(index=0, cpus=(0, 1), memory_bytes=16 * GIB),),
        governor="powersave",
    ),
    memory=MemoryFacts(total_bytes=32 * GIB, swap_total_bytes=8 * GIB, swap_used_bytes=GIB, huge_pages="madvise"),
    limits=LimitFacts(
        affinity_count=6,
        cpu_quota=2.5,
        cpu_quota_source="/g/cpu.max",
        memory_limit_bytes=6 * GIB,
        memory_limit_source="/g/memory.high",
        memory_available_bytes=5 * GIB,
        cgroup="v2",
        usable_threads=2,
    ),
    gpus=(CARD, GpuFacts(index=1, parent_uuid="GPU-9", unified=True)),
    devices=(DeviceFacts(name="CUDA0", description="A card", total_bytes=24 * GIB, free_bytes=19 * GIB),),
    build=BuildFacts(
        llama_cpp_version="b1",
        simd=("AVX2",),
        missing_simd=("AVX512",),
        repack=True,
        supports_gpu_offload=True,
        supports_rpc=False,
    ),
    environment=EnvironmentFacts(
        container="docker",
        wsl=True,
        load_1m=0.5,
        cpu_pressure=12.5,
        power_source="battery",
        battery_percent=40,
        throttle_count=3,
    ),
    fingerprint="0123456789ab",
)
SHOWN = (
    "0123456789ab", "4 physical (2 fast, 2 slow), 8 logical, 2 usable", "governor powersave", "node 0 with 2 CPUs and 16 GiB",
    "32 GiB, 5 GiB available", "1 GiB of 8 GiB used", "madvise", "v2", "6 of 8 CPUs", "2.5 CPUs (/g/cpu.max)",
    "6 GiB (/g/memory.high)", "A card, 20 GiB of 24 GiB free, driver 550.1", "PCIe 1 x8 now, 4 x16 at most",
    "300 W, 450 W from the factory", "CUDA1 (n/a, GPU-1)", "process 77 4 GiB", "a slice of GPU-9", "shared with the CPU",
    "hidden by CUDA_VISIBLE_DEVICES", "CUDA0 (A card, 19 GiB of 24 GiB free)", "AVX512", "container (docker) in WSL",
    "0.50, n/a, n/a tasks", "12.5 % for a CPU", "battery, battery at 40 %", "3 times since boot",
)  # fmt: skip


def render(profile: HardwareProfile) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(draw_profile(profile))
    return capture.get()


def test_every_part_is_shown() -> None:
    """In one line each, so that a reader sees what binds."""
    text = render(FULL)
    assert [piece for piece in SHOWN if piece not in text] == []


def test_an_unknown_machine_is_shown_as_unknown() -> None:
    """No figure is made up and nothing raised."""
    text = render(HardwareProfile())
    assert "n/a" in text
    assert "0 B" not in text
    assert "None" not in text


def test_the_document_has_its_promised_keys() -> None:
    """What scripts rely on."""
    assert {"cpu", "memory", "devices", "limits", "notes"} <= set(msgspec.to_builtins(FULL))
