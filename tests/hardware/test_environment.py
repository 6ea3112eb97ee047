"""Containers, hypervisors, load and power, from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.trees import CPU, list_desktop, make_tree
from tuner.hardware.environment import SystemNames, find_container, probe_environment
from tuner.hardware.record import EnvironmentFacts

NAMES = SystemNames(system="Linux", kernel="6.8.0", python="3.12.1")
SUPPLY = "/sys/class/power_supply"
AC_ON, AC_OFF = (
    {f"{SUPPLY}/AC/type": "Mains", f"{SUPPLY}/AC/online": "1"},
    {f"{SUPPLY}/AC/type": "Mains", f"{SUPPLY}/AC/online": "0"},
)


def probe(root: Path, files: dict[str, str]) -> EnvironmentFacts:
    return probe_environment(make_tree(root, files), NAMES, {})


def make_battery(status: str, percent: str = "80", **more: str) -> dict[str, str]:
    files = {"type": "Battery", "status": status, "capacity": percent, **more}
    return {f"{SUPPLY}/BAT0/{name}": text for name, text in files.items()}


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    """Only Python's own answers, the rest unknown."""
    assert probe(tmp_path, {}) == EnvironmentFacts(system="Linux", kernel="6.8.0", python="3.12.1")


def test_a_desktop(tmp_path: Path) -> None:
    """Load, pressure, distribution, firmware profile and heat."""
    files = {
        **list_desktop(),
        "/proc/pressure/cpu": "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\n",
        "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=9.00 avg60=0 avg300=0 total=0\n",
        "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        "/sys/firmware/acpi/platform_profile": "balanced\n",
        f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "3",
        f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "4",
    }
    facts = probe(tmp_path, files)
    assert (facts.load_1m, facts.load_5m, facts.load_15m) == (0.52, 0.41, 0.30)
    assert (facts.cpu_pressure, facts.memory_pressure, facts.io_pressure) == (12.5, 0.0, None)
    assert (facts.distribution, facts.power_profile, facts.throttle_count) == ("Debian GNU/Linux 12 (bookworm)", "balanced", 7)
    assert (facts.container, facts.wsl, facts.virtual_machine) == (None, False, None)


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, None),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": "engine"}, {}, "podman"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"/proc/1/cgroup": "0::/kubepods/burstable/pod1"}, {}, "kubernetes"),
        ({"/proc/1/cgroup": "5:cpu:/docker/abc"}, {}, "docker"),
        ({"/proc/1/cgroup": "5:cpu:/lxc/box"}, {}, "lxc"),
        ({"/proc/1/cgroup": "0::/init.scope"}, {}, None),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
    ],
)
def test_containers(tmp_path: Path, files: dict[str, str], environ: dict[str, str], expected: str | None) -> None:
    """By the marks that each kind leaves; a plain machine has none."""
    assert find_container(make_tree(tmp_path, files), environ) == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [("5.15.153.1-microsoft-standard-WSL2", True), ("4.4.0-19041-Microsoft", True), ("6.8.0-45-generic", False)],
)
def test_wsl(tmp_path: Path, release: str, expected: bool) -> None:
    """By the kernel's release."""
    assert probe(tmp_path, {"/proc/sys/kernel/osrelease": release}).wsl is expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/cpuinfo": "flags\t\t: fpu avx2\n", "/sys/class/dmi/id/sys_vendor": "Google"}, None),
        ({"/proc/cpuinfo": "flags\t\t: fpu hypervisor avx2\n"}, "yes"),
        ({"/proc/cpuinfo": "flags\t\t: fpu hypervisor\n", "/sys/class/dmi/id/sys_vendor": "QEMU"}, "QEMU"),
        ({"/sys/hypervisor/type": "xen\n"}, "xen"),
    ],
)
def test_virtual_machines(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    """A maker's name alone proves nothing: it builds real machines too."""
    assert probe(tmp_path, files).virtual_machine == expected


@pytest.mark.parametrize(
    ("files", "source", "percent"),
    [
        ({}, None, None),
        (AC_ON | make_battery("Charging"), "mains", 80),
        (AC_OFF | make_battery("Discharging", "15"), "battery", 15),
        (make_battery("Discharging"), "battery", 80),
        (make_battery("Full", "100"), None, 100),
        (AC_OFF, "mains", None),
        (make_battery("Discharging", scope="Device"), None, None),
        (AC_OFF | make_battery("Discharging", "junk"), "battery", None),
    ],
)
def test_power(tmp_path: Path, files: dict[str, str], source: str | None, percent: int | None) -> None:
    """A mouse's battery is not the machine's, and a machine without a battery runs on mains whatever its plug says."""
    facts = probe(tmp_path, files)
    assert (facts.power_source, facts.battery_percent) == (source, percent)
