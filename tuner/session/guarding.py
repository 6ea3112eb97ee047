"""What a run may take of memory: points that cannot fit are refused with the sum, and the measuring child is watched.

Both can be overruled by the user, since an estimate may be wrong and memory that looks taken may come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tuner.errors import reading_flag
from tuner.hardware import DeviceFacts, HardwareProfile
from tuner.memory import Budget, Footprint, estimate_footprint, explain_misfit, find_budget
from tuner.memory.record import HOST
from tuner.model import ModelSpec
from tuner.runconfig import RunConfig
from tuner.session.remote import add_remote_devices
from tuner.units import parse_bytes

Project = Callable[[RunConfig], Mapping[str, int] | None]
"""llama.cpp's own projection of a point by cause and buffer type, bytes; None where it cannot say."""

CLOSE_SHARE: Final = 0.5
"""Share of a memory that arithmetic must find taken before llama.cpp is asked: it takes no less, but may well take more."""
CEILING_SHARE: Final = 0.95
"""Share of the memory it may have that the measuring child may hold."""
_ENGINE_ALONE: Final = 2**28
"""What an engine without a model may hold whatever the reserve, bytes: a refusal comes with its sum, not as a kill."""
WAYS_ROUND: Final = "--no-memory-check tries it all the same, --reserve SIZE sets what is left free"
"""The flags that overrule a refusal."""


class MemoryRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said about memory."""

    reserve_bytes: int | None = None
    """Left free for others in each memory, bytes; None: a twentieth, 1 GiB at most."""
    checked: bool = True
    """Points that need more than is available are refused unrun."""


def read_rules(reserve: str, *, no_memory_check: bool) -> MemoryRules:
    """The rules as given on a command line; "" for the usual reserve. Raises UsageError for a size that is none."""
    with reading_flag("--reserve"):
        reserve_bytes = parse_bytes(reserve) if reserve else None
    return MemoryRules(reserve_bytes=reserve_bytes, checked=not no_memory_check)


def guard_memory(
    models: tuple[ModelSpec, ...], machine: HardwareProfile, rules: MemoryRules, *, project: Project | None = None
) -> Callable[[RunConfig], str | None]:
    """Says why a point does not fit, with the sum and the way round, before it is run.

    None where it fits, cannot be known not to, or nobody asked. Compute buffers are only bounded by arithmetic, so where that
    comes close to what there is, `project` is asked, once for each point.
    """
    budget: Budget = find_budget(machine, reserve_bytes=rules.reserve_bytes)
    by_path = {spec.path: spec for spec in models}
    projected: dict[RunConfig, Mapping[str, int] | None] = {}

    def explain(config: RunConfig) -> str | None:
        model = by_path.get(config.model, models[0])
        footprint = estimate_footprint(model, config, machine=machine)
        found = explain_misfit(footprint, budget)
        if found is not None or project is None or not is_close(footprint, budget):
            return found
        if config not in projected:
            projected[config] = project(config.replace(model=model.path))
        told = projected[config]
        return explain_misfit(estimate_footprint(model, config, machine=machine, projected=told), budget) if told else None

    def misfit(config: RunConfig) -> str | None:
        found = explain(config)
        return None if found is None else f"{found.removesuffix('.')}; {WAYS_ROUND}"

    return misfit if rules.checked else lambda _: None


def add_remote(machine: HardwareProfile, rpc: tuple[str, ...]) -> HardwareProfile:
    """`machine` with its remote devices. How much any device will hold is unknown then, so only main memory can refuse."""
    if not rpc:
        return machine
    own = tuple(DeviceFacts(name=device.name, kind=device.kind, backend=device.backend) for device in machine.devices)
    return add_remote_devices(msgspec.structs.replace(machine, devices=own), len(rpc))


def is_close(footprint: Footprint, budget: Budget) -> bool:
    """What is known to be needed of some memory is a good part of what may be taken there."""
    needs: dict[str, int] = {}
    for part in footprint.parts:
        if part.n_bytes and part.basis != "at most":
            place = HOST if budget.unified else part.device
            needs[place] = needs.get(place, 0) + part.n_bytes
    return any(need > CLOSE_SHARE * there for place, need in needs.items() if (there := budget.on(place)) is not None)


def find_ceiling(machine: HardwareProfile, rules: MemoryRules) -> int | None:
    """Main memory that the measuring child may hold, bytes; None: unknown.

    Below what is available, and below what the user's reserve leaves; where the check is overruled, below all that the machine
    or the tightest cgroup has, so that not even then the machine itself goes down.
    """
    if not rules.checked:
        whole = [size for size in (machine.memory.total_bytes, machine.limits.memory_limit_bytes) if size is not None]
        return int(min(whole) * CEILING_SHARE) if whole else None
    available = machine.limits.memory_available_bytes
    if available is None:
        return None
    return min(int(available * CEILING_SHARE), max(_ENGINE_ALONE, available - (rules.reserve_bytes or 0)))
