"""Which batch sizes are worth trying for a workload, for the logical and the physical batch."""

from __future__ import annotations

from typing import Final

from tuner.space.base import Absent, Domain, SpaceSituation
from tuner.space.spread import list_powers, raise_to_power, sort_distinct
from tuner.space.traits import count_prompt_tokens

MOST_BATCH: Final = 4096
"""Larger batches have not been seen to help, and cost compute memory."""


def list_batches(situation: SpaceSituation, *, least: int, default: int) -> Domain | Absent:
    """Powers of two from `least` to where all waiting prompts fit in one; `default` stands for all beyond that."""
    useful = min(MOST_BATCH, raise_to_power(count_prompt_tokens(situation)))
    powers = list_powers(least, useful)
    values = sort_distinct((*(power for power in powers if power < useful), default)) if default >= useful else powers
    if len(values) < 2:
        return Absent(reason="the prompt is too short to be cut into batches", may_be_asked_for=True)
    return Domain(values=values, ordered=True)
