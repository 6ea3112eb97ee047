"""MEM09: GPU and processor share one memory."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory.record import HOST
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.levers import fits
from tuner.rules.points import change_point, count_memory


class UnifiedMemory(Rule):
    """On Apple computers, on many small boards and on laptops with an integrated GPU, processor and GPU use the same memory.
    Programs show it twice, as memory of the machine and as memory of the GPU, and it is tempting to add the two up, or to move
    layers from the one to the other to make room. Neither works: what the model takes on the GPU is missing for the rest.

    The rule speaks when the settings do not fit such a machine. It adds up what both sides need and compares it with what the
    one memory has. Only what really makes the model, its cache or its buffers smaller helps, and moving layers is therefore not
    proposed.

    When this is wrong: some systems allow the GPU only a part of the memory, by a setting of the firmware or of the system;
    then the GPU can run out while the sum still fits.
    """

    code: ClassVar[str] = "MEM09"
    title: ClassVar[str] = "One memory for GPU and processor"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        available = situation.budget.on(HOST)
        if not situation.budget.unified or available is None or fits(situation):
            return ()
        footprint = count_memory(situation, change_point(situation, {}))
        sums = [
            (device, sum(part.n_bytes or 0 for part in footprint.parts if part.device == device))
            for device in footprint.devices
        ]
        finding = Finding(
            code=self.code,
            title="GPU and processor share one memory, so moving layers between them frees nothing.",
            severity="stops",
            evidence=(
                *(Evidence(what=f"needed on {name}", value=size, unit="bytes", basis="predicted") for name, size in sums),
                Evidence(what="needed in all, at least", value=footprint.known_bytes, unit="bytes", basis="predicted"),
                Evidence(what="memory to be had for both together", value=available, unit="bytes", basis="measured"),
            ),
            remedy="Make the whole smaller: cache, context, micro-batch, or the file itself.",
        )
        return (finding,)
