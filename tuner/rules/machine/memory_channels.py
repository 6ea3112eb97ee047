"""MAC10: memory in one channel only."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation

_BYTES_PER_TRANSFER: Final = 8


class MemoryChannels(Rule):
    """A processor reads memory over channels, most desktops and laptops over two. Each channel needs a module of its own. With
    one module, or with two in the wrong slots, half of the way is closed, and output of a language model, which is ruled by
    reading memory, is nearly half as fast as it could be. It is the cheapest repair there is.

    No system tells the number of channels to an ordinary user. So the rule speaks only when it was given in a description of
    the machine (`--machine FILE.yaml`), and it is one. `sudo dmidecode -t memory` shows which slots are filled; the manual of
    the mainboard says which ones belong to which channel.

    When this is wrong: some small boards and processors have one channel and no more. With all layers on a GPU main memory
    hardly matters, and on DDR5 a module counts as two half channels.
    """

    code: ClassVar[str] = "MAC10"
    title: ClassVar[str] = "Memory channels"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        memory = situation.hardware.memory
        if memory.channels != 1 or situation.hardware.devices:
            return ()
        finding = Finding(
            code=self.code,
            title="The memory is read over one channel only.",
            severity="slows",
            evidence=(
                Evidence(what="memory channels in use", value=1, unit="channels", basis="assumed"),
                *_tell_peak(memory.speed_mts),
            ),
            remedy="Add a second module of the same kind in the other channel's slot (`sudo dmidecode -t memory` shows it).",
            costs="A memory module.",
        )
        return (finding,)


def _tell_peak(speed_mts: int | None) -> tuple[Evidence, ...]:
    if speed_mts is None:
        return ()
    peak = speed_mts * 1e6 * _BYTES_PER_TRANSFER
    return (Evidence(what="most that it can bring", value=peak, unit="bytes/s", basis="assumed"),)
