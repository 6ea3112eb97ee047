"""How much context is set aside."""

from __future__ import annotations

from typing import ClassVar

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_integer
from tuner.space.spread import list_powers, sort_distinct
from tuner.space.traits import count_default_slots, find_context_per_slot

_MOST = 2**30
_FARTHEST = 262_144


class CtxSize(Dimension):
    """Cells of KV cache set aside when a context is made, over all slots together.

    It costs memory, not time: attention reads the cells in use, so speed follows the depth of the conversation and not this
    number. The cache is allocated whole at the start. Each slot gets ctx_size / parallel, padded to a multiple of 256, and a
    sliding-window layer keeps no more than its window needs.

    0 asks for the training context, which for many models is far more than a machine holds. The default here is what the
    workload needs, and it is searched only where the goal is the largest context that fits. Above the training context
    llama.cpp only warns; answers may degrade. (llama-context.cpp: n_ctx_seq = pad256(n_ctx / n_seq_max).)
    """

    name: ClassVar[str] = "ctx_size"
    title: ClassVar[str] = "Context"
    affects: ClassVar[frozenset[Phase]] = frozenset({"memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if "context" not in situation.goals:
            reason = "speed follows the tokens in use, not the room set aside; the workload's need is the default"
            return Absent(reason=reason, may_be_asked_for=True)
        need, slots = find_context_per_slot(situation), count_default_slots(situation)
        trained = [spec.context_length for spec in situation.models if spec.context_length]
        most = min(trained) if trained else _FARTHEST
        sizes = {need, *list_powers(need, most)} | ({most} if most >= need else set())
        return Domain(values=sort_distinct(size * slots for size in sizes), ordered=True)

    def find_default(self, situation: SpaceSituation) -> int:
        return max(find_context_per_slot(situation) * count_default_slots(situation), situation.least_context)

    def parse_value(self, value: object) -> int:
        return read_integer(self.name, value, least=0, most=_MOST, thousands=True)
