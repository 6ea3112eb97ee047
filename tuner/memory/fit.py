"""Whether a footprint fits a machine, and how much context would. Every refusal shows its arithmetic.

What is unknown never refuses: only memory that is known to be needed counts against memory that is known to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tuner.hardware.memory import device_budget_bytes
from tuner.hardware.record import DeviceFacts, HardwareProfile
from tuner.memory.cache import use_cache_type
from tuner.memory.estimate import estimate_footprint
from tuner.memory.record import HOST, Footprint, FrontEnd, Part
from tuner.model.spec import ModelSpec
from tuner.runconfig import CONTEXT_PADDING, RunConfig
from tuner.units import format_bytes

_GIB: Final = 2**30
_RESERVED_SHARE: Final = 0.05
_MOST_CONTEXT: Final = 2**24

_NAMES: Final = {
    "weights": "weights",
    "file pages": "file pages",
    "kv": "KV cache",
    "recurrent": "recurrent state",
    "compute": "compute buffers",
    "output": "output buffer",
    "projector": "projector",
    "draft": "draft model",
}

ProjectedOf = Callable[[RunConfig], Mapping[str, int] | None]
"""What llama.cpp says of a configuration, as `estimate_footprint` takes it; None: it was not asked."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a model may take: free memory less a reserve, never the total."""

    host_bytes: int | None
    """Main memory that is available, bytes; None: unknown."""
    devices: tuple[tuple[str, int | None], ...] = ()
    """(device, free bytes); None: unknown."""
    unified: bool = False
    """Devices and host share one memory: one budget, `host_bytes`."""
    reserve_bytes: int | None = None
    """Left alone in each memory, bytes; None: a twentieth, 1 GiB at most."""
    holders: tuple[tuple[str, str], ...] = ()
    """(device, who holds the rest of its memory, in words); only devices whose driver tells."""

    def free_on(self, device: str) -> int | None:
        """What is free there, the reserve included, bytes; None: unknown."""
        return self.host_bytes if device == HOST or self.unified else dict(self.devices).get(device)

    def reserve_of(self, free: int) -> int:
        """What is left alone of `free` bytes, bytes."""
        return min(_GIB, int(free * _RESERVED_SHARE)) if self.reserve_bytes is None else self.reserve_bytes

    def on(self, device: str) -> int | None:
        """What may be taken there, bytes; None: unknown."""
        free = self.free_on(device)
        return None if free is None else max(0, free - self.reserve_of(free))


def find_budget(machine: HardwareProfile, *, reserve_bytes: int | None = None, returned_bytes: int = 0) -> Budget:
    """The budget of `machine`; `returned_bytes` come back to it before the model is loaded (a model about to be unloaded).

    Under WSL twice the reserve is kept, because there a device spills into main memory without an error.
    """
    host = machine.limits.memory_available_bytes
    if host is None:
        host = machine.memory.available_bytes
    unified = machine.unified_memory
    devices = [(device.name, device_budget_bytes(machine, device)) for device in machine.devices]
    if unified and host is None:
        host = next((free for _, free in devices if free is not None), None)
    offloads = bool(devices) and not unified
    if returned_bytes and offloads:
        devices = [(name, None if free is None else free + returned_bytes) for name, free in devices[:1]] + devices[1:]
    elif returned_bytes and host is not None:
        host += returned_bytes
    if reserve_bytes is None and machine.environment.wsl and devices:
        reserve_bytes = 2 * _GIB
    holders = tuple((device.name, held) for device in machine.devices if (held := _name_holders(machine, device)))
    return Budget(host_bytes=host, devices=tuple(devices), unified=unified, reserve_bytes=reserve_bytes, holders=holders)


def _name_holders(machine: HardwareProfile, device: DeviceFacts) -> str:
    """Processes on the device's card, the greediest first; "" where the driver names none."""
    card = next((gpu for gpu in machine.gpus if gpu.uuid and gpu.uuid == device.gpu_uuid), None)
    known = sorted((card.processes if card else None) or (), key=lambda process: -(process.memory_bytes or 0))
    return ", ".join(f"process {process.pid} holds {format_bytes(process.memory_bytes)}" for process in known)


def explain_misfit(footprint: Footprint, budget: Budget) -> str | None:
    """One sentence with the sum that does not fit, or None when it fits or cannot be known not to."""
    if budget.unified:
        return _compare("the memory that CPU and device share", footprint.parts, budget, HOST)
    for device in footprint.devices:
        place = "main memory" if device == HOST else device
        parts = tuple(part for part in footprint.parts if part.device == device)
        if (found := _compare(place, parts, budget, device)) is not None:
            return found
    return None


def find_misfit(
    model: ModelSpec,
    config: RunConfig,
    budget: Budget,
    *,
    front_end: FrontEnd = "llama-server",
    machine: HardwareProfile | None = None,
    projected: Mapping[str, int] | None = None,
) -> str | None:
    """Why `config` does not fit `budget`, with the arithmetic; None when it fits or nobody can say."""
    return explain_misfit(estimate_footprint(model, config, front_end=front_end, machine=machine, projected=projected), budget)


def largest_context(
    model: ModelSpec,
    config: RunConfig,
    budget: Budget,
    *,
    cache_type: str | None = None,
    front_end: FrontEnd = "llama-server",
    machine: HardwareProfile | None = None,
    projected_of: ProjectedOf | None = None,
    limit: int | None = None,
    taken_bytes: int = 0,
) -> int:
    """The largest ctx_size that fits, a multiple of 256 per slot, tokens; 0 when not even one padding step fits.

    At most `limit`, by default the training context of each slot. `projected_of` gives better figures than arithmetic;
    `taken_bytes` are for a projector or a draft model beside it.
    """
    slots = max(1, config.parallel)
    step = CONTEXT_PADDING * slots
    most = limit or (model.context_length or _MOST_CONTEXT) * slots
    base = config if cache_type is None else use_cache_type(config, cache_type)

    def fits(steps: int) -> bool:
        point = base.replace(ctx_size=min(steps * step, most))
        projected = projected_of(point) if projected_of else None
        footprint = estimate_footprint(
            model,
            point,
            front_end=front_end,
            machine=machine,
            projected=projected,
            projector_bytes=taken_bytes or None,
        )
        return explain_misfit(footprint, budget) is None

    low, high = 0, -(-most // step)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return min(low * step, most)


def _compare(place: str, parts: tuple[Part, ...], budget: Budget, device: str) -> str | None:
    """The bounds "at least" count: more is needed for certain; "at most" does not."""
    counted = [part for part in parts if part.n_bytes and part.basis != "at most"]
    needed = sum(part.n_bytes or 0 for part in counted)
    available = budget.on(device)
    if available is None or needed <= available:
        return None
    sums: dict[str, int] = {}
    for part in counted:
        sums[_NAMES[part.cause]] = sums.get(_NAMES[part.cause], 0) + (part.n_bytes or 0)
    arithmetic = " + ".join(f"{name} {format_bytes(size)}" for name, size in sums.items())
    at_least = "at least " if any(part.basis == "at least" for part in counted) else ""
    return f"It needs {at_least}{format_bytes(needed)} of {place} ({arithmetic}), and {_describe_rest(budget, device)}."


def _describe_rest(budget: Budget, device: str) -> str:
    """What may be taken of a memory, with the sum behind it."""
    free = budget.free_on(device) or 0
    reserve, held = budget.reserve_of(free), dict(budget.holders).get(device)
    kept = f" ({format_bytes(free)} free less a reserve of {format_bytes(reserve)})" if reserve else ""
    others = f"; {held}" if held else ""
    return f"{format_bytes(max(0, free - reserve))} is available{kept}{others}"
