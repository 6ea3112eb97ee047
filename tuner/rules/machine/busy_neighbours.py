"""MAC05: other work takes processor time."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.hardware import HardwareProfile
from tuner.rules.base import Evidence, Finding, Rule, Situation

_PRESSED: Final = 10.0
"""Percent of the time in which some task waited for a processor."""
_LOADED: Final = 0.5
"""Running tasks for each processor that may be used."""
_OWN: Final = 1.0
"""One running task may be this program itself."""
_GPU_BUSY: Final = 20


class BusyNeighbours(Rule):
    """All threads of llama.cpp wait for each other several hundred times for each token. If one of them has to share its core
    with another program, all others wait for it. One busy neighbour can therefore cost half of the speed, two of them nearly
    all of it. Measurements made in that time are worth little.

    The rule looks at how long tasks had to wait for a processor in the last ten seconds, at the number of running tasks in the
    last minute, and at how busy a GPU is with the work of others. The remedy is to end or postpone the other work (`top` shows
    it). If it has to go on, give the model fewer threads: the cores that are left free.

    When this is wrong: the load counts tasks that wait for a disk as well, and in a container it counts the whole host. A short
    burst is over by the time you read this. A model that is already running here is such a neighbour too.
    """

    code: ClassVar[str] = "MAC05"
    title: ClassVar[str] = "Busy neighbours"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        evidence = (*_tell_processors(situation.hardware), *_tell_cards(situation.hardware))
        if not evidence:
            return ()
        left = count_free_cores(situation.hardware)
        finding = Finding(
            code=self.code,
            title="Other programs keep this machine busy.",
            severity="slows",
            evidence=evidence,
            remedy=f"End or postpone the other work (`top` shows it); if it must go on, set threads to {left}.",
        )
        return (finding,)


def count_free_cores(machine: HardwareProfile) -> int:
    """Physical cores of this process that other programs leave free, at least one: no rule proposes more threads than that."""
    limits = machine.limits
    cores = min(limits.usable_physical, limits.usable_threads)
    if not _tell_processors(machine):
        return cores
    return max(1, min(cores, limits.usable_threads - round(machine.environment.load_1m or 0.0)))


def _tell_processors(machine: HardwareProfile) -> list[Evidence]:
    pressure, load = machine.environment.cpu_pressure, machine.environment.load_1m
    threads = machine.limits.usable_threads
    loaded = load is not None and load - _OWN > _LOADED * threads
    pressed = pressure is not None and pressure >= _PRESSED
    if not pressed and (not loaded or pressure == 0):
        return []
    told = (("time in which tasks waited for a processor", pressure, "percent"), ("tasks running, last minute", load, "tasks"))
    return [
        *(Evidence(what=what, value=value, unit=unit, basis="measured") for what, value, unit in told if value is not None),
        Evidence(what="threads that may run at once", value=threads, unit="threads", basis="measured"),
    ]


def _tell_cards(machine: HardwareProfile) -> list[Evidence]:
    busy = [gpu for gpu in machine.gpus if gpu.processes and (gpu.utilization or 0) > _GPU_BUSY]
    return [
        Evidence(what=f"{gpu.name or f'GPU {gpu.index}'} is busy with other programs", value=gpu.utilization or 0,
                 unit="percent", basis="measured")
        for gpu in busy
    ]  # fmt: skip
