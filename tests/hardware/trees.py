"""Machines made of files: /proc and /sys below a temporary folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.hardware.tree import Tree

CPU = "/sys/devices/system/cpu"


def make_tree(root: Path, files: Mapping[str, str]) -> Tree:
    """A tree with these files, absolute name to text."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root=root)


def list_topology(cores: tuple[tuple[int, ...], ...], *, packages: tuple[int, ...] = ()) -> dict[str, str]:
    """Files that tell which CPUs are threads of one core, and in which package each core sits (0 unless given)."""
    files = {f"{CPU}/online": ",".join(str(cpu) for core in cores for cpu in core)}
    for place, core in enumerate(cores):
        for cpu in core:
            files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = ",".join(map(str, core)) + "\n"
            files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = f"{packages[place] if packages else 0}\n"
    return files


def list_desktop() -> dict[str, str]:
    """Four cores with two threads each, 32 GiB of which 20 are available, no limits."""
    return {
        **list_topology(((0, 4), (1, 5), (2, 6), (3, 7))),
        f"{CPU}/cpu0/cache/index3/level": "3",
        f"{CPU}/cpu0/cache/index3/size": "16384K",
        f"{CPU}/cpu0/cache/index3/shared_cpu_list": "0-7",
        "/proc/cpuinfo": "".join(
            f"processor\t: {cpu}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD Ryzen 5 Test\ncpu MHz\t\t: {3000 + cpu}.5\n"
            "flags\t\t: fpu pni ssse3 avx f16c fma avx2 bmi2\n\n"
            for cpu in range(8)
        ),
        "/proc/meminfo": (
            f"MemTotal:       {32 * 2**20} kB\nMemFree:         {2 * 2**20} kB\nMemAvailable:   {20 * 2**20} kB\n"
            f"SwapTotal:       {8 * 2**20} kB\nSwapFree:        {5 * 2**20} kB\n"
        ),
        "/proc/loadavg": "0.52 0.41 0.30 1/512 4242\n",
        "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    }
