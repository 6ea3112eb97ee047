"""NVIDIA GPUs through NVML: each field under its own guard, so that one refusal never costs the others.

No driver is the quiet normal case. A figure that the driver refuses is None, never 0, and never main memory in disguise,
save on parts that really have no memory of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tuner.hardware.record import GpuFacts, GpuProcess

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
_MOST_SLICES: Final = 8


class _Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of a card's memory, bytes."""

    total: int | None = None
    free: int | None = None
    used: int | None = None
    absent: bool = False
    """The driver knows that the part has none of its own to tell of; other refusals leave it open."""

    def share(self, total: int | None, available: int | None) -> _Memory:
        """Main memory in its place; unknown where the driver failed for another reason than having nothing to tell."""
        known = self.absent or self.total is not None
        return _Memory(total=total, free=available) if known else self


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
        cards, notes = _list_cards(library)
        found = [fact for card in cards for fact in _describe(library, *card, memory_total_bytes, memory_available_bytes)]
    finally:
        _ask(library, "nvmlShutdown")
    gpus, order_notes = _number_for_cuda(found, environ)
    return gpus, (*notes, *_find_gaps(gpus), *order_notes)


def _import_nvml() -> Any:
    import pynvml

    return pynvml


def _explain(error: Exception) -> str:
    if isinstance(error, AttributeError) or "undefined symbol" in str(error):
        return _FAILURES["NVMLError_FunctionNotFound"]
    if isinstance(error, ImportError):
        return "the nvidia-ml-py package is not installed"
    return _FAILURES.get(type(error).__name__) or " ".join(f"{type(error).__name__} {error}".split())[:120]


def _ask(nvml: Any, function: str, *arguments: object) -> Any:
    try:
        return getattr(nvml, function)(*arguments)
    except Exception:  # noqa: BLE001 - NVML raises a class for each code and more; any of them means "won't say"
        return None


def _list_cards(nvml: Any) -> tuple[list[tuple[int, Any]], list[str]]:
    count = _ask(nvml, "nvmlDeviceGetCount")
    if not count:
        return [], ["The NVIDIA driver would not list its GPUs." if count is None else "The NVIDIA driver lists no GPU."]
    handles = {index: _ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)}
    cards = [(index, handle) for index, handle in handles.items() if handle is not None]
    return cards, [f"GPU {index}: the NVIDIA driver gives no access to it." for index in handles if handles[index] is None]


def _describe(nvml: Any, index: int, handle: Any, total: int | None, available: int | None) -> list[GpuFacts]:
    card = _describe_card(nvml, index, handle, total, available)
    slices = _list_slices(nvml, handle)
    if not slices:
        return [card]
    return [_describe_slice(nvml, card, part) for part in slices]


def _describe_card(nvml: Any, index: int, handle: Any, total: int | None, available: int | None) -> GpuFacts:
    def ask(function: str, *arguments: object) -> Any:
        return _ask(nvml, function, handle, *arguments)

    name, bus = _text(ask("nvmlDeviceGetName")), ask("nvmlDeviceGetPciInfo")
    memory, unified = _ask_memory(nvml, handle), bool(_INTEGRATED.search(name or ""))
    if unified:
        memory = memory.share(total, available)
    limit, factory = ask("nvmlDeviceGetPowerManagementLimit"), ask("nvmlDeviceGetPowerManagementDefaultLimit")
    capability, mode = ask("nvmlDeviceGetCudaComputeCapability"), ask("nvmlDeviceGetMigMode")
    rates = ask("nvmlDeviceGetUtilizationRates")
    return GpuFacts(
        index=index,
        name=name,
        uuid=_text(ask("nvmlDeviceGetUUID")),
        pci_bus_id=normalise_bus(_text(getattr(bus, "busId", None))),
        memory_total_bytes=memory.total,
        memory_free_bytes=memory.free,
        memory_used_bytes=memory.used,
        unified=unified,
        driver=_text(_ask(nvml, "nvmlSystemGetDriverVersion")),
        cuda=_version(_ask(nvml, "nvmlSystemGetCudaDriverVersion")),
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
        processes=_list_processes(nvml, handle),
    )


def _ask_memory(nvml: Any, handle: Any) -> _Memory:
    try:
        told = nvml.nvmlDeviceGetMemoryInfo(handle)
    except Exception as error:  # noqa: BLE001 - only one kind of refusal has a meaning, the others are all "won't say"
        return _Memory(absent=type(error).__name__ == "NVMLError_NotSupported")
    return _Memory(total=told.total, free=told.free, used=told.used)


def _list_slices(nvml: Any, handle: Any) -> list[Any]:
    count = _ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle)
    places = range(_MOST_SLICES if count is None else count)
    parts = (_ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, n) for n in places)
    return [part for part in parts if part is not None]


def _describe_slice(nvml: Any, card: GpuFacts, part: Any) -> GpuFacts:
    """The slice's own memory; the driver and the link are its card's; of the card's memory bus it has an unknown share."""
    memory = _ask_memory(nvml, part)
    return msgspec.structs.replace(
        card,
        name=_text(_ask(nvml, "nvmlDeviceGetName", part)) or card.name,
        uuid=_text(_ask(nvml, "nvmlDeviceGetUUID", part)),
        memory_total_bytes=memory.total,
        memory_free_bytes=memory.free,
        memory_used_bytes=memory.used,
        memory_bus_bits=None,
        mig=True,
        parent_uuid=card.uuid,
        utilization=None,
        processes=_list_processes(nvml, part),
    )


def _find_gaps(gpus: tuple[GpuFacts, ...]) -> list[str]:
    """What is missing that a reader will look for."""
    notes = []
    for gpu in gpus:
        if gpu.mig and not _is_slice(gpu):
            notes.append(f"GPU {gpu.index} is set up to be cut into slices (MIG) but has none: CUDA cannot use it.")
        elif gpu.memory_total_bytes is None:
            notes.append(f"GPU {gpu.index}: the NVIDIA driver does not tell its memory.")
    return notes


def _number_for_cuda(found: list[GpuFacts], environ: Mapping[str, str]) -> tuple[tuple[GpuFacts, ...], tuple[str, ...]]:
    """CUDA's numbers after CUDA_VISIBLE_DEVICES. A process gets one slice at most, the first."""
    notes: list[str] = []
    if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(_list_models(found)) > 1:
        notes.append(
            "CUDA numbers unlike cards fastest first, the driver by bus: export CUDA_DEVICE_ORDER=PCI_BUS_ID,"
            " with which the CUDA numbers given here hold."
        )
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = list(range(len(found))) if visible is None else _choose(found, visible)
    first_slice = next((place for place in chosen if _is_slice(found[place])), None)
    usable = [place for place in chosen if not found[place].mig or place == first_slice]
    if found and not usable and visible is not None:
        notes.append(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU.")
    numbers = {place: ordinal for ordinal, place in enumerate(usable)}
    facts = (msgspec.structs.replace(gpu, cuda_ordinal=numbers.get(place)) for place, gpu in enumerate(found))
    return tuple(facts), tuple(notes)


def _is_slice(gpu: GpuFacts) -> bool:
    return (gpu.uuid or "").startswith("MIG-") or gpu.parent_uuid is not None


def _list_models(found: list[GpuFacts]) -> set[str]:
    return {re.sub(r"\s+MIG\b.*", "", gpu.name or "") for gpu in found}


def _choose(found: list[GpuFacts], visible: str) -> list[int]:
    """Places in `found`: an entry that names nothing hides itself and all after it; one named twice hides everything."""
    chosen: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        place = _find_place(found, entry)
        if place is None:
            break
        if place in chosen:
            return []
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
    return f"{int(match[1], 16):04x}:{match[2]}".lower() if match else None


def _list_processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...] | None:
    """Others that hold its memory, whether they compute or draw; one that does both counts once."""
    computing = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    drawing = _ask(nvml, "nvmlDeviceGetGraphicsRunningProcesses", handle)
    if computing is None and drawing is None:
        return None
    held: dict[int, int | None] = {}
    for each in (*(computing or ()), *(drawing or ())):
        amounts = [amount for amount in (held.get(each.pid), each.usedGpuMemory) if amount is not None]
        held[each.pid] = max(amounts, default=None)
    return tuple(GpuProcess(pid=pid, memory_bytes=held[pid]) for pid in sorted(held) if pid != os.getpid())


def _name_throttling(bits: int | None) -> tuple[str, ...] | None:
    return None if bits is None else tuple(name for bit, name in _THROTTLING.items() if bits & bit)


def _version(number: int | None) -> str | None:
    return None if not number else f"{number // 1000}.{number % 1000 // 10}"


def _text(value: object) -> str | None:
    raw = value.decode(errors="replace") if isinstance(value, bytes) else value
    return raw if isinstance(raw, str) and raw.strip() and raw.strip() not in {"N/A", "[N/A]"} else None
