"""`rooftune profile`: this machine, as far as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_rich

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.hardware import HardwareProfile

Row = tuple[str, str]


@click.command("profile", help="This machine: CPU, memory, GPUs, links, limits, what this llama.cpp build can use.")
@with_options(json_option, verbose_option)
def command(*, as_json: bool, verbose: bool) -> None:
    from tuner.hardware import profile_machine

    del verbose
    profile = profile_machine()
    if as_json:
        print_json(profile)
    else:
        print_rich(profile.summary, draw_profile(profile), *(f"note: {note}" for note in profile.notes))


def draw_profile(profile: HardwareProfile) -> Table:
    """One row a fact; what the machine won't say is n/a."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (*_list_host(profile), *_list_cards(profile), *_list_build(profile), *_list_surroundings(profile)):
        table.add_row(name, value)
    return table


def _list_host(profile: HardwareProfile) -> list[Row]:
    from tuner.units import NA_TEXT, format_bytes

    cpu, memory, limits = profile.cpu, profile.memory, profile.limits
    kinds = f" ({cpu.performance_cores} fast, {cpu.efficiency_cores} slow)" if cpu.efficiency_cores else ""
    caches = ", ".join(f"L{c.level} {c.kind} {c.instances} × {format_bytes(c.size_bytes)}" for c in cpu.caches)
    quota = "none" if limits.cpu_quota is None else f"{limits.cpu_quota:g} CPUs ({limits.cpu_quota_source})"
    ceiling = "none" if limits.memory_limit_bytes is None else format_bytes(limits.memory_limit_bytes)
    return [
        ("machine", profile.fingerprint),
        ("CPU", cpu.model or NA_TEXT),
        ("cores", f"{cpu.physical_cores} physical{kinds}, {cpu.logical_cpus} logical, {limits.usable_threads} usable"),
        ("vector units", ", ".join(cpu.simd) or NA_TEXT),
        ("caches", caches or NA_TEXT),
        ("NUMA nodes", str(len(cpu.numa_nodes)) if cpu.numa_nodes else NA_TEXT),
        ("memory", f"{format_bytes(memory.total_bytes)}, {format_bytes(limits.memory_available_bytes)} available"),
        ("swap", f"{format_bytes(memory.swap_used_bytes)} of {format_bytes(memory.swap_total_bytes)} used"),
        ("CPU quota", quota),
        ("memory limit", ceiling),
    ]


def _list_cards(profile: HardwareProfile) -> list[Row]:
    from tuner.units import NA_TEXT, format_bytes

    rows = []
    for gpu in profile.gpus:
        link = f"PCIe {gpu.link_generation_max or NA_TEXT} x{gpu.link_width_max or NA_TEXT}"
        free = f"{format_bytes(gpu.memory_free_bytes)} of {format_bytes(gpu.memory_total_bytes)} free"
        power = NA_TEXT if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"
        rows.append((f"GPU {gpu.index}", f"{gpu.name or NA_TEXT}, {free}, {link}, {power}, driver {gpu.driver or NA_TEXT}"))
    return rows or [("GPU", "none found")]


def _list_build(profile: HardwareProfile) -> list[Row]:
    from tuner.units import NA_TEXT

    build = profile.build
    if build is None or not build.importable:
        return [("llama.cpp", NA_TEXT)]
    devices = ", ".join(device.name for device in profile.devices) or "CPU only"
    return [
        ("llama.cpp", f"{build.llama_cpp_version or NA_TEXT} (llama-cpp-python {build.package_version or NA_TEXT})"),
        ("devices", devices),
        ("backends", ", ".join(build.backends) or NA_TEXT),
        ("compiled for", ", ".join(build.simd) or NA_TEXT),
        ("repack", _tell(value=build.repack)),
        ("RPC", _tell(value=build.supports_rpc)),
        ("tools", ", ".join(build.tools) or "none"),
    ]


def _list_surroundings(profile: HardwareProfile) -> list[Row]:
    from tuner.units import NA_TEXT

    here = profile.environment
    load = NA_TEXT if here.load_1m is None else f"{here.load_1m:.2f}"
    where = here.container or ("WSL" if here.wsl else None) or ("virtual machine" if here.virtual_machine else "bare metal")
    return [
        ("system", f"{here.distribution or here.system or NA_TEXT}, kernel {here.kernel or NA_TEXT}, {where}"),
        ("load", f"{load} tasks over the last minute"),
        ("power", here.power_source or NA_TEXT),
    ]


def _tell(*, value: bool | None) -> str:
    return "n/a" if value is None else "yes" if value else "no"
