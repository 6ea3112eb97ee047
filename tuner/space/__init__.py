"""The search space: dimensions, space files, and what is known to be refused."""

from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.building import apply_settings, build_space, find_default_config
from tuner.space.catalogue import find_dimension, list_dimensions, suggest_dimension
from tuner.space.loading import NO_SPACE, SpaceFile, choose_space, load_space, parse_settings, read_space
from tuner.space.refusal import RefusalFacts, find_refusal, find_warnings
from tuner.space.searchspace import SearchSpace
from tuner.space.settling import settle_point

__all__ = [
    "NO_SPACE",
    "Absent",
    "Cost",
    "Dimension",
    "Domain",
    "Phase",
    "RefusalFacts",
    "SearchSpace",
    "SpaceFile",
    "SpaceSituation",
    "apply_settings",
    "build_space",
    "choose_space",
    "find_default_config",
    "find_dimension",
    "find_refusal",
    "find_warnings",
    "list_dimensions",
    "load_space",
    "parse_settings",
    "read_space",
    "settle_point",
    "suggest_dimension",
]
