"""The probes together: one profile, its name, its line, its notes, on machines made of files and on this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.hardware.fake_nvml import GIB, FakeNvml, LibraryNotFound, NotSupported, make_card, memory
from tests.hardware.trees import list_desktop, make_tree
from tuner.hardware import (
    BuildFacts,
    CpuFacts,
    DeviceFacts,
    GpuFacts,
    HardwareProfile,
    LimitFacts,
    MemoryFacts,
    fingerprint_machine,
    profile_machine,
)
from tuner.hardware.cpu import CoreCounts
from tuner.hardware.profile import classify_memory, match_devices, summarise_machine

CPU_ONLY: dict[str, Any] = {"system_info": "CPU : AVX2 = 1 | ", "devices": [{"name": "CPU", "kind": "CPU"}]}
CUDA: dict[str, Any] = {
    **CPU_ONLY,
    "devices": [{"name": "CUDA0", "kind": "GPU", "backend": "CUDA", "device_id": "0000:01:00.0", "free": 21 * GIB}],
}
NO_DRIVER = FakeNvml(init=LibraryNotFound())


def profile(
    root: Path,
    changes: dict[str, str] | None = None,
    *,
    nvml: FakeNvml = NO_DRIVER,
    answer: dict[str, Any] = CPU_ONLY,
    counts: CoreCounts | None = None,
) -> HardwareProfile:
    make_tree(root, {**list_desktop(), **(changes or {})})
    return profile_machine(
        root=root,
        environ={},
        nvml=nvml,
        ask_build=lambda: json.dumps(answer).encode(),
        counts=counts or CoreCounts(physical=4, logical=8, system=8),
    )


def test_a_desktop_without_a_gpu(tmp_path: Path) -> None:
    """No GPU and no driver is the normal case: one quiet note about it, no device."""
    found = profile(tmp_path)
    assert (found.cpu.physical_cores, found.limits.usable_physical, found.memory.total_bytes) == (4, 4, 32 * GIB)
    assert not found.has_device
    assert [note for note in found.notes if "GPU" in note] == ["No NVIDIA GPU information: no NVIDIA driver library was found."]
    assert found.summary == "AMD Ryzen 5 Test, 4 cores, 32 GiB RAM, no GPU"


def test_an_empty_machine_has_a_profile(tmp_path: Path) -> None:
    """Nothing to read, nothing to ask, still no exception: everything is unknown."""
    found = profile_machine(
        root=tmp_path,
        environ={},
        nvml=NO_DRIVER,
        ask_build=lambda: b"",
        counts=CoreCounts(physical=None, logical=65_536, system=2),
    )
    assert (found.memory, found.build, found.devices) == (MemoryFacts(), None, ())
    assert (found.cpu.logical_cpus, found.limits.usable_threads) == (2, 2)
    assert found.notes[0].startswith("This machine does not tell the processor's name (/proc/cpuinfo), its vector features")
    assert "main memory (/proc/meminfo)" in found.notes[0]
    assert len(found.notes) == 3


NONSENSE = (
    "",
    "\n",
    "junk",
    "-1",
    "0",
    "99999999999999999999999",
    "1.5",
    "a: b: c",
    "0-",
    "\x00\x01\ud7ff",
    "max max",
    "é" * 5000,
)
"""What a file of the kernel never says, but a sandbox or a driver may."""

MORE_FILES = {
    "/sys/devices/system/node/node0/cpulist": "0-7\n",
    "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 33554432 kB\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "3000000\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "/sys/devices/system/cpu/cpu0/cpu_capacity": "1024\n",
    "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "0\n",
    "/sys/devices/cpu_core/cpus": "0-3\n",
    "/sys/devices/cpu_atom/cpus": "4-7\n",
    "/sys/fs/cgroup/cpu.max": "400000 100000\n",
    "/sys/fs/cgroup/memory.max": "max\n",
    "/sys/fs/cgroup/memory.current": "1000\n",
    "/sys/fs/cgroup/memory.stat": "inactive_file 5\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/class/power_supply/BAT0/type": "Battery\n",
    "/sys/class/power_supply/BAT0/capacity": "50\n",
    "/sys/firmware/acpi/platform_profile": "balanced\n",
    "/proc/pressure/cpu": "some avg10=0.10 avg60=0.00\n",
    "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "/etc/os-release": 'PRETTY_NAME="Test 1"\n',
}


@pytest.mark.parametrize("name", [*list_desktop(), *MORE_FILES])
def test_nonsense_in_a_file_of_the_kernel_is_no_error(name: str, tmp_path: Path) -> None:
    """Whatever one file says, the profile is made, its counts make sense, and it goes through JSON."""
    for text in NONSENSE:
        found = profile(tmp_path, {**MORE_FILES, name: text})
        assert 1 <= found.cpu.physical_cores <= found.cpu.logical_cpus <= 8
        assert 1 <= found.limits.usable_physical <= found.limits.usable_threads <= 8
        available = found.limits.memory_available_bytes
        assert available is None or available >= 0
        assert msgspec.json.decode(msgspec.json.encode(found), type=HardwareProfile) == found


def test_every_file_that_is_missing_is_unknown_and_noted(tmp_path: Path) -> None:
    """What people ask for first is named in the note when the machine does not tell it."""
    (found,) = (note for note in profile_of_nothing(tmp_path).notes if "does not tell" in note)
    for words in ("processor's name", "vector features", "caches", "cores and threads", "main memory", "swap", "load"):
        assert words in found, words


def profile_of_nothing(root: Path) -> HardwareProfile:
    return profile_machine(
        root=root, environ={}, nvml=NO_DRIVER, ask_build=lambda: b"", counts=CoreCounts(physical=None, logical=2, system=2)
    )


def test_device_and_driver_are_joined_by_bus(tmp_path: Path) -> None:
    """llama.cpp's device carries the UUID of the driver's card."""
    found = profile(tmp_path, nvml=FakeNvml(make_card(bus=9, uuid="GPU-other"), make_card()), answer=CUDA)
    assert [(device.name, device.gpu_uuid, device.unified) for device in found.devices] == [("CUDA0", "GPU-aaaa1111", False)]
    assert found.summary.endswith("32 GiB RAM, NVIDIA GeForce RTX 4090 + NVIDIA GeForce RTX 4090")


def test_a_shared_part_makes_its_device_shared(tmp_path: Path) -> None:
    """llama.cpp calls it a GPU; the driver's refusal and its name tell that it has no memory of its own."""
    card = make_card("NVIDIA GB10", nvmlDeviceGetMemoryInfo=NotSupported())
    found = profile(tmp_path, nvml=FakeNvml(card), answer=CUDA)
    assert found.unified_memory
    assert (found.gpus[0].memory_total_bytes, found.gpus[0].memory_free_bytes) == (32 * GIB, 20 * GIB)


def test_a_shared_part_has_no_more_than_the_container(tmp_path: Path) -> None:
    """What a cgroup leaves bounds it too."""
    limits = {"/sys/fs/cgroup/memory.max": str(8 * GIB), "/sys/fs/cgroup/memory.current": str(2 * GIB)}
    card = make_card("NVIDIA GB10", nvmlDeviceGetMemoryInfo=NotSupported())
    assert profile(tmp_path, limits, nvml=FakeNvml(card), answer=CUDA).gpus[0].memory_free_bytes == 6 * GIB


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(("CPU",), []), (("IGPU", "CPU"), ["D0"]), (("IGPU", "GPU", "CPU"), ["D1"]), (("GPU", "GPU", "ACCEL"), ["D0", "D1"])],
)
def test_integrated_parts_serve_only_alone(kinds: tuple[Any, ...], expected: list[str]) -> None:
    """llama.cpp leaves them out where there is a GPU of its own."""
    build = BuildFacts(devices=tuple(DeviceFacts(name=f"D{place}", kind=kind) for place, kind in enumerate(kinds)))
    assert [device.name for device in match_devices(build, ())] == expected


def test_the_slice_that_cuda_sees_is_the_device() -> None:
    """Slices of one card share its bus; only one of them is visible."""
    bus = "0000:01:00.0"
    gpus = tuple(
        GpuFacts(index=0, uuid=f"MIG-{place}", pci_bus_id=bus, cuda_ordinal=0 if place == 1 else None) for place in range(3)
    )
    build = BuildFacts(devices=(DeviceFacts(name="CUDA0", pci_bus_id=bus),))
    assert [device.gpu_uuid for device in match_devices(build, gpus)] == ["MIG-1"]


def test_without_a_build_there_is_no_device() -> None:
    """A driver's card alone takes no layers."""
    assert match_devices(None, (GpuFacts(index=0, pci_bus_id="0000:01:00.0"),)) == ()


@pytest.mark.parametrize(
    ("changes", "nvml", "answer", "words"),
    [
        ({"/sys/fs/cgroup/cpu.max": "200000 100000"}, NO_DRIVER, CPU_ONLY, "Only 2 of 8 visible CPUs may be used here (/sys/fs/cgroup/cpu.max)"),
        ({}, NO_DRIVER, CPU_ONLY, "This CPU has SSE3, SSSE3, AVX, F16C, FMA, BMI2"),
        ({}, FakeNvml(make_card()), CPU_ONLY, "CMAKE_ARGS='-DGGML_CUDA=on' pip install "),
        ({"/proc/meminfo": "MemTotal: 1024 kB\n"}, NO_DRIVER, CPU_ONLY, "does not tell available memory"),
        ({}, FakeNvml(make_card()), {**CPU_ONLY, "backends": ["CUDA", "CPU"]}, "built for CUDA but finds no GPU"),
        ({}, NO_DRIVER, {"import_error": "ImportError: gone"}, "llama_cpp cannot be loaded: ImportError: gone"),
    ],
)  # fmt: skip
def test_notes(tmp_path: Path, changes: dict[str, str], nvml: FakeNvml, answer: dict[str, Any], words: str) -> None:
    """What a reader should know before trusting figures from here."""
    assert any(words in note for note in profile(tmp_path, changes, nvml=nvml, answer=answer).notes)


def test_hidden_cards_are_not_held_against_the_build(tmp_path: Path) -> None:
    """With CUDA_VISIBLE_DEVICES empty, any build lists no GPU."""
    make_tree(tmp_path, list_desktop())
    found = profile_machine(
        root=tmp_path,
        environ={"CUDA_VISIBLE_DEVICES": ""},
        nvml=FakeNvml(make_card()),
        ask_build=lambda: json.dumps(CPU_ONLY).encode(),
        counts=CoreCounts(),
    )
    assert [note for note in found.notes if "GPU" in note] == ["CUDA_VISIBLE_DEVICES='' hides every GPU."]


def test_affinity_is_not_taken_for_a_quota(tmp_path: Path) -> None:
    """Of two limits, the one that binds is named."""
    counts = CoreCounts(physical=4, logical=8, affinity=(0, 1))
    found = profile(tmp_path, {"/sys/fs/cgroup/cpu.max": "600000 100000"}, counts=counts)
    assert "Only 2 of 8 visible CPUs may be used here (CPU affinity)." in found.notes


def test_a_fitting_build_with_its_card_has_no_notes(tmp_path: Path) -> None:
    """Nothing to say is nothing said."""
    told = "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | "
    assert profile(tmp_path, nvml=FakeNvml(make_card()), answer={**CUDA, "system_info": told}).notes == ()


def test_the_name_survives_load_heat_and_use(tmp_path: Path) -> None:
    """Busy or idle, full or empty, limited or not: the same machine."""
    idle = profile(tmp_path / "idle", nvml=FakeNvml(make_card()))
    busy = profile(
        tmp_path / "busy",
        {
            "/proc/loadavg": "64.00 60.00 50.00 9/512 9\n",
            "/proc/meminfo": f"MemTotal: {32 * 2**20} kB\nMemAvailable: 1024 kB\n",
            "/sys/fs/cgroup/cpu.max": "100000 100000",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "800000",
        },
        nvml=FakeNvml(make_card(nvmlDeviceGetMemoryInfo=memory(24, 1), nvmlDeviceGetTemperature=88)),
    )
    assert idle != busy
    assert idle.fingerprint == busy.fingerprint


@pytest.mark.parametrize(
    ("cpu", "ram", "gpus"),
    [
        ({"model": "B"}, 32 * GIB, ("GPU-1",)),
        ({"physical_cores": 8}, 32 * GIB, ("GPU-1",)),
        ({"simd": ("AVX2", "AVX512")}, 32 * GIB, ("GPU-1",)),
        ({}, 64 * GIB, ("GPU-1",)),
        ({}, 32 * GIB, ("GPU-2",)),
        ({}, 32 * GIB, ()),
    ],
)
def test_other_hardware_has_another_name(cpu: dict[str, Any], ram: int, gpus: tuple[str, ...]) -> None:
    """Each part of a machine counts."""
    plain = CpuFacts(model="A", physical_cores=4, logical_cpus=8, simd=("AVX2",))
    first = fingerprint_machine(plain, MemoryFacts(total_bytes=32 * GIB), (GpuFacts(index=0, uuid="GPU-1"),))
    cards = tuple(GpuFacts(index=place, uuid=uuid) for place, uuid in enumerate(gpus))
    assert fingerprint_machine(msgspec.structs.replace(plain, **cpu), MemoryFacts(total_bytes=ram), cards) != first


def test_the_name_ignores_the_order_of_cards() -> None:
    """Cards may be found in another order."""
    cards = (GpuFacts(index=0, uuid="GPU-1"), GpuFacts(index=1, uuid="GPU-2"))
    moved = (GpuFacts(index=0, uuid="GPU-2"), GpuFacts(index=1, uuid="GPU-1"))
    assert fingerprint_machine(CpuFacts(), MemoryFacts(), cards) == fingerprint_machine(CpuFacts(), MemoryFacts(), moved)


@pytest.mark.parametrize(
    "installed_gib", [1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 768, 1024, 2048]
)
def test_what_a_kernel_keeps_for_itself_is_no_other_machine(installed_gib: float) -> None:
    """Up to a tenth of what is installed may be missing, more or less of it at each boot; twice as much is another machine."""

    def name(share: float) -> str:
        return fingerprint_machine(CpuFacts(), MemoryFacts(total_bytes=int(installed_gib * GIB * share)), ())

    assert len({name(share / 1000) for share in range(900, 1001)}) == 1
    assert name(2) != name(1)


@pytest.mark.parametrize("told_gib", [3.5, 7.5, 11.5, 15.5, 23.5, 31.5, 47.5, 62.5, 125.5, 251.5])
def test_half_a_gibibyte_is_no_boundary(told_gib: float) -> None:
    """Amounts that are told after real boots, some tens of MiB up and down."""
    assert len({classify_memory(int(told_gib * GIB) + shift * 2**20) for shift in range(-100, 101, 10)}) == 1


@pytest.mark.parametrize(
    ("gib", "expected_mib"),
    [(0.2, 1024), (1, 1024), (1.2, 1536), (1.6, 2048), (15.6, 16384), (23.5, 24576), (24.1, 32768), (1007, 1048576)],
)
def test_size_classes(gib: float, expected_mib: int) -> None:
    """The sizes that memory is sold in, each a third or a half above the one before."""
    assert classify_memory(int(gib * GIB)) == expected_mib


@pytest.mark.parametrize(
    ("cpu", "threads", "gpus", "devices", "expected"),
    [
        (CpuFacts(), 1, (), (), "unknown CPU, 1 core, n/a RAM, no GPU"),
        (CpuFacts(arch="aarch64", physical_cores=8, logical_cpus=8), 3, (), (), "aarch64, 8 cores, 3 usable, n/a RAM, no GPU"),
        (
            CpuFacts(model="M2", physical_cores=8, logical_cpus=8),
            8,
            (),
            (DeviceFacts(name="MTL0"),),
            "M2, 8 cores, n/a RAM, MTL0",
        ),
        (CpuFacts(model="X"), 1, (GpuFacts(index=0),), (DeviceFacts(name="CUDA0"),), "X, 1 core, n/a RAM, a GPU"),
    ],
)
def test_the_machine_in_one_line(
    cpu: CpuFacts, threads: int, gpus: tuple[GpuFacts, ...], devices: tuple[DeviceFacts, ...], expected: str
) -> None:
    """Whatever is unknown leaves the line readable."""
    assert summarise_machine(cpu, MemoryFacts(), LimitFacts(usable_threads=threads), gpus, devices) == expected


def test_this_machine() -> None:
    """The real probes: no exception, sane counts, the same name twice, and a profile that survives a round trip as JSON."""
    first, second = profile_machine(), profile_machine()
    assert first.fingerprint == second.fingerprint
    assert 1 <= first.limits.usable_physical <= first.limits.usable_threads <= first.cpu.logical_cpus
    assert first.cpu.physical_cores <= first.cpu.logical_cpus
    assert first.environment.system
    assert msgspec.json.decode(msgspec.json.encode(first), type=HardwareProfile) == first
