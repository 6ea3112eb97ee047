"""Puts the probes together: one frozen profile of this machine.

No probe raises for what a machine does; what could not be learned is None and, where it matters, a note.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tuner.hardware.build import probe_build
from tuner.hardware.cpu import CoreCounts, group_cores, list_online, probe_cpu
from tuner.hardware.environment import SystemNames, probe_environment
from tuner.hardware.gpus import probe_gpus
from tuner.hardware.limits import probe_limits
from tuner.hardware.memory import probe_memory
from tuner.hardware.rebuilding import explain_missing_simd, write_rebuild
from tuner.hardware.record import (
    BuildFacts,
    CpuFacts,
    DeviceFacts,
    EnvironmentFacts,
    GpuFacts,
    HardwareProfile,
    LimitFacts,
    MemoryFacts,
)
from tuner.hardware.tree import Tree
from tuner.units import format_bytes


def profile_machine(
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    nvml: Any | None = None,
    ask_build: Callable[[], bytes] | None = None,
    counts: CoreCounts | None = None,
) -> HardwareProfile:
    """This machine as rooftune sees it.

    `root`: where /proc, /sys and /etc are. `nvml`: the pynvml module; None imports it. `ask_build`: returns the answer of the
    child that loads llama.cpp; None starts it. `counts`: core counts of libraries; None asks them.
    """
    tree, environ = Tree(root=root), os.environ if environ is None else environ
    counts = counts or ask_counts()
    cpu = probe_cpu(tree, counts, platform.machine())
    memory = probe_memory(tree)
    limits = probe_limits(tree, cpu, memory, affinity=counts.affinity, memlock_bytes=_read_memlock())
    gpus, gpu_notes = probe_gpus(
        nvml=nvml,
        environ=environ,
        memory_total_bytes=memory.total_bytes,
        memory_available_bytes=limits.memory_available_bytes,
    )
    build, build_note = probe_build(cpu.simd, ask=ask_build)
    names = SystemNames(system=platform.system(), kernel=platform.release(), python=platform.python_version())
    devices = match_devices(build, gpus)
    environment = probe_environment(tree, names, environ)
    silence = _find_silence(tree, cpu, memory, environment)
    return HardwareProfile(
        cpu=cpu,
        memory=memory,
        limits=limits,
        gpus=gpus,
        devices=devices,
        build=build,
        environment=environment,
        notes=tuple(filter(None, (*silence, *gpu_notes, build_note, *_find_mismatches(cpu, limits, build, gpus)))),
        fingerprint=fingerprint_machine(cpu, memory, gpus),
        summary=summarise_machine(cpu, memory, limits, gpus, devices),
    )


def ask_counts() -> CoreCounts:
    """Core counts of psutil and of Python, unchecked."""
    import psutil

    affinity = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    physical, logical = _count(psutil.cpu_count, logical=False), _count(psutil.cpu_count, logical=True)
    return CoreCounts(physical=physical, logical=logical, system=os.cpu_count(), affinity=affinity)


def match_devices(build: BuildFacts | None, gpus: tuple[GpuFacts, ...]) -> tuple[DeviceFacts, ...]:
    """Devices that take layers, each with the driver's GPU; integrated ones only where there is no other, as llama.cpp does.

    Slices of one card share its bus; the one that CUDA sees from here is llama.cpp's.
    """
    listed = [device for device in build.devices if device.takes_layers] if build else []
    discrete = [device for device in listed if device.kind == "GPU"]
    visible_last = sorted(gpus, key=lambda gpu: gpu.cuda_ordinal is not None)
    by_bus = {gpu.pci_bus_id: gpu for gpu in visible_last if gpu.pci_bus_id}
    return tuple(_join(device, by_bus.get(device.pci_bus_id or "")) for device in discrete or listed)


def fingerprint_machine(cpu: CpuFacts, memory: MemoryFacts, gpus: tuple[GpuFacts, ...]) -> str:
    """A short name from what does not change between boots.

    Another one comes of: another processor, another number of its cores or threads that run, other vector features (a BIOS or
    a hypervisor can hide them), memory of another size class (`classify_memory`), GPUs that come, go or are hidden from the
    driver here. The same one stays with load, heat, free memory, limits, affinity, driver and kernel versions.
    """
    cards = sorted(gpu.uuid or gpu.name or "" for gpu in gpus)
    facts = [
        cpu.arch,
        cpu.model,
        cpu.physical_cores,
        cpu.logical_cpus,
        list(cpu.simd),
        classify_memory(memory.total_bytes),
        cards,
    ]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:12]


def classify_memory(total_bytes: int | None) -> int | None:
    """The least of 1, 1.5, 2, 3, 4, 6, 8, 12, … GiB that holds `total_bytes`, in MiB; None: unknown.

    The kernel, the firmware and an integrated GPU keep a few percent of what is installed, and not the same at each boot, so
    that the amount told is always somewhat below the size bought. Rounding up to sizes a third apart puts every boundary
    where no machine's amount wanders: at the size itself. Memory added within a step goes unnoticed (20 to 24 GiB does).
    """
    if total_bytes is None:
        return None
    mebibytes = -(-total_bytes // 2**20)
    power = 1 << max(10, (mebibytes - 1).bit_length())
    return power * 3 // 4 if 1024 < mebibytes <= power * 3 // 4 else power


def summarise_machine(
    cpu: CpuFacts, memory: MemoryFacts, limits: LimitFacts, gpus: tuple[GpuFacts, ...], devices: tuple[DeviceFacts, ...]
) -> str:
    """The machine in one line."""
    cores = f"{cpu.physical_cores} cores" if cpu.physical_cores != 1 else "1 core"
    if limits.usable_threads < cpu.logical_cpus:
        cores += f", {limits.usable_threads} usable"
    cards = [gpu.name or "a GPU" for gpu in gpus] or [device.description or device.name for device in devices]
    name, ram = cpu.model or cpu.arch or "unknown CPU", f"{format_bytes(memory.total_bytes)} RAM"
    return ", ".join((name, cores, ram, " + ".join(cards) or "no GPU"))


def _find_silence(tree: Tree, cpu: CpuFacts, memory: MemoryFacts, environment: EnvironmentFacts) -> list[str]:
    silent = [
        *(["the processor's name (/proc/cpuinfo)"] if cpu.model is None else []),
        *(["its vector features (/proc/cpuinfo)"] if not cpu.simd else []),
        *(["its caches (/sys/devices/system/cpu)"] if not cpu.caches else []),
        *(["which cores and threads belong together (/sys/devices/system/cpu)"] if not _tells_topology(tree) else []),
        *(["main memory (/proc/meminfo)"] if memory.total_bytes is None else []),
        *(["available memory (/proc/meminfo)"] if memory.available_bytes is None and memory.total_bytes is not None else []),
        *(["swap (/proc/meminfo)"] if memory.swap_total_bytes is None else []),
        *(["its load (/proc/loadavg)"] if environment.load_1m is None else []),
    ]
    return [f"This machine does not tell {', '.join(silent)}."] if silent else []


def _tells_topology(tree: Tree) -> bool:
    return bool(group_cores(tree, list_online(tree, tree.read("/proc/cpuinfo") or "")))


def _find_mismatches(cpu: CpuFacts, limits: LimitFacts, build: BuildFacts | None, gpus: tuple[GpuFacts, ...]) -> list[str]:
    notes = []
    if limits.usable_threads < cpu.logical_cpus:
        source = f" ({limits.cpu_quota_source})" if limits.usable_threads < limits.affinity_count else " (CPU affinity)"
        notes.append(f"Only {limits.usable_threads} of {cpu.logical_cpus} visible CPUs may be used here{source}.")
    if build:
        notes += explain_missing_simd(build)
    visible = any(gpu.cuda_ordinal is not None for gpu in gpus)
    if build and build.importable and visible and not any(device.takes_layers for device in build.devices):
        notes.append(
            "llama.cpp was built for CUDA but finds no GPU: its CUDA is newer than the driver, or no device file is reachable."
            if "CUDA" in build.backends
            else f"This llama.cpp build cannot use the GPU: reinstall it with `{write_rebuild(build, '-DGGML_CUDA=on')}`."
        )
    return notes


def _join(device: DeviceFacts, gpu: GpuFacts | None) -> DeviceFacts:
    if gpu is None:
        return device
    return msgspec.structs.replace(device, gpu_uuid=gpu.uuid, unified=device.unified or gpu.unified)


def _count(ask: Callable[..., Any], **arguments: bool) -> object:
    try:
        return ask(**arguments)
    except Exception:  # noqa: BLE001 - whatever a library raises while counting, the topology files answer instead
        return None


def _read_memlock() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
