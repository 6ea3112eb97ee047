"""How the file comes into memory."""

from __future__ import annotations

from typing import ClassVar, get_args

from tuner.runconfig import LoadMode as Setting
from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_word

_SCARCE = 0.8


class LoadMode(Dimension):
    """How the file comes into memory: mapped (mmap), read (none), read around the page cache (dio), or locked (mlock).

    It moves memory and the time to load; once the weights are in memory, prefill and decode do not notice. The exception is
    a machine that is short of memory: mapped pages may be dropped and read again from disk, which stalls decode. mlock
    forbids that, as far as the limit on locked memory allows. A mapped file and a repacked copy of its weights exist side by
    side, so none keeps less of formats that llama.cpp repacks for the CPU.

    auto, the default, maps where the platform can. The older flags --mmap, --no-mmap, --mlock and --direct-io are gone from
    llama.cpp; --load-mode replaces them.
    """

    name: ClassVar[str] = "load_mode"
    title: ClassVar[str] = "Loading"
    affects: ClassVar[frozenset[Phase]] = frozenset({"memory"})
    cost: ClassVar[Cost] = "model"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if not is_short_of_memory(situation):
            reason = "the weights fit in memory, and once there, how they came does not change speed"
            return Absent(reason=reason, may_be_asked_for=True)
        return Domain(values=("auto", "none"), ordered=False)

    def find_default(self, situation: SpaceSituation) -> str:
        del situation
        return "auto"

    def parse_value(self, value: object) -> str:
        return read_word(self.name, "none" if value is None else value, get_args(Setting))

    def affects_in(self, situation: SpaceSituation) -> frozenset[Phase]:
        return frozenset({"prefill", "decode", "memory"}) if is_short_of_memory(situation) else self.affects


def is_short_of_memory(situation: SpaceSituation) -> bool:
    """The weights take most of what memory is to be had, so mapped pages may be dropped; False when unknown."""
    available = situation.hardware.limits.memory_available_bytes
    if available is None:
        return False
    return any(spec.weights_bytes > available * _SCARCE for spec in situation.models)
