"""`rooftune profile`: this machine, as far as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_rich

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.hardware import DeviceFacts, EnvironmentFacts, GpuFacts, HardwareProfile

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
    ceiling = f"{format_bytes(limits.memory_limit_bytes)} ({limits.memory_limit_source})"
    nodes = ", ".join(f"node {n.index} with {len(n.cpus)} CPUs and {format_bytes(n.memory_bytes)}" for n in cpu.numa_nodes)
    now, most = (NA_TEXT if clock is None else f"{clock:.0f} MHz" for clock in (cpu.frequency_mhz, cpu.frequency_max_mhz))
    return [
        ("machine", profile.fingerprint),
        ("CPU", cpu.model or NA_TEXT),
        ("cores", f"{cpu.physical_cores} physical{kinds}, {cpu.logical_cpus} logical, {limits.usable_threads} usable"),
        ("vector units", ", ".join(cpu.simd) or NA_TEXT),
        ("caches", caches or NA_TEXT),
        ("clock", f"{now} now, {most} at most, governor {cpu.governor or NA_TEXT}"),
        ("NUMA nodes", nodes or NA_TEXT),
        ("memory", f"{format_bytes(memory.total_bytes)}, {format_bytes(limits.memory_available_bytes)} available"),
        ("swap", f"{format_bytes(memory.swap_used_bytes)} of {format_bytes(memory.swap_total_bytes)} used"),
        ("huge pages", memory.huge_pages or NA_TEXT),
        ("cgroups", limits.cgroup or "none"),
        ("CPU affinity", f"{limits.affinity_count} of {cpu.logical_cpus} CPUs"),
        ("CPU quota", quota),
        ("memory limit", "none" if limits.memory_limit_bytes is None else ceiling),
    ]


def _list_cards(profile: HardwareProfile) -> list[Row]:
    rows = [row for gpu in profile.gpus for row in _list_card(gpu)]
    return rows or [("GPU", "none found")]


def _list_card(gpu: GpuFacts) -> list[Row]:
    from tuner.units import NA_TEXT, format_bytes

    free = f"{format_bytes(gpu.memory_free_bytes)} of {format_bytes(gpu.memory_total_bytes)} free"
    shared = ", shared with the CPU" if gpu.unified else ""
    now = f"PCIe {gpu.link_generation or NA_TEXT} x{gpu.link_width or NA_TEXT} now"
    link = f"{now}, {gpu.link_generation_max or NA_TEXT} x{gpu.link_width_max or NA_TEXT} at most"
    cap, factory = (NA_TEXT if watts is None else f"{watts:g} W" for watts in (gpu.power_limit_w, gpu.power_limit_default_w))
    slices = f"a slice of {gpu.parent_uuid}" if gpu.parent_uuid else _tell(value=gpu.mig)
    order = "hidden by CUDA_VISIBLE_DEVICES" if gpu.cuda_ordinal is None else f"CUDA{gpu.cuda_ordinal}"
    holders = [f"process {each.pid} {format_bytes(each.memory_bytes)}" for each in gpu.processes or ()]
    name = f"GPU {gpu.index}"
    return [
        (name, f"{gpu.name or NA_TEXT}, {free}{shared}, driver {gpu.driver or NA_TEXT}"),
        (f"{name} link", link),
        (f"{name} power cap", f"{cap}, {factory} from the factory"),
        (f"{name} MIG", slices),
        (f"{name} order", f"{order} ({gpu.pci_bus_id or NA_TEXT}, {gpu.uuid or NA_TEXT})"),
        (f"{name} in use by", ", ".join(holders) or ("nobody" if gpu.processes is not None else NA_TEXT)),
        (f"{name} slowed by", ", ".join(gpu.throttle_reasons or ()) or ("nothing" if gpu.throttle_reasons == () else NA_TEXT)),
    ]


def _list_build(profile: HardwareProfile) -> list[Row]:
    from tuner.units import NA_TEXT

    build = profile.build
    if build is None or not build.importable:
        return [("llama.cpp", NA_TEXT)]
    devices = ", ".join(map(_describe_device, profile.devices)) or "CPU only"
    offload = (
        ", but only through RPC servers" if build.supports_gpu_offload and build.supports_rpc and not profile.devices else ""
    )
    return [
        ("llama.cpp", f"{build.llama_cpp_version or NA_TEXT} (llama-cpp-python {build.package_version or NA_TEXT})"),
        ("devices", devices),
        ("backends", ", ".join(build.backends) or NA_TEXT),
        ("GPU offload", _tell(value=build.supports_gpu_offload) + offload),
        ("compiled for", ", ".join(build.simd) or NA_TEXT),
        ("not compiled for", ", ".join(build.missing_simd) or ("nothing that this CPU has" if build.simd else NA_TEXT)),
        ("repack", _tell(value=build.repack)),
        ("RPC", _tell(value=build.supports_rpc)),
        ("tools", ", ".join(build.tools) or "none"),
    ]


def _describe_device(device: DeviceFacts) -> str:
    from tuner.units import NA_TEXT, format_bytes

    free = f"{format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free"
    return f"{device.name} ({device.description or NA_TEXT}, {free}{', shared with the CPU' if device.unified else ''})"


def _list_surroundings(profile: HardwareProfile) -> list[Row]:
    from tuner.units import NA_TEXT

    here = profile.environment
    loads = [NA_TEXT if load is None else f"{load:.2f}" for load in (here.load_1m, here.load_5m, here.load_15m)]
    waits = (("a CPU", here.cpu_pressure), ("memory", here.memory_pressure), ("a disk", here.io_pressure))
    pressure = ", ".join(f"{NA_TEXT if share is None else f'{share:g} %'} for {what}" for what, share in waits)
    throttled = NA_TEXT if here.throttle_count is None else f"{here.throttle_count} times since boot"
    return [
        ("system", f"{here.distribution or here.system or NA_TEXT}, kernel {here.kernel or NA_TEXT}, {_name_place(here)}"),
        ("load", f"{', '.join(loads)} tasks over 1, 5 and 15 minutes"),
        ("waiting", f"{pressure} (last 10 seconds)"),
        ("power", _describe_power(here)),
        ("slowed by heat", throttled),
    ]


def _name_place(here: EnvironmentFacts) -> str:
    machine = f"virtual machine ({here.virtual_machine})" if here.virtual_machine not in (None, "yes") else "virtual machine"
    places = [
        *([f"container ({here.container})"] if here.container else []),
        *(["WSL"] if here.wsl else []),
        *([machine] if here.virtual_machine else []),
    ]
    return " in ".join(places) or "bare metal"


def _describe_power(here: EnvironmentFacts) -> str:
    from tuner.units import NA_TEXT

    battery = f", battery at {here.battery_percent} %" if here.battery_percent is not None else ""
    return f"{here.power_source or NA_TEXT}{battery}, firmware profile {here.power_profile or NA_TEXT}"


def _tell(*, value: bool | None) -> str:
    return "n/a" if value is None else "yes" if value else "no"
