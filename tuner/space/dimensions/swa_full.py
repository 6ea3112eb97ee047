"""Whole context for window layers."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_flag
from tuner.space.traits import has_window


class SwaFull(Dimension):
    """Keep the whole context for sliding-window layers, not only their window.

    Those layers attend to the last few hundred or thousand tokens, so llama-server keeps no more of them, and memory and
    decode at depth gain. The whole context lets a conversation be cut back and a long prefix be used again; within one turn
    it only costs memory and time. The Python binding has it on unless told otherwise, which can double or triple the cache
    of such models.
    """

    name: ClassVar[str] = "swa_full"
    title: ClassVar[str] = "Whole context for window layers"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if not has_window(situation):
            return Absent(reason="this model has no sliding-window layers")
        reason = "within one turn it only costs memory and time; its use is to take back tokens and reuse prefixes"
        return Absent(reason=reason, may_be_asked_for=True)

    def find_default(self, situation: SpaceSituation) -> bool:
        del situation
        return False

    def parse_value(self, value: object) -> bool:
        return read_flag(self.name, value)
