"""MAC03: heat or a power cap holds the clock down."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.hardware import GpuFacts, HardwareProfile
from tuner.rules.base import Evidence, Finding, Rule, Situation

_HELD_DOWN: Final = 0.7
"""Share of the highest clock below which a busy processor is held down."""
_WORKING: Final = 1.0
_LOWERED: Final = 0.8
"""Share of the factory's power cap below which somebody has lowered it on purpose."""
_HARMLESS: Final = "power cap"
"""A GPU that works hard meets its own cap; that is its normal state."""


class Throttling(Rule):
    """A chip that gets too hot, or would take more power than it may, lowers its clock by itself. A language model is the kind
    of load that brings it there: everything busy, for minutes. The first answer is then fast and the tenth is slow.

    The rule looks at what an NVIDIA driver gives as reason for held-down clocks right now, at a power cap that was lowered
    below the factory's, and at the processor: whether it has been slowed down by heat since the start, and is far below its
    highest clock while there is work. The remedy is cooling: dust, fans, a laptop on a hard surface, and for the cap `sudo
    nvidia-smi -pl WATTS` with the factory's number. In a study let the machine cool down between trials.

    When this is wrong: a count of heat events since the start says nothing of today, which is why the clock has to be low as
    well. A lowered cap may be there on purpose; writing an answer, which waits for memory, hardly suffers from it, reading a
    prompt does.
    """

    code: ClassVar[str] = "MAC03"
    title: ClassVar[str] = "Held down by heat or a power cap"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        machine = situation.hardware
        cards = tuple(each for gpu in machine.gpus if gpu.cuda_ordinal is not None for each in _tell_card(gpu))
        evidence = (*cards, *_tell_processor(machine))
        if not evidence:
            return ()
        finding = Finding(
            code=self.code,
            title="Heat or a power cap holds this machine's clock down.",
            severity="slows",
            evidence=evidence,
            remedy="Cool it (dust, fans, a hard surface), let it rest, raise a lowered cap with `sudo nvidia-smi -pl WATTS`."
            if cards
            else "Cool it (dust, fans, a hard surface), and let it rest before you measure.",
        )
        return (finding,)


def _tell_card(gpu: GpuFacts) -> list[Evidence]:
    name = gpu.name or f"GPU {gpu.index}"
    reasons = [reason for reason in gpu.throttle_reasons or () if reason != _HARMLESS]
    told = [Evidence(what=f"{name} is held down by", value=", ".join(reasons), basis="measured")] if reasons else []
    if told and gpu.temperature_c is not None:
        told.append(Evidence(what=f"temperature of {name}", value=gpu.temperature_c, unit="degrees", basis="measured"))
    limit, factory = gpu.power_limit_w, gpu.power_limit_default_w
    if limit is not None and factory is not None and limit < _LOWERED * factory:
        told.append(Evidence(what=f"power cap of {name}", value=limit, unit="W", basis="measured"))
        told.append(Evidence(what=f"power cap of {name} from the factory", value=factory, unit="W", basis="measured"))
    return told


def _tell_processor(machine: HardwareProfile) -> tuple[Evidence, ...]:
    cpu, environment = machine.cpu, machine.environment
    now, most, count = cpu.frequency_mhz, cpu.frequency_max_mhz, environment.throttle_count
    if not count or now is None or most is None or now >= _HELD_DOWN * most or (environment.load_1m or 0.0) < _WORKING:
        return ()
    return (
        Evidence(
            what="times the processor was slowed down by heat since the start", value=count, unit="times", basis="measured"
        ),
        Evidence(what="clock while working", value=now, unit="MHz", basis="measured"),
        Evidence(what="highest clock", value=most, unit="MHz", basis="measured"),
    )
