"""What this process's cgroups and all their ancestors grant, read where they are really mounted.

/proc/self/cgroup names a group, /proc/self/mountinfo says which part of the hierarchy is visible and where: inside a container
the two differ, and a path taken for granted would be another container's or nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from tuner.hardware.tree import Tree, parse_int

_MOUNT: Final = "/sys/fs/cgroup"
_LIMITING: Final = frozenset({"cpu", "memory"})
_NO_LIMIT: Final = 2**60
"""cgroup v1 writes a number of about 2^63 where nothing limits memory."""


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What one cgroup says."""

    source: str
    """The file it says it in."""
    cpus: float | None = None
    """CPUs' worth of time; None when nothing limits it."""
    memory_bytes: int | None = None
    """Memory, bytes; None when nothing limits it."""
    memory_free_bytes: int | None = None
    """Limit less what is used and cannot be reclaimed, bytes."""
    active_file_bytes: int = 0
    """Of what counts as used here: page cache that was read more than once, which the kernel gives back last, bytes."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a cgroup hierarchy can be read."""

    point: str
    """Folder it is mounted on."""
    root: str = "/"
    """The group that this folder shows, as /proc/self/cgroup would name it; /.. is above this process's cgroup namespace."""
    controllers: frozenset[str] = frozenset()
    """Controllers of a v1 hierarchy; empty for v2."""

    def find_folders(self, path: str) -> tuple[str, ...] | None:
        """Folders of the group `path` and of those above it as far as they show here; None where it is not in this part.

        A group's own folder may be missing (a sandbox with a false path); the caller asks only for files that are there.
        """
        root, parts = _split(self.root), _split(path)
        below = parts[len(root) :]
        if parts[: len(root)] == root and ".." not in below:
            return tuple("/".join((self.point, *below[:length])) for length in range(len(below), -1, -1))
        return (self.point,) if root and set(root) == {".."} else None


def find_version(tree: Tree) -> str | None:
    """v1, v2 or hybrid (limits in v1, v2 mounted beside it); None without cgroups."""
    names = {name for controllers, _ in _list_groups(tree) for name in controllers}
    unified = any(not controllers for controllers, _ in _list_groups(tree))
    if names & _LIMITING:
        return "hybrid" if unified and any(not mount.controllers for mount in list_mounts(tree)) else "v1"
    if unified:
        return "v2"
    return "v1" if names else None


def read_groups(tree: Tree) -> Iterator[Granted]:
    """What this process's groups and all their ancestors say, the innermost first."""
    mounts = list_mounts(tree)
    for controllers, path in _list_groups(tree):
        if not controllers:
            for folder in _find_folders(mounts, path, None):
                yield from _read_v2(tree, folder)
        if "cpu" in controllers:
            for folder in _find_folders(mounts, path, "cpu"):
                yield from _read_v1_cpu(tree, folder)
        if "memory" in controllers:
            for folder in _find_folders(mounts, path, "memory"):
                yield from _read_v1_memory(tree, folder)


def list_mounts(tree: Tree) -> tuple[Mount, ...]:
    """Hierarchies that can be read here; the usual places where the kernel does not list them."""
    lines = (tree.read("/proc/self/mountinfo") or "").splitlines()
    listed = tuple(mount for mount in map(parse_mount, lines) if mount is not None)
    return listed or _guess_mounts(tree)


def parse_mount(line: str) -> Mount | None:
    """A line of /proc/self/mountinfo: id, parent, device, root, mount point, options, optional fields, "-", type, source,
    options of the file system. None for other file systems.
    """
    before, dash, after = line.partition(" - ")
    fields, tail = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
        return None
    controllers = frozenset(tail[2].split(",")) if tail[0] == "cgroup" else frozenset[str]()
    return Mount(point=_unescape(fields[4]), root=_unescape(fields[3]), controllers=controllers)


def _unescape(text: str) -> str:
    """The kernel writes white space and backslashes in mountinfo as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _guess_mounts(tree: Tree) -> tuple[Mount, ...]:
    v1 = tuple(
        Mount(point=f"{_MOUNT}/{name}", controllers=frozenset(name.split(",")))
        for name in ("cpu", "cpu,cpuacct", "cpuacct,cpu", "memory")
        if tree.exists(f"{_MOUNT}/{name}")
    )
    tops = {f"{_MOUNT}/unified": f"{_MOUNT}/unified", f"{_MOUNT}/cgroup.controllers": _MOUNT}
    v2 = next((Mount(point=point) for mark, point in tops.items() if tree.exists(mark)), None)
    return v1 if v2 is None else (*v1, v2)


def _list_groups(tree: Tree) -> Iterator[tuple[frozenset[str], str]]:
    """Controllers and path of each of this process's groups; no controllers for v2."""
    for line in (tree.read("/proc/self/cgroup") or "").splitlines():
        match = re.fullmatch(r"\d+:([^:]*):(.*)", line)
        if match:
            yield frozenset(filter(None, match[1].split(","))), match[2].removesuffix(" (deleted)")


def _find_folders(mounts: tuple[Mount, ...], path: str, controller: str | None) -> tuple[str, ...]:
    """Folders in every mount that shows the group; where none does, the tops of the mounts, which are all there is to read."""
    fitting = [mount for mount in mounts if (not mount.controllers if controller is None else controller in mount.controllers)]
    shown = [folders for mount in fitting if (folders := mount.find_folders(path)) is not None]
    return tuple(dict.fromkeys(folder for folders in shown for folder in folders)) or tuple(m.point for m in fitting)


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _read_v2(tree: Tree, folder: str) -> Iterator[Granted]:
    words = (tree.read(f"{folder}/cpu.max") or "").split()
    quota, period = parse_int(words[0]) if words else None, parse_int(words[1]) if len(words) > 1 else 100_000
    if quota and quota > 0 and period:
        yield Granted(source=f"{folder}/cpu.max", cpus=quota / period)
    for name in ("memory.high", "memory.max"):
        limit = tree.read_int(f"{folder}/{name}")
        if limit is not None:
            stat = tree.read_table(f"{folder}/memory.stat", " ")
            cached, active = parse_int(stat.get("inactive_file")), parse_int(stat.get("active_file"))
            yield _grant_memory(f"{folder}/{name}", limit, tree.read_int(f"{folder}/memory.current"), cached, active)


def _read_v1_cpu(tree: Tree, folder: str) -> Iterator[Granted]:
    quota, period = tree.read_int(f"{folder}/cpu.cfs_quota_us"), tree.read_int(f"{folder}/cpu.cfs_period_us")
    if quota and quota > 0 and period:
        yield Granted(source=f"{folder}/cpu.cfs_quota_us", cpus=quota / period)


def _read_v1_memory(tree: Tree, folder: str) -> Iterator[Granted]:
    """The group's own limit, and the tightest above it, which the kernel tells even where those groups are out of sight.

    Of the latter only this group's share of what is used is known, so what it leaves is an upper bound.
    """
    stat = tree.read_table(f"{folder}/memory.stat", " ")
    cached, active = parse_int(stat.get("total_inactive_file")), parse_int(stat.get("total_active_file"))
    used = tree.read_int(f"{folder}/memory.usage_in_bytes")
    own, above = tree.read_int(f"{folder}/memory.limit_in_bytes"), parse_int(stat.get("hierarchical_memory_limit"))
    if own is not None and own < _NO_LIMIT:
        yield _grant_memory(f"{folder}/memory.limit_in_bytes", own, used, cached, active)
    if above is not None and above < min(_NO_LIMIT, own or _NO_LIMIT):
        yield _grant_memory(f"{folder}/memory.stat (hierarchical_memory_limit)", above, used, cached, active)


def _grant_memory(source: str, limit: int, used: int | None, cached: int | None, active: int | None) -> Granted:
    """Page cache that the kernel would give back at once does not count as used."""
    free = None if used is None else max(0, limit - max(0, used - (cached or 0)))
    return Granted(source=source, memory_bytes=limit, memory_free_bytes=free, active_file_bytes=active or 0)
