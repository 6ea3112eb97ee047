"""Conversations decoded together."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_integer
from tuner.space.refusal import MOST_SLOTS
from tuner.space.spread import list_powers, sort_distinct
from tuner.space.traits import count_default_slots


class Parallel(Dimension):
    """Slots: how many conversations are decoded together.

    Decode reads all weights once per step, for one slot or for many, so several slots bring more tokens per second in all
    until arithmetic is what is waited for. Each conversation by itself gets slower with every further slot, and prompts
    wait for each other. The useful number is the knee of that curve.

    The context is divided: each slot gets ctx_size / parallel, so a workload of several users needs that many times the
    cells, and cache memory grows with it. With one user, a second slot brings nothing. llama.cpp has at most 256 slots;
    llama-server starts four when it is not told. (llama-context.cpp: n_seq_max.)
    """

    name: ClassVar[str] = "parallel"
    title: ClassVar[str] = "Slots"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        users = min(situation.workload.users, MOST_SLOTS)
        if users < 2:
            return Absent(reason="the workload has one user, who needs one slot")
        return Domain(values=sort_distinct((*list_powers(1, users), users)), ordered=True)

    def find_default(self, situation: SpaceSituation) -> int:
        return count_default_slots(situation)

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=1, most=MOST_SLOTS)
