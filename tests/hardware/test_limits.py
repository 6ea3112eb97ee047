"""What a container or an affinity leaves of the machine, from files of both cgroup versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.trees import list_desktop, list_topology, make_tree
from tuner.hardware.cpu import CoreCounts, probe_cpu
from tuner.hardware.limits import count_usable, probe_limits
from tuner.hardware.memory import probe_memory
from tuner.hardware.record import CpuFacts, LimitFacts, MemoryFacts

GIB = 2**30
EIGHT = CpuFacts(physical_cores=8, logical_cpus=8)
GROUP = "/sys/fs/cgroup"
V2 = {"/proc/self/cgroup": "0::/\n", f"{GROUP}/cgroup.controllers": "cpu memory\n"}


def probe(
    root: Path, files: dict[str, str], *, cpu: CpuFacts = EIGHT, available_gib: int | None = 20, affinity: tuple[int, ...] = ()
) -> LimitFacts:
    memory = MemoryFacts(available_bytes=None if available_gib is None else available_gib * GIB)
    return probe_limits(make_tree(root, files), cpu, memory, affinity=affinity)


def list_memory(folder: str, limit: object, current_gib: int, cached_gib: int) -> dict[str, str]:
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{current_gib * GIB}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {cached_gib * GIB}\nactive_file 5\n",
    }


@pytest.mark.parametrize(
    ("text", "quota", "threads"),
    [
        ("400000 100000", 4.0, 4),
        ("765000 100000", 7.65, 7),
        ("50000 100000", 0.5, 1),
        ("max 100000", None, 8),
        ("1600000 100000", 16.0, 8),
        ("200000", 2.0, 2),
        ("", None, 8),
        ("junk", None, 8),
        ("100000 0", None, 8),
    ],
)
def test_quota_of_version_2(tmp_path: Path, text: str, quota: float | None, threads: int) -> None:
    """CPUs' worth of time, rounded down to threads, at least one, at most what is there."""
    limits = probe(tmp_path, {**V2, f"{GROUP}/cpu.max": text})
    assert (limits.cpu_quota, limits.usable_threads, limits.usable_physical) == (quota, threads, threads)
    assert limits.cpu_quota_source == (f"{GROUP}/cpu.max" if quota else None)


@pytest.mark.parametrize(
    ("quota", "period", "expected", "threads"),
    [("-1", "100000", None, 8), ("400000", "100000", 4.0, 4), ("150000", "50000", 3.0, 3), ("400000", "", None, 8)],
)
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_quota_of_version_1(tmp_path: Path, mount: str, quota: str, period: str, expected: float | None, threads: int) -> None:
    """-1 is no limit; the controller's folder has one of two names."""
    files = {
        "/proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n1:name=systemd:/\n",
        f"{GROUP}/{mount}/cpu.cfs_quota_us": quota,
        f"{GROUP}/{mount}/cpu.cfs_period_us": period,
    }
    limits = probe(tmp_path, files)
    assert (limits.cpu_quota, limits.usable_threads, limits.cgroup) == (expected, threads, "v1")


def test_the_tightest_ancestor_grants_the_time(tmp_path: Path) -> None:
    """A group's own generous quota does not outweigh its parent's."""
    files = {
        "/proc/self/cgroup": "0::/outer/inner\n",
        f"{GROUP}/cgroup.controllers": "cpu",
        f"{GROUP}/cpu.max": "max 100000",
        f"{GROUP}/outer/cpu.max": "200000 100000",
        f"{GROUP}/outer/inner/cpu.max": "600000 100000",
    }
    limits = probe(tmp_path, files)
    assert (limits.cpu_quota, limits.cpu_quota_source) == (2.0, f"{GROUP}/outer/cpu.max")


def test_a_container_that_sees_its_hosts_path_is_read_at_its_mount(tmp_path: Path) -> None:
    """Without a cgroup namespace the path is the host's and does not exist inside."""
    files = {**V2, "/proc/self/cgroup": "0::/docker/0123abcd\n", f"{GROUP}/cpu.max": "300000 100000"}
    assert probe(tmp_path, files).cpu_quota == 3.0


@pytest.mark.parametrize(
    ("limit", "available_gib", "expected_gib"),
    [(8 * GIB, 20, 6), ("max", 20, 20), (8 * GIB, 3, 3), (8 * GIB, None, 6), ("max", None, None)],
)
def test_page_cache_is_not_used_memory(
    tmp_path: Path, limit: object, available_gib: int | None, expected_gib: int | None
) -> None:
    """8 GiB granted, 7 in use of which 5 are cache: 6 are left, or less where the machine itself has less."""
    limits = probe(tmp_path, {**V2, **list_memory(GROUP, limit, 7, 5)}, available_gib=available_gib)
    assert limits.memory_available_bytes == (None if expected_gib is None else expected_gib * GIB)
    assert limits.memory_limit_bytes == (limit if limit != "max" else None)


def test_the_tightest_ancestor_grants_the_memory(tmp_path: Path) -> None:
    """The smallest limit is named; the smallest rest counts, even of a group with a larger limit that others fill."""
    files = {
        "/proc/self/cgroup": "0::/outer/inner\n",
        f"{GROUP}/cgroup.controllers": "memory",
        **list_memory(f"{GROUP}/outer", 16 * GIB, 15, 0),
        **list_memory(f"{GROUP}/outer/inner", 4 * GIB, 1, 0),
    }
    limits = probe(tmp_path, files)
    assert (limits.memory_limit_bytes, limits.memory_limit_source) == (4 * GIB, f"{GROUP}/outer/inner/memory.max")
    assert limits.memory_available_bytes == GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """Not a negative amount; and a limit without a usage leaves the rest open."""
    assert probe(tmp_path, {**V2, **list_memory(GROUP, 4 * GIB, 6, 1)}).memory_available_bytes == 0
    (tmp_path / "sys/fs/cgroup/memory.current").unlink()
    assert probe(tmp_path, {}).memory_available_bytes == 20 * GIB


@pytest.mark.parametrize(("limit", "expected_gib", "named"), [(8 * GIB, 6, True), (9_223_372_036_854_771_712, 20, False)])
def test_memory_of_version_1(tmp_path: Path, limit: int, expected_gib: int, named: bool) -> None:
    """Its way to say "no limit" is a huge number, which never becomes an amount of memory."""
    folder = f"{GROUP}/memory/app"
    files = {
        "/proc/self/cgroup": "4:memory:/app\n",
        f"{folder}/memory.limit_in_bytes": str(limit),
        f"{folder}/memory.usage_in_bytes": str(7 * GIB),
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {5 * GIB}\n",
    }
    limits = probe(tmp_path, files)
    assert limits.memory_available_bytes == expected_gib * GIB
    assert (limits.memory_limit_bytes == limit) is named


@pytest.mark.parametrize(
    ("affinity", "quota", "threads"), [(8, None, 8), (3, None, 3), (3, 2.0, 2), (2, 7.65, 2), (0, None, 1), (8, 0.25, 1)]
)
def test_affinity_and_quota_together(affinity: int, quota: float | None, threads: int) -> None:
    """The smaller of the two, at least one."""
    assert count_usable(affinity, quota) == threads


@pytest.mark.parametrize(
    ("affinity", "physical"), [((), 4), (tuple(range(8)), 4), ((0, 4), 1), ((0, 1), 2), ((0, 4, 1), 2), ((7,), 1)]
)
def test_decode_threads_are_the_cores_that_may_be_touched(tmp_path: Path, affinity: tuple[int, ...], physical: int) -> None:
    """Two threads of one core are one core: the default never puts more decode threads than cores."""
    tree = make_tree(tmp_path, list_desktop())
    cpu = probe_cpu(tree, CoreCounts(physical=4), "x86_64")
    limits = probe_limits(tree, cpu, probe_memory(tree), affinity=affinity)
    assert limits.usable_physical == physical
    assert limits.affinity_count == (len(affinity) or 8)


@pytest.mark.parametrize(("affinity", "physical"), [((), 2), ((0, 1, 4, 5), 1), ((4, 5, 6), 3)])
def test_slow_cores_decode_only_where_no_fast_one_may(tmp_path: Path, affinity: tuple[int, ...], physical: int) -> None:
    """Two fast cores with two threads each, four slow ones."""
    files = {
        **list_topology(((0, 1), (2, 3), (4,), (5,), (6,), (7,))),
        "/sys/devices/cpu_core/cpus": "0-3",
        "/sys/devices/cpu_atom/cpus": "4-7",
    }
    tree = make_tree(tmp_path, files)
    cpu = probe_cpu(tree, CoreCounts(), "x86_64")
    assert probe_limits(tree, cpu, MemoryFacts(), affinity=affinity).usable_physical == physical


def test_without_cgroups_nothing_limits(tmp_path: Path) -> None:
    """The machine's own figures stay."""
    assert probe(tmp_path, {}) == LimitFacts(
        affinity_count=8, memory_available_bytes=20 * GIB, usable_threads=8, usable_physical=8
    )
