"""NVIDIA GPUs through NVML: each field under its own guard, so that one refusal never costs the others.

No driver is the quiet normal case. A figure that the driver refuses is None, never 0, and never main memory in disguise,
save on parts that really have no memory of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from tuner.hardware.record import GpuFacts, GpuProcess

T = TypeVar("T")

_INTEGRATED: Final = re.compile(r"\b(GB10|DGX Spark|Orin|Thor|Xavier|Tegra|Jetson|nvgpu|N1X)\b", re.IGNORECASE)
_FAILURES: Final = {
    "NVMLError_LibraryNotFound": "no NVIDIA driver library was found",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NVMLError_FunctionNotFound": "the NVIDIA driver is too old for this nvidia-ml-py",
    "NVMLError_NoPermission": "the NVIDIA driver refuses this user",
    "NVMLError_LibRmVersionMismatch": "the NVIDIA driver and its library have different versions: restart the machine",
}
_THROTTLING: Final = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


def probe_gpus(
    *,
    nvml: Any | None = None,
    environ: Mapping[str, str],
    memory_total_bytes: int | None,
    memory_available_bytes: int | None,
) -> tuple[tuple[GpuFacts, ...], tuple[str, ...]]:
    """GPUs in NVML's order, slices in place of a card that is cut, and notes.

    `nvml`: the pynvml module; None imports it. The two amounts of main memory serve for GPUs that share it.
    """
    try:
        library = nvml or _import_nvml()
        library.nvmlInit()
    except Exception as error:  # noqa: BLE001 - a driver stack fails in many ways; each is a reason, none is fatal
        return (), (f"No NVIDIA GPU information: {_explain(error)}.",)
    try:
        cards = _list_cards(library)
        found = [fact for card in cards for fact in _describe(library, *card, memory_total_bytes, memory_available_bytes)]
        return _number_for_cuda(found, environ)
    finally:
        _guard(library.nvmlShutdown)


def _import_nvml() -> Any:
    import pynvml

    return pynvml


def _explain(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "the nvidia-ml-py package is not installed"
    if isinstance(error, AttributeError) or "undefined symbol" in str(error):
        return "the NVIDIA driver is too old for this nvidia-ml-py"
    return _FAILURES.get(type(error).__name__) or " ".join(f"{type(error).__name__} {error}".split())[:120]


def _guard(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - NVML raises a class for each code and more; any of them means "won't say"
        return None


def _refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - the kind of refusal is the answer
        return type(error).__name__
    return ""


def _list_cards(nvml: Any) -> list[tuple[int, Any]]:
    count = _guard(nvml.nvmlDeviceGetCount) or 0
    handles = ((index, _guard(lambda index=index: nvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count))
    return [(index, handle) for index, handle in handles if handle is not None]


def _describe(nvml: Any, index: int, handle: Any, total: int | None, available: int | None) -> list[GpuFacts]:
    card = _describe_card(nvml, index, handle, total, available)
    slices = _list_slices(nvml, handle)
    if not slices:
        return [card]
    return [_describe_slice(nvml, card, part) for part in slices]


def _describe_card(nvml: Any, index: int, handle: Any, total: int | None, available: int | None) -> GpuFacts:
    def ask(name: str, *arguments: object) -> Any:
        return _guard(lambda: getattr(nvml, name)(handle, *arguments))

    name, bus = _text(ask("nvmlDeviceGetName")), ask("nvmlDeviceGetPciInfo")
    memory = ask("nvmlDeviceGetMemoryInfo")
    refusal = _refusal(lambda: nvml.nvmlDeviceGetMemoryInfo(handle)) if memory is None else ""
    unified = refusal == "NVMLError_NotSupported" and bool(_INTEGRATED.search(name or ""))
    limit, factory = ask("nvmlDeviceGetPowerManagementLimit"), ask("nvmlDeviceGetPowerManagementDefaultLimit")
    capability, mode = ask("nvmlDeviceGetCudaComputeCapability"), ask("nvmlDeviceGetMigMode")
    rates = ask("nvmlDeviceGetUtilizationRates")
    return GpuFacts(
        index=index,
        name=name,
        uuid=_text(ask("nvmlDeviceGetUUID")),
        pci_bus_id=normalise_bus(_text(getattr(bus, "busId", None))),
        memory_total_bytes=total if unified else getattr(memory, "total", None),
        memory_free_bytes=available if unified else getattr(memory, "free", None),
        memory_used_bytes=getattr(memory, "used", None),
        unified=unified,
        driver=_text(_guard(nvml.nvmlSystemGetDriverVersion)),
        cuda=_version(_guard(nvml.nvmlSystemGetCudaDriverVersion)),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        link_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        link_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        link_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        link_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        memory_bus_bits=ask("nvmlDeviceGetMemoryBusWidth"),
        memory_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", 2),
        power_limit_w=None if limit is None else limit / 1000,
        power_limit_default_w=None if factory is None else factory / 1000,
        temperature_c=ask("nvmlDeviceGetTemperature", 0),
        utilization=getattr(rates, "gpu", None),
        throttle_reasons=_name_throttling(ask("nvmlDeviceGetCurrentClocksThrottleReasons")),
        mig=bool(mode[0]) if mode else None,
        processes=_list_processes(ask("nvmlDeviceGetComputeRunningProcesses")),
    )


def _list_slices(nvml: Any, handle: Any) -> list[Any]:
    count = _guard(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0
    parts = (_guard(lambda n=n: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, n)) for n in range(count))
    return [part for part in parts if part is not None]


def _describe_slice(nvml: Any, card: GpuFacts, part: Any) -> GpuFacts:
    """The slice's own memory; what it does not tell apart (driver, link) is its card's."""
    memory = _guard(lambda: nvml.nvmlDeviceGetMemoryInfo(part))
    return msgspec.structs.replace(
        card,
        name=_text(_guard(lambda: nvml.nvmlDeviceGetName(part))) or card.name,
        uuid=_text(_guard(lambda: nvml.nvmlDeviceGetUUID(part))),
        memory_total_bytes=getattr(memory, "total", None),
        memory_free_bytes=getattr(memory, "free", None),
        memory_used_bytes=getattr(memory, "used", None),
        mig=True,
        parent_uuid=card.uuid,
        utilization=None,
        processes=_list_processes(_guard(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(part))),
    )


def _number_for_cuda(found: list[GpuFacts], environ: Mapping[str, str]) -> tuple[tuple[GpuFacts, ...], tuple[str, ...]]:
    """CUDA's numbers after CUDA_VISIBLE_DEVICES: an entry that names nothing hides itself and all after it."""
    notes: list[str] = []
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not by_bus and len({gpu.name for gpu in found}) > 1:
        notes.append("CUDA numbers unlike cards fastest first, not by bus: export CUDA_DEVICE_ORDER=PCI_BUS_ID.")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = list(range(len(found))) if visible is None else _choose(found, visible)
    if found and not chosen:
        notes.append(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU.")
    numbers = {place: ordinal for ordinal, place in enumerate(chosen)}
    facts = (msgspec.structs.replace(gpu, cuda_ordinal=numbers.get(place)) for place, gpu in enumerate(found))
    return tuple(facts), tuple(notes)


def _choose(found: list[GpuFacts], visible: str) -> list[int]:
    chosen: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        place = _find_place(found, entry)
        if place is None or place in chosen:
            break
        chosen.append(place)
    return chosen


def _find_place(found: list[GpuFacts], entry: str) -> int | None:
    if re.fullmatch(r"\d{1,4}", entry):
        return next((place for place, gpu in enumerate(found) if gpu.index == int(entry)), None)
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matches = [place for place, gpu in enumerate(found) if (gpu.uuid or "").startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def normalise_bus(text: str | None) -> str | None:
    """NVML's "00000000:01:00.0" as llama.cpp writes it, "0000:01:00.0"."""
    match = re.fullmatch(r"([0-9a-fA-F]{4,8}):(.+)", text or "")
    return f"{match[1][-4:]}:{match[2]}".lower() if match else None


def _list_processes(listed: Any) -> tuple[GpuProcess, ...] | None:
    if listed is None:
        return None
    return tuple(
        GpuProcess(pid=each.pid, memory_bytes=getattr(each, "usedGpuMemory", None)) for each in listed if each.pid != os.getpid()
    )


def _name_throttling(bits: int | None) -> tuple[str, ...] | None:
    return None if bits is None else tuple(name for bit, name in _THROTTLING.items() if bits & bit)


def _version(number: int | None) -> str | None:
    return None if not number else f"{number // 1000}.{number % 1000 // 10}"


def _text(value: object) -> str | None:
    raw = value.decode(errors="replace") if isinstance(value, bytes) else value
    return raw if isinstance(raw, str) and raw.strip() and raw.strip() not in {"N/A", "[N/A]"} else None
