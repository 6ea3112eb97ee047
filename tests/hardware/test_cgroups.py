"""Where a process's cgroups are mounted, as /proc/self/mountinfo tells it, and what they grant there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.trees import make_tree
from tuner.hardware.cgroups import Granted, find_version, parse_mount, read_groups

GIB = 2**30
GROUP = "/sys/fs/cgroup"
FULL_V1 = 9_223_372_036_854_771_712


def write_mounts(*mounts: tuple[str, str, str, str]) -> str:
    """Lines of mountinfo: (root, mount point, type, options of the file system), among others' mounts."""
    lines = ["22 27 0:21 / /proc rw,relatime - proc proc rw", "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"]
    lines += [
        f"40 27 0:38 {root} {point} ro,nosuid shared:9 - {kind} cgroup {options}" for root, point, kind, options in mounts
    ]
    return "\n".join(lines) + "\n"


def list_granted(folder: Path, own: str, mounts: str, files: dict[str, str]) -> list[Granted]:
    tree = make_tree(folder, {"/proc/self/cgroup": own, "/proc/self/mountinfo": mounts, **files})
    return list(read_groups(tree))


def grant_v2(folder: str, gib: int) -> dict[str, str]:
    return {f"{folder}/memory.max": str(gib * GIB), f"{folder}/memory.current": "0"}


V2_AT = ("cgroup2", "rw,nsdelegate")
OFFSETS: dict[str, tuple[str, list[tuple[str, str, str, str]], dict[str, str], str]] = {
    "the whole hierarchy": ("0::/user/app", [("/", GROUP, *V2_AT)], grant_v2(f"{GROUP}/user/app", 4), f"{GROUP}/user/app"),
    "a bind-mounted subtree, the path the host's": (
        "0::/docker/abc",
        [("/docker/abc", GROUP, *V2_AT)],
        grant_v2(GROUP, 4),
        GROUP,
    ),
    "a child group inside such a subtree": (
        "0::/docker/abc/init.scope",
        [("/docker/abc", GROUP, *V2_AT)],
        grant_v2(f"{GROUP}/init.scope", 4),
        f"{GROUP}/init.scope",
    ),
    "a cgroup namespace": ("0::/", [("/", GROUP, *V2_AT)], grant_v2(GROUP, 4), GROUP),
    "a namespace below what is mounted": ("0::/", [("/../..", GROUP, *V2_AT)], grant_v2(GROUP, 4), GROUP),
    "a process moved beside its namespace": (
        "0::/../other",
        [("/..", GROUP, *V2_AT)],
        grant_v2(f"{GROUP}/other", 4),
        f"{GROUP}/other",
    ),
    "a path that is nowhere": ("0::/gone/away", [("/", GROUP, *V2_AT)], grant_v2(GROUP, 4), GROUP),
    "only a part is mounted, and not ours": ("0::/", [("/docker/abc", GROUP, *V2_AT)], grant_v2(GROUP, 4), GROUP),
    "v2 elsewhere": ("0::/app", [("/", "/run/cgroup two", *V2_AT)], grant_v2("/run/cgroup two/app", 4), "/run/cgroup two/app"),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_a_group_is_read_where_it_is_mounted(tmp_path: Path, name: str) -> None:
    """The mount's root is taken off the group's path; white space in a mount point is written in octal digits."""
    own, mounts, files, folder = OFFSETS[name]
    escaped = [(root, point.replace(" ", "\\040"), kind, options) for root, point, kind, options in mounts]
    found = list_granted(tmp_path, own, write_mounts(*escaped), files)
    assert found == [Granted(source=f"{folder}/memory.max", memory_bytes=4 * GIB, memory_free_bytes=4 * GIB)]


def test_another_containers_group_limits_nobody_else(tmp_path: Path) -> None:
    """A foreign part of the hierarchy that happens to be mounted too is left alone, whatever it says."""
    mounts = write_mounts(("/pods/other", "/mnt/other", *V2_AT), ("/", GROUP, *V2_AT))
    files = {**grant_v2("/mnt/other", 1), **grant_v2(f"{GROUP}/pods/mine", 4)}
    assert [each.memory_bytes for each in list_granted(tmp_path, "0::/pods/mine", mounts, files)] == [4 * GIB]


def test_a_namespaces_name_is_not_looked_up_elsewhere(tmp_path: Path) -> None:
    """A group outside the namespace may bear the name of one inside."""
    files = {**grant_v2(f"{GROUP}/other", 1), **grant_v2(GROUP, 4)}
    found = list_granted(tmp_path, "0::/../other", write_mounts(("/", GROUP, *V2_AT)), files)
    assert [each.memory_bytes for each in found] == [4 * GIB]


def test_a_hybrid_hierarchy_elsewhere(tmp_path: Path) -> None:
    """Old controllers, each at its own place, with v2 beside them."""
    mounts = write_mounts(
        ("/", "/cgroup/time", "cgroup", "rw,cpuacct,cpu"),
        ("/lxc/box", "/cgroup/memory", "cgroup", "rw,memory"),
        ("/", "/cgroup/unified", "cgroup2", "rw"),
    )
    files = {
        "/cgroup/time/box/cpu.cfs_quota_us": "150000",
        "/cgroup/time/box/cpu.cfs_period_us": "100000",
        "/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
    }
    own = "5:cpuacct,cpu:/box\n4:memory:/lxc/box\n1:name=systemd:/\n0::/box\n"
    assert list_granted(tmp_path, own, mounts, files) == [
        Granted(source="/cgroup/time/box/cpu.cfs_quota_us", cpus=1.5),
        Granted(source="/cgroup/memory/memory.limit_in_bytes", memory_bytes=2 * GIB),
    ]
    assert find_version(make_tree(tmp_path, {})) == "hybrid"


@pytest.mark.parametrize(
    ("high", "most", "expected"),
    [
        (3 * GIB, 4 * GIB, [("memory.high", 2), ("memory.max", 3)]),
        (3 * GIB, "max", [("memory.high", 2)]),
        ("max", 4 * GIB, [("memory.max", 3)]),
        ("max", "max", []),
    ],
)
def test_what_throttles_limits_too(tmp_path: Path, high: object, most: object, expected: list[tuple[str, int]]) -> None:
    """Above memory.high the kernel makes a group wait and reclaim: figures from there are of no use."""
    files = {
        f"{GROUP}/memory.high": str(high),
        f"{GROUP}/memory.max": str(most),
        f"{GROUP}/memory.current": str(2 * GIB),
        f"{GROUP}/memory.stat": f"inactive_file {GIB}",
    }
    found = list_granted(tmp_path, "0::/", write_mounts(("/", GROUP, *V2_AT)), files)
    assert [(each.source, each.memory_free_bytes) for each in found] == [
        (f"{GROUP}/{name}", free * GIB) for name, free in expected
    ]


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        (FULL_V1, 4 * GIB, [("memory.stat (hierarchical_memory_limit)", 4)]),
        (6 * GIB, 4 * GIB, [("memory.limit_in_bytes", 6), ("memory.stat (hierarchical_memory_limit)", 4)]),
        (4 * GIB, 4 * GIB, [("memory.limit_in_bytes", 4)]),
        (4 * GIB, FULL_V1, [("memory.limit_in_bytes", 4)]),
        (FULL_V1, FULL_V1, []),
    ],
)
def test_a_limit_above_what_is_mounted(tmp_path: Path, own: int, above: int, expected: list[tuple[str, int]]) -> None:
    """Version 1 tells the tightest limit of groups that cannot be seen from here."""
    folder = f"{GROUP}/memory"
    files = {f"{folder}/memory.limit_in_bytes": str(own), f"{folder}/memory.stat": f"hierarchical_memory_limit {above}"}
    found = list_granted(tmp_path, "4:memory:/a/b", write_mounts(("/a/b", folder, "cgroup", "rw,memory")), files)
    assert [(each.source, each.memory_bytes) for each in found] == [(f"{folder}/{name}", gib * GIB) for name, gib in expected]


@pytest.mark.parametrize(
    ("lines", "folders", "expected"),
    [
        ("0::/", ("cgroup.controllers",), "v2"),
        ("3:cpu:/\n0::/", ("unified",), "hybrid"),
        ("3:cpu:/\n0::/", (), "v1"),
        ("3:cpu:/", (), "v1"),
        ("", (), None),
        ("1:net_cls:/\n0::/", ("cgroup.controllers",), "v2"),
    ],
)
def test_versions(tmp_path: Path, lines: str, folders: tuple[str, ...], expected: str | None) -> None:
    """By the process's own groups and by what is mounted."""
    files = {"/proc/self/cgroup": lines, **{f"{GROUP}/{name}": "" for name in folders}}
    assert find_version(make_tree(tmp_path, files)) == expected


@pytest.mark.parametrize("line", ["", "junk", "1 2 3 / /x rw", "1 2 3 / /x rw - cgroup2", "1 2 3 / /x rw - tmpfs cgroup rw"])
def test_a_line_that_is_no_cgroup_mount(line: str) -> None:
    """Nothing is made of it, and nothing is raised."""
    assert parse_mount(line) is None
