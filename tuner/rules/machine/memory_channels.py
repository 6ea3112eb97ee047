"""MAC10: memory in one channel only."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.memory.record import HOST
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.figures import feels_slow_output

_BYTES_PER_TRANSFER: Final = 8
_GB: Final = 1e9
_TWO_CHANNELS: Final = frozenset({"x86_64", "AMD64"})
"""Kinds of processors whose desktops and laptops have two channels."""
_ONE_CHANNEL: Final = 25e9
"""What one channel of the usual modules brings at most (DDR4-3200: 25.6 GB/s), bytes/s; two of any kind bring more."""
_ENOUGH_CORES: Final = 4
"""Fewer cores may be too few to ask for all that two channels bring."""


class MemoryChannels(Rule):
    """A processor reads memory over channels, most desktops and laptops over two. Each channel needs a module of its own. With
    one module, or with two in the wrong slots, half of the way is closed, and output of a language model, which is ruled by
    reading memory, is nearly half as fast as it could be. It is the cheapest repair there is.

    No system tells the number of channels to an ordinary user. So the rule goes by the calibration: where output is slow and
    all cores of an ordinary computer together read weights no faster than one channel of usual modules could bring (25 GB/s),
    it asks you to look. `sudo dmidecode -t memory` shows which slots are filled; the manual of the mainboard says which ones
    belong to which channel.

    When this is wrong: some small boards and processors have one channel and no more, and very old or very slow ones read no
    faster over two. With all layers on a GPU main memory hardly matters, and on DDR5 a module counts as two half channels.
    """

    code: ClassVar[str] = "MAC10"
    title: ClassVar[str] = "Memory channels"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        memory, speed = situation.hardware.memory, find_memory_speed(situation)
        told = memory.channels == 1
        slow = memory.channels is None and speed is not None and speed < _ONE_CHANNEL and feels_slow_output(situation)
        if situation.hardware.devices or not (told or slow):
            return ()
        finding = Finding(
            code=self.code,
            title="The memory is read over one channel only."
            if told
            else "The memory is read no faster than over one channel, so half of the way may be closed.",
            severity="slows" if told else "hint",
            evidence=(*(_tell_channel(memory.speed_mts) if told else ()), *_tell_speed(speed)),
            remedy="Add a second module of the same kind in the other channel's slot (`sudo dmidecode -t memory` shows it)."
            if told
            else "Look which slots are filled (`sudo dmidecode -t memory`): if it is one, add a second such module in "
            "the other channel's slot.",
            costs="A memory module.",
        )
        return (finding,)


def find_memory_speed(situation: Situation) -> float | None:
    """How fast weights were read at best in the calibration, bytes/s; None where that says nothing of channels: never
    calibrated, too few cores for it, a virtual machine, or a processor of another kind than those with two channels.
    """
    machine = situation.hardware
    cores = machine.limits.usable_physical
    if machine.cpu.arch not in _TWO_CHANNELS or cores < max(_ENOUGH_CORES, machine.cpu.physical_cores):
        return None
    if situation.ceilings is None or situation.ceilings.source != "calibrated" or machine.environment.virtual_machine:
        return None
    return next((each.bandwidth.value for each in situation.ceilings.devices if each.device == HOST), None)


def _tell_channel(speed_mts: int | None) -> tuple[Evidence, ...]:
    channel = Evidence(what="memory channels in use", value=1, unit="channels", basis="assumed")
    if speed_mts is None:
        return (channel,)
    peak = speed_mts * 1e6 * _BYTES_PER_TRANSFER / _GB
    return (channel, Evidence(what="most that it can bring", value=peak, unit="GB/s", basis="assumed"))


def _tell_speed(speed: float | None) -> tuple[Evidence, ...]:
    if speed is None:
        return ()
    return (
        Evidence(what="weights were read at most at", value=speed / _GB, unit="GB/s", basis="measured"),
        Evidence(what="one channel of usual modules brings at most", value=_ONE_CHANNEL / _GB, unit="GB/s", basis="assumed"),
    )
