"""Where the process runs (container, WSL, virtual machine), how busy it is there, and how it is powered and cooled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from tuner.hardware.record import EnvironmentFacts
from tuner.hardware.tree import Tree

_SUPPLIES = "/sys/class/power_supply"
_CGROUP_HINTS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc"))


class SystemNames(msgspec.Struct, frozen=True, kw_only=True):
    """What Python's platform module says."""

    system: str | None = None
    """Operating system."""
    kernel: str | None = None
    """Kernel release."""
    python: str | None = None
    """Version of this Python."""


def probe_environment(tree: Tree, names: SystemNames, environ: Mapping[str, str]) -> EnvironmentFacts:
    """Everything that changes how figures of this machine are to be read."""
    loads = (tree.read("/proc/loadavg") or "").split()
    release = tree.read("/proc/sys/kernel/osrelease") or names.kernel or ""
    source, percent = _read_power(tree)
    return EnvironmentFacts(
        system=names.system,
        kernel=names.kernel,
        distribution=_find_distribution(tree),
        python=names.python,
        container=find_container(tree, environ),
        wsl=bool(re.search(r"microsoft|wsl", release, re.IGNORECASE)),
        virtual_machine=_find_hypervisor(tree),
        load_1m=_number(loads, 0),
        load_5m=_number(loads, 1),
        load_15m=_number(loads, 2),
        cpu_pressure=_read_pressure(tree, "cpu"),
        memory_pressure=_read_pressure(tree, "memory"),
        io_pressure=_read_pressure(tree, "io"),
        power_source=source,
        battery_percent=percent,
        power_profile=tree.read("/sys/firmware/acpi/platform_profile"),
        throttle_count=_count_throttling(tree),
    )


def find_container(tree: Tree, environ: Mapping[str, str]) -> str | None:
    """The kind of container this is; None outside, as far as can be told."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if tree.exists("/run/.containerenv"):
        return "podman"
    if tree.exists("/.dockerenv"):
        return "docker"
    text = tree.read("/proc/1/cgroup") or ""
    told = environ.get("container") or next((kind for hint, kind in _CGROUP_HINTS if hint in text), None)
    return told or None


def _find_distribution(tree: Tree) -> str | None:
    table = tree.read_table("/etc/os-release", "=")
    return (table.get("PRETTY_NAME") or "").strip('"') or None


def _find_hypervisor(tree: Tree) -> str | None:
    kind = tree.read("/sys/hypervisor/type")
    maker = tree.read("/sys/class/dmi/id/sys_vendor") or ""
    known = ("QEMU", "VMware", "Xen", "Microsoft", "innotek", "Amazon", "Google", "Firecracker")
    named = next((name for name in known if name.lower() in maker.lower()), None)
    flagged = re.search(r"^flags\s*:.*\bhypervisor\b", tree.read("/proc/cpuinfo") or "", re.MULTILINE)
    if kind:
        return kind
    return (named or "yes") if flagged else None


def _read_pressure(tree: Tree, resource: str) -> float | None:
    match = re.search(r"^some avg10=(\d+(?:\.\d+)?)", tree.read(f"/proc/pressure/{resource}") or "", re.MULTILINE)
    return float(match[1]) if match else None


def _read_power(tree: Tree) -> tuple[Literal["mains", "battery"] | None, int | None]:
    mains: list[int] = []
    percent: int | None = None
    battery = discharging = False
    for name in tree.list(_SUPPLIES, r".+"):
        kind = tree.read(f"{_SUPPLIES}/{name}/type")
        if kind == "Mains":
            mains.append(tree.read_int(f"{_SUPPLIES}/{name}/online") or 0)
        elif kind == "Battery" and tree.read(f"{_SUPPLIES}/{name}/scope") != "Device":
            battery = True
            percent = tree.read_int(f"{_SUPPLIES}/{name}/capacity")
            discharging |= tree.read(f"{_SUPPLIES}/{name}/status") == "Discharging"
    if mains:
        return ("battery" if battery and not any(mains) else "mains"), percent
    return ("battery" if discharging else None), percent


def _count_throttling(tree: Tree) -> int | None:
    base = "/sys/devices/system/cpu"
    counts = [tree.read_int(f"{base}/{cpu}/thermal_throttle/core_throttle_count") for cpu in tree.list(base, r"cpu\d+")]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _number(words: list[str], place: int) -> float | None:
    try:
        return float(words[place])
    except (IndexError, ValueError):
        return None
