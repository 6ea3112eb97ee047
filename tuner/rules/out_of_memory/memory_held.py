"""MEM10: other programs hold the GPU's memory."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tuner.hardware import GpuFacts
from tuner.memory import Budget, explain_misfit
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.levers import find_tight_place, fits
from tuner.rules.points import change_point, count_memory


class MemoryHeld(Rule):
    """The memory of a GPU is shared by all programs that use it: the desktop, a browser, a game, a model that was started
    earlier and never stopped. What counts is what is free now, not what is printed on the box.

    The rule speaks when the settings do not fit the GPU as it is and others hold some of its memory. It names the processes
    that the driver names and says whether the model would fit without them. Look at them with `nvidia-smi`, and end what you do
    not need: often it is a former llama-server.

    When this is wrong: inside a container the numbers of the processes are those of the host. Some drivers do not tell who
    holds how much; then only the sum is known.
    """

    code: ClassVar[str] = "MEM10"
    title: ClassVar[str] = "GPU memory held by other programs"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        if not situation.hardware.gpus or fits(situation):
            return ()
        place = find_tight_place(situation)
        card = next((gpu for name, gpu in _list_cards(situation) if name == place), None)
        if card is None or place is None or not card.memory_used_bytes or not card.processes:
            return ()
        suffices = _fits_alone(situation, place, card.memory_used_bytes)
        finding = Finding(
            code=self.code,
            title="Other programs hold memory of the GPU that this model needs."
            if suffices
            else "Other programs hold memory of the GPU, and even without them it would be too small.",
            severity="stops" if suffices else "hint",
            evidence=(
                *(_tell_process(each.pid, each.memory_bytes) for each in card.processes),
                Evidence(what="memory of the GPU in use", value=card.memory_used_bytes, unit="bytes", basis="measured"),
            ),
            remedy="End what you do not need (`nvidia-smi` lists it), then try again."
            if suffices
            else "Ending them is not enough; the other findings say what is.",
        )
        return (finding,)


def _list_cards(situation: Situation) -> list[tuple[str, GpuFacts]]:
    by_uuid = {gpu.uuid: gpu for gpu in situation.hardware.gpus if gpu.uuid}
    named = ((device.name, by_uuid.get(device.gpu_uuid or "")) for device in situation.hardware.devices)
    return [(name, gpu) for name, gpu in named if gpu is not None and not gpu.unified]


def _fits_alone(situation: Situation, place: str, held: int) -> bool:
    devices = tuple((n, free + held if free is not None and n == place else free) for n, free in situation.budget.devices)
    empty: Budget = msgspec.structs.replace(situation.budget, devices=devices)
    return explain_misfit(count_memory(situation, change_point(situation, {})), empty) is None


def _tell_process(pid: int, held: int | None) -> Evidence:
    if held is None:
        return Evidence(what=f"process {pid}", value="holds an unknown amount", basis="measured")
    return Evidence(what=f"process {pid} holds", value=held, unit="bytes", basis="measured")
