"""MAC08: a quota grants less processor time than there are processors to see."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import is_possible


class CpuQuota(Rule):
    """A container or a service can be given a quota: so much processor time and no more. Programs inside still see all
    processors of the host and start a thread for each. When the time of a period is used up, the whole program is stopped until
    the next one, threads holding locks included. A public report tells of 12 tokens per second with four threads under a quota
    of four, and of 0.27 with eight.

    The rule compares the quota, rounded down, with the physical cores that would be used without it. If your thread counts are
    above the quota, it proposes to cut both. If not, it only tells that the machine has more to give: raise the quota with
    `docker run --cpus N`, `resources.limits.cpu` in Kubernetes, or `CPUQuota=` in a systemd unit.

    When this is wrong: a quota is often set for good reasons by someone else. If the machine is shared, the time may be there
    at night only. A quota that is no whole number loses its fraction, since threads are whole.
    """

    code: ClassVar[str] = "MAC08"
    title: ClassVar[str] = "Processor quota of a container"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        limits, cpu = situation.hardware.limits, situation.hardware.cpu
        if limits.cpu_quota is None or limits.usable_threads >= cpu.physical_cores:
            return ()
        most = limits.usable_threads
        names = ("threads", "threads_batch")
        change: dict[str, Any] = {name: most for name in names if getattr(situation.config, name) > most}
        settings = " and ".join(f"{name} to {most}" for name in change)
        finding = Finding(
            code=self.code,
            title="More threads are set than the quota grants processor time for."
            if change
            else "A quota grants this process only a part of the machine's processors.",
            severity="slows" if change else "hint",
            evidence=(
                Evidence(what="processor time granted", value=limits.cpu_quota, unit="CPUs", basis="measured"),
                Evidence(what="processors to be seen", value=cpu.logical_cpus, unit="CPUs", basis="measured"),
                Evidence(what="threads that may run at once", value=most, unit="threads", basis="measured"),
                *(
                    Evidence(what="the quota is in", value=source, basis="measured")
                    for source in (limits.cpu_quota_source,)
                    if source
                ),
            ),
            change=change if change and is_possible(situation, change) else {},
            remedy=f"Set {settings}, or raise the quota."
            if change
            else "Raise the quota if you may (`docker run --cpus N`, `CPUQuota=` in a systemd unit).",
        )
        return (finding,)
