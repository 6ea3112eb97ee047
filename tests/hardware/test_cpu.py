"""The processor of machines made of files, and core counts that cannot be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.trees import CPU, list_desktop, list_topology, make_tree
from tuner.hardware.cpu import CoreCounts, count_logical, count_physical, probe_cpu
from tuner.hardware.record import CacheFacts, CpuFacts, NumaNode


def probe(root: Path, files: dict[str, str], counts: CoreCounts | None = None, machine: str = "x86_64") -> CpuFacts:
    return probe_cpu(make_tree(root, files), counts or CoreCounts(), machine)


def test_a_desktop(tmp_path: Path) -> None:
    """Names, cores, threads, features and clocks of a plain machine."""
    cpu = probe(tmp_path, {**list_desktop(), f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave\n"})
    assert (cpu.model, cpu.vendor, cpu.arch) == ("AMD Ryzen 5 Test", "AuthenticAMD", "x86_64")
    assert (cpu.physical_cores, cpu.logical_cpus, cpu.sockets) == (4, 8, 1)
    assert (cpu.performance_cores, cpu.efficiency_cores, cpu.performance_cpus, cpu.efficiency_cpus) == (None, None, (), ())
    assert cpu.simd == ("SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2")
    assert (cpu.frequency_mhz, cpu.frequency_max_mhz, cpu.governor) == (3007.5, None, "powersave")


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    """One core, one thread, and unknown for the rest."""
    assert probe(tmp_path, {}, machine="") == CpuFacts()


@pytest.mark.parametrize(
    ("physical", "topology", "logical", "expected"),
    [
        (None, 4, 8, 4),
        (None, 0, 8, 8),
        (None, 0, 0, 1),
        (6, 4, 8, 6),
        (64, 4, 8, 8),
        (65_536, 0, 8, 8),
        (0, 4, 8, 4),
        (-1, 0, 8, 8),
        ("4", 2, 8, 2),
        (2.5, 2, 8, 2),
        (True, 2, 8, 2),
    ],
)
def test_physical_cores(physical: object, topology: int, logical: int, expected: int) -> None:
    """The library's count if it is one, else the topology, else a core for each thread; never more than threads."""
    assert count_physical(CoreCounts(physical=physical), topology, logical) == expected


@pytest.mark.parametrize(
    ("logical", "system", "affinity", "online", "expected"),
    [
        (8, 8, (), tuple(range(8)), 8),
        (65_536, 8, (), (), 8),
        (65_536, None, (), (0, 1), 2),
        (None, None, (0, 1, 2), (), 3),
        (None, 4, (), (), 4),
        (None, None, (), (), 1),
        ("many", 4, (), (), 4),
    ],
)
def test_logical_cpus(
    logical: object, system: int | None, affinity: tuple[int, ...], online: tuple[int, ...], expected: int
) -> None:
    """Never None, never 0, never more than the kernel runs."""
    assert count_logical(CoreCounts(logical=logical, system=system, affinity=affinity), online) == expected


def test_intel_hybrid(tmp_path: Path) -> None:
    """Two fast cores with two threads each and four slow ones: cores, not threads, are counted."""
    files = {
        **list_topology(((0, 1), (2, 3), (4,), (5,), (6,), (7,))),
        "/sys/devices/cpu_core/cpus": "0-3\n",
        "/sys/devices/cpu_atom/cpus": "4-7\n",
    }
    cpu = probe(tmp_path, files)
    assert (cpu.performance_cores, cpu.efficiency_cores) == (2, 4)
    assert (cpu.performance_cpus, cpu.efficiency_cpus) == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("capacities", "fast", "slow"),
    [
        ((446, 446, 1024, 1024), (2, 3), (0, 1)),
        ((1024, 1024, 1024, 1024), (), ()),
        ((1024, 1000, 960, 940), (), ()),
        ((1024, 1000, 500, 500), (0, 1), (2, 3)),
    ],
)
def test_arm_capacities(tmp_path: Path, capacities: tuple[int, ...], fast: tuple[int, ...], slow: tuple[int, ...]) -> None:
    """Whatever is well below the fastest is slow; favoured cores are no second kind."""
    files = list_topology(((0,), (1,), (2,), (3,)))
    files.update({f"{CPU}/cpu{cpu}/cpu_capacity": str(value) for cpu, value in enumerate(capacities)})
    cpu = probe(tmp_path, files, machine="aarch64")
    assert (cpu.performance_cpus, cpu.efficiency_cpus) == (fast, slow)
    assert cpu.performance_cores == (len(fast) or None)


@pytest.mark.parametrize(
    ("files", "model", "vendor"),
    [
        ({"/proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"}, "ARM core 0xd0c", "ARM"),
        ({"/proc/cpuinfo": "CPU implementer\t: 0x99\nCPU part\t: 0x001\n"}, "0x99 core 0x001", "0x99"),
        (
            {"/proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0b\n", "/proc/device-tree/model": "Raspberry Pi 5\0"},
            "Raspberry Pi 5",
            "ARM",
        ),
        ({"/proc/cpuinfo": "CPU implementer\t: junk\n"}, None, None),
    ],
)
def test_names_of_arm_machines(tmp_path: Path, files: dict[str, str], model: str | None, vendor: str | None) -> None:
    """ARM kernels give numbers where others give names; the board's name is the better one."""
    cpu = probe(tmp_path, files, machine="aarch64")
    assert (cpu.model, cpu.vendor) == (model, vendor)


def test_caches_count_once_however_many_cpus_list_them(tmp_path: Path) -> None:
    """Four cores with a first level each, one third level for all."""
    files = list_desktop()
    for core in range(4):
        for cpu in (core, core + 4):
            folder = f"{CPU}/cpu{cpu}/cache"
            files |= {f"{folder}/index0/level": "1", f"{folder}/index0/size": "32K", f"{folder}/index0/type": "Data"}
            files[f"{folder}/index0/shared_cpu_list"] = f"{core},{core + 4}"
            files |= {f"{folder}/index3/level": "3", f"{folder}/index3/size": "16M", f"{folder}/index3/type": "Unified"}
            files[f"{folder}/index3/shared_cpu_list"] = "0-7"
    assert probe(tmp_path, files).caches == (
        CacheFacts(level=1, kind="data", size_bytes=32 * 2**10, shared_by=2, instances=4),
        CacheFacts(level=3, kind="unified", size_bytes=16 * 2**20, shared_by=8, instances=1),
    )


def test_two_sockets_with_a_memory_node_each(tmp_path: Path) -> None:
    """Nodes carry the numbers that numactl takes, and their memory."""
    base = "/sys/devices/system/node"
    files = {
        **list_topology(((0,), (1,), (2,), (3,)), packages=(0, 0, 1, 1)),
        f"{base}/node0/cpulist": "0-1\n",
        f"{base}/node0/meminfo": "Node 0 MemTotal:  1048576 kB\nNode 0 MemFree: 1 kB\n",
        f"{base}/node1/cpulist": "2-3\n",
    }
    cpu = probe(tmp_path, files)
    assert cpu.sockets == 2
    assert cpu.numa_nodes == (
        NumaNode(index=0, cpus=(0, 1), memory_bytes=2**30),
        NumaNode(index=1, cpus=(2, 3), memory_bytes=None),
    )


def test_clocks_from_the_frequency_driver(tmp_path: Path) -> None:
    """The fastest core's clock now, and the highest that any may reach, in MHz."""
    files = list_desktop()
    for number, (now, top) in enumerate([(1_400_000, 5_000_000), (4_200_000, 5_250_000)]):
        files[f"{CPU}/cpu{number}/cpufreq/scaling_cur_freq"] = str(now)
        files[f"{CPU}/cpu{number}/cpufreq/cpuinfo_max_freq"] = str(top)
    cpu = probe(tmp_path, files)
    assert (cpu.frequency_mhz, cpu.frequency_max_mhz) == (4200.0, 5250.0)


def test_without_sysfs_the_processor_table_is_counted(tmp_path: Path) -> None:
    """Some sandboxes show /proc only."""
    cpu = probe(tmp_path, {"/proc/cpuinfo": "processor : 0\n\nprocessor : 1\n"})
    assert (cpu.logical_cpus, cpu.physical_cores) == (2, 2)
