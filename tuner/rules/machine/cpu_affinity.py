"""MAC09: this process may use some of the processors only."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import is_possible


class CpuAffinity(Rule):
    """The system can be told to run a process on certain processors only (its affinity). `taskset`, `numactl`, a job scheduler
    or `docker run --cpuset-cpus` do it. Programs that count the processors of the machine start too many threads then, and
    these crowd on the few that are allowed.

    The rule speaks when fewer physical cores are allowed than the machine has. If your thread counts are above what may run at
    once, it proposes to cut them. If not, it only tells that there would be more: start without `taskset`, or ask the scheduler
    for more cores.

    When this is wrong: whoever pinned the process may have done so on purpose, to keep it near one part of the memory (a NUMA
    node) or away from slow cores; then leave it.
    """

    code: ClassVar[str] = "MAC09"
    title: ClassVar[str] = "Pinned to some processors"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        limits, cpu = situation.hardware.limits, situation.hardware.cpu
        pinned = bool(limits.affinity_cpus) and limits.affinity_count < cpu.logical_cpus
        most, cores = limits.affinity_count, limits.usable_physical
        fast_only = cpu.performance_cores is not None and cores >= cpu.performance_cores
        if not pinned or cores >= cpu.physical_cores or fast_only or _is_limited_by_quota(situation):
            return ()
        names = ("threads", "threads_batch")
        change: dict[str, Any] = {name: most for name in names if getattr(situation.config, name) > most}
        finding = Finding(
            code=self.code,
            title="More threads are set than this process has processors to run them on."
            if change
            else "This process may use only some of the machine's processors.",
            severity="slows" if change else "hint",
            evidence=(
                Evidence(what="processors allowed", value=most, unit="CPUs", basis="measured"),
                Evidence(what="processors of the machine", value=cpu.logical_cpus, unit="CPUs", basis="measured"),
                Evidence(what="physical cores allowed", value=cores, unit="cores", basis="measured"),
            ),
            change=change if change and is_possible(situation, change) else {},
            remedy=f"Set {' and '.join(f'{name} to {most}' for name in change)}, or start without the pinning."
            if change
            else "Start without `taskset` or `--cpuset-cpus`, or ask the scheduler for more cores, unless it is on purpose.",
        )
        return (finding,)


def _is_limited_by_quota(situation: Situation) -> bool:
    limits = situation.hardware.limits
    return limits.cpu_quota is not None and limits.usable_threads < limits.affinity_count
