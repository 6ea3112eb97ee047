"""Points that a rule may propose: settled as llama.cpp runs them, accepted by it, within the memory that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.memory import Footprint, estimate_footprint
from tuner.model import ModelSpec
from tuner.rules.base import Situation
from tuner.runconfig import RunConfig
from tuner.space import SpaceSituation, find_dimension, find_refusal, settle_point
from tuner.space.cachetypes import is_less_precise
from tuner.space.traits import draw_effective_facts, draw_refusal_facts


def change_point(situation: Situation, changes: Mapping[str, Any]) -> RunConfig:
    """The point in question with some settings changed, settled as llama.cpp would run it."""
    config = situation.config.replace(**changes)
    space = _draw_space(situation)
    return settle_point(config, draw_effective_facts(space, find_spec(situation, config)))


def find_spec(situation: Situation, config: RunConfig) -> ModelSpec:
    """The file that `config` runs: a sibling where it names one, else the model in question."""
    return next((each for each in situation.siblings if each.path == config.model), situation.model)


def count_memory(situation: Situation, config: RunConfig) -> Footprint:
    """What a point takes of memory by cause and device, with what was named beside the model."""
    return estimate_footprint(
        find_spec(situation, config),
        config,
        machine=situation.hardware,
        projector_bytes=situation.projector_bytes,
        draft=situation.draft,
    )


def find_obstacle(situation: Situation, config: RunConfig) -> str | None:
    """Why a point must not be proposed: llama.cpp refuses it, or it does not fit; None where nothing speaks against it."""
    refusal = find_refusal(config, draw_refusal_facts(_draw_space(situation), find_spec(situation, config)))
    if refusal is not None:
        return refusal
    if is_less_precise(config.cache_type_k, config.cache_type_v) and not _keeps_cache(situation, config):
        return f"keys would be kept less precisely ({config.cache_type_k}) than values ({config.cache_type_v})"
    return situation.find_misfit(config)


def is_possible(situation: Situation, changes: Mapping[str, Any]) -> bool:
    """Every name is a setting, something changes, llama.cpp takes the point and it fits."""
    if any(find_dimension(name) is None for name in changes):
        return False
    point = change_point(situation, changes)
    return point != change_point(situation, {}) and find_obstacle(situation, point) is None


def _keeps_cache(situation: Situation, config: RunConfig) -> bool:
    now = situation.config
    return (config.cache_type_k, config.cache_type_v) == (now.cache_type_k, now.cache_type_v)


def _draw_space(situation: Situation) -> SpaceSituation:
    return SpaceSituation(
        hardware=situation.hardware,
        models=(situation.model, *situation.siblings),
        workload=situation.workload,
        goals=("latency",),
    )
