"""The processor from /proc/cpuinfo and /sys/devices/system/cpu: what it is, how its cores hang together, what they can do.

Counts from other sources are checked: a library that answers None, or tens of thousands of cores, changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from tuner.hardware.record import CacheFacts, CpuFacts, NumaNode
from tuner.hardware.simd import name_features
from tuner.hardware.tree import Tree, parse_cpu_list, parse_size

_CPU = "/sys/devices/system/cpu"
_ARM_MAKERS = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0xC0: "Ampere",
}


class CoreCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What libraries say about the number of cores, unchecked."""

    physical: object = None
    """psutil's physical cores: a number, None or nonsense."""
    logical: object = None
    """psutil's hardware threads: a number, None or nonsense."""
    system: int | None = None
    """Python's own os.cpu_count."""
    affinity: tuple[int, ...] = ()
    """CPUs of this process by os.sched_getaffinity; empty where there is no such call."""


def probe_cpu(tree: Tree, counts: CoreCounts, machine: str) -> CpuFacts:
    """Everything about the processor; `machine` is the instruction set as `uname -m` says it."""
    info = tree.read("/proc/cpuinfo") or ""
    table = _read_first_table(info)
    online = list_online(tree, info)
    cores = group_cores(tree, online)
    logical = count_logical(counts, online)
    fast, slow = find_core_kinds(tree, online)
    return CpuFacts(
        model=_find_model(tree, table),
        vendor=table.get("vendor_id") or _name_arm_maker(table),
        arch=machine or None,
        physical_cores=count_physical(counts, len(cores), logical),
        logical_cpus=logical,
        sockets=_count_sockets(tree, online),
        performance_cores=_count_cores_of(fast, cores) if slow else None,
        efficiency_cores=_count_cores_of(slow, cores) if slow else None,
        performance_cpus=fast if slow else (),
        efficiency_cpus=slow,
        simd=name_features(re.split(r"\s+", table.get("flags") or table.get("Features", "")), isa=table.get("isa", "")),
        caches=probe_caches(tree, online),
        numa_nodes=probe_numa(tree),
        frequency_mhz=_find_frequency(tree, info, online),
        frequency_max_mhz=_find_highest(tree, online, "cpuinfo_max_freq"),
        governor=tree.read(f"{_CPU}/cpu{online[0] if online else 0}/cpufreq/scaling_governor"),
    )


def count_logical(counts: CoreCounts, online: tuple[int, ...]) -> int:
    """Hardware threads: the kernel's list, else the system's count, else the library's, never above what the system has."""
    bound = len(online) or counts.system or len(counts.affinity) or 0
    told = counts.logical if _is_count(counts.logical) else bound
    assert isinstance(told, int)
    return max(1, min(told, bound) if bound else told)


def count_physical(counts: CoreCounts, from_topology: int, logical: int) -> int:
    """Cores: the library's answer, else the topology files, else one for each hardware thread; clamped to 1..logical."""
    for told in (counts.physical, from_topology):
        if _is_count(told):
            assert isinstance(told, int)
            return min(told, logical)
    return max(1, logical)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def list_online(tree: Tree, info: str) -> tuple[int, ...]:
    """Logical CPUs that run; () when unknown."""
    online = parse_cpu_list(tree.read(f"{_CPU}/online"))
    return online or tuple(sorted({int(n) for n in re.findall(r"^processor\s*:\s*(\d{1,6})\s*$", info, re.MULTILINE)}))


def group_cores(tree: Tree, online: tuple[int, ...]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Physical cores: the hardware threads of each, by themselves; {} when the topology is unknown."""
    cores: dict[tuple[int, ...], tuple[int, ...]] = {}
    for cpu in online:
        folder = f"{_CPU}/cpu{cpu}/topology"
        siblings = parse_cpu_list(tree.read(f"{folder}/core_cpus_list") or tree.read(f"{folder}/thread_siblings_list"))
        if siblings:
            cores[siblings] = siblings
    return cores


def find_core_kinds(tree: Tree, online: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Logical CPUs of fast and of slow cores; the second is empty where all are alike or nobody tells.

    Intel's kernel driver lists them; on ARM each CPU has a capacity, and whatever is below the highest is slow, save that
    cores within a tenth of the fastest count as fast (favoured cores differ by a few percent).
    """
    fast = parse_cpu_list(tree.read("/sys/devices/cpu_core/cpus"))
    slow = parse_cpu_list(tree.read("/sys/devices/cpu_atom/cpus"))
    if fast and slow:
        return fast, slow
    capacity = {cpu: tree.read_int(f"{_CPU}/cpu{cpu}/cpu_capacity") for cpu in online}
    known = {cpu: value for cpu, value in capacity.items() if value}
    if len(known) != len(online) or not known:
        return online, ()
    top = max(known.values())
    return (
        tuple(cpu for cpu in online if known[cpu] * 10 >= top * 9),
        tuple(cpu for cpu in online if known[cpu] * 10 < top * 9),
    )


def _count_cores_of(cpus: tuple[int, ...], cores: dict[tuple[int, ...], tuple[int, ...]]) -> int:
    return sum(1 for core in cores if set(core) & set(cpus)) or len(cpus)


def _count_sockets(tree: Tree, online: tuple[int, ...]) -> int | None:
    packages = {tree.read_int(f"{_CPU}/cpu{cpu}/topology/physical_package_id") for cpu in online} - {None}
    return len(packages) or None


def probe_caches(tree: Tree, online: tuple[int, ...]) -> tuple[CacheFacts, ...]:
    """Caches by level; instances that are listed by several CPUs count once."""
    found: dict[tuple[int, str, int, int], set[tuple[int, ...]]] = {}
    for cpu in online:
        folder = f"{_CPU}/cpu{cpu}/cache"
        for index in tree.list(folder, r"index\d+"):
            level, size = tree.read_int(f"{folder}/{index}/level"), parse_size(tree.read(f"{folder}/{index}/size"))
            if level is None or not size:
                continue
            shared = parse_cpu_list(tree.read(f"{folder}/{index}/shared_cpu_list")) or (cpu,)
            kind = (tree.read(f"{folder}/{index}/type") or "unified").lower()
            found.setdefault((level, kind, size, len(shared)), set()).add(shared)
    return tuple(
        CacheFacts(level=level, kind=kind, size_bytes=size, shared_by=shared, instances=len(places))
        for (level, kind, size, shared), places in sorted(found.items())
    )


def probe_numa(tree: Tree) -> tuple[NumaNode, ...]:
    """Memory nodes; () when the kernel does not list them."""
    base = "/sys/devices/system/node"
    return tuple(
        NumaNode(
            index=int(name.removeprefix("node")),
            cpus=parse_cpu_list(tree.read(f"{base}/{name}/cpulist")),
            memory_bytes=_find_node_memory(tree.read(f"{base}/{name}/meminfo") or ""),
        )
        for name in tree.list(base, r"node\d+")
    )


def _find_node_memory(text: str) -> int | None:
    match = re.search(r"MemTotal:\s*(\d+ kB)", text)
    return parse_size(match[1]) if match else None


def _read_first_table(info: str) -> dict[str, str]:
    """The keys of /proc/cpuinfo; of a key that each CPU repeats, the first."""
    table: dict[str, str] = {}
    for line in info.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            table.setdefault(key.strip(), value.strip())
    return table


def _find_model(tree: Tree, table: dict[str, str]) -> str | None:
    named = table.get("model name") or table.get("cpu model") or table.get("Model") or table.get("Hardware") or table.get("cpu")
    board = tree.read("/proc/device-tree/model")
    maker, part = _name_arm_maker(table), table.get("CPU part")
    return named or board or (f"{maker} core {part}" if maker and part else None)


def _name_arm_maker(table: dict[str, str]) -> str | None:
    text = table.get("CPU implementer", "")
    return _ARM_MAKERS.get(int(text, 16), text) if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text) else None


def _find_frequency(tree: Tree, info: str, online: tuple[int, ...]) -> float | None:
    live = _find_highest(tree, online, "scaling_cur_freq")
    listed = [float(text) for text in re.findall(r"^cpu MHz\s*:\s*(\d+(?:\.\d+)?)\s*$", info, re.MULTILINE)]
    return live or max(listed, default=None)


def _find_highest(tree: Tree, online: tuple[int, ...], name: str) -> float | None:
    values = Counter(tree.read_int(f"{_CPU}/cpu{cpu}/cpufreq/{name}") for cpu in online)
    known = [value for value in values if value]
    return max(known) / 1000 if known else None
