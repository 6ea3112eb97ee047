"""MAC12: a container grants less memory than the machine has."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tuner.memory import explain_misfit
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import count_memory


class MemoryLimit(Rule):
    """A container or a service can be given a limit on memory. What is above it is not refused: the system ends the program on
    the spot, without a message of its own, often while the model is loading. Only the system's log tells (`dmesg`).

    The rule speaks when your settings do not fit within the limit but would fit into the memory that the machine has free. The
    remedy is a higher limit: `docker run --memory N`, `resources.limits.memory` in Kubernetes, `MemoryMax=` in a systemd unit.

    When this is wrong: the limit may be there to protect others on the same machine; then make the model fit, with the rules of
    memory (MEM02). Pages of the mapped model file count against the limit too, but the system takes those back when it must.
    """

    code: ClassVar[str] = "MAC12"
    title: ClassVar[str] = "Memory limit of a container"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        limits, free = situation.hardware.limits, situation.hardware.memory.available_bytes
        host = situation.budget.host_bytes
        if limits.memory_limit_bytes is None or free is None or host is None or free <= host:
            return ()
        roomy = msgspec.structs.replace(situation.budget, host_bytes=free)
        if situation.find_misfit(situation.config) is None:
            return ()
        if explain_misfit(count_memory(situation, situation.config), roomy) is not None:
            return ()
        container = situation.hardware.environment.container
        told = (("limit", limits.memory_limit_bytes), ("left within the limit", host), ("free on the machine", free))
        finding = Finding(
            code=self.code,
            title="A limit on memory keeps this model from fitting, not the machine.",
            severity="stops",
            evidence=(
                *(Evidence(what=what, value=value, unit="bytes", basis="measured") for what, value in told),
                *(Evidence(what="container", value=kind, basis="measured") for kind in (container,) if kind),
            ),
            remedy="Raise the limit (`docker run --memory N`, `MemoryMax=` in a systemd unit), or make the model fit.",
        )
        return (finding,)
