"""The points that are worth measuring here: dimensions with their values, what is absent and why, and the default point.

Promise: every point that comes out of a space is settled (llama.cpp runs exactly it) and is accepted by llama.cpp and by the
workload, as far as that can be known beforehand. The baseline, which all gains are told against, is always among them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

import msgspec

from tuner.runconfig import EffectiveFacts, RunConfig
from tuner.space.base import Cost, Domain, Phase
from tuner.space.cachetypes import is_less_precise
from tuner.space.catalogue import find_dimension
from tuner.space.refusal import RefusalFacts, find_refusal, find_warnings
from tuner.space.settling import settle_point

_BY_COST: Final[tuple[Cost, ...]] = ("process", "model", "context", "live")


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True):
    """What can be searched for these models, this machine and this workload. Made by `build_space`."""

    name: str
    """What the space file calls itself."""
    domains: dict[str, Domain]
    """What is searched, in the order of RunConfig's fields; each has two values or more."""
    absent: dict[str, str]
    """What is not searched, and why."""
    fixed: dict[str, Any]
    """What the user fixed, by --set or by a single value in the space file."""
    baseline: RunConfig
    """llama-server's own settings for this workload, with what is fixed; settled."""
    facts: dict[str, EffectiveFacts]
    """By model path: what decides which points are one."""
    refusal_facts: dict[str, RefusalFacts]
    """By model path: what decides whether a point can run."""
    affects: dict[str, frozenset[Phase]]
    """By dimension: the phases that it moves here."""
    costs: dict[str, Cost]
    """By dimension: what must be rebuilt to change it."""
    context_per_slot: int | None = None
    """Context follows the number of slots with this many tokens each; None when ctx_size is searched or fixed."""
    least_context: int = 0
    """Where the context follows the slots, it is never smaller than this, tokens."""
    v_follows_k: bool = False
    """The V cache has the K cache's type (MLA)."""
    keep_k_precise: bool = False
    """Points whose keys are kept less precisely than their values are left out."""

    @property
    def size(self) -> int:
        """Combinations of values, alike and refused ones included."""
        return math.prod(len(domain.values) for domain in self.domains.values())

    def effective(self, config: RunConfig) -> RunConfig:
        """The point that is really run when `config` is asked for."""
        return settle_point(config, self.facts[self._model_of(config)])

    def refusal(self, config: RunConfig) -> str | None:
        """Why `config` is not worth starting, in one sentence; None when nothing speaks against it."""
        settled = self.effective(config)
        reason = find_refusal(settled, self.refusal_facts[self._model_of(config)])
        if reason is None and self.keep_k_precise and is_less_precise(settled.cache_type_k, settled.cache_type_v):
            return f"keys would be kept less precisely ({settled.cache_type_k}) than values ({settled.cache_type_v})"
        return reason

    def warnings(self, config: RunConfig) -> tuple[str, ...]:
        """What llama.cpp would run, but should not be run without a word."""
        return find_warnings(self.effective(config), self.refusal_facts[self._model_of(config)])

    def from_values(self, values: Mapping[str, Any], *, base: RunConfig | None = None) -> RunConfig:
        """The settled point with these values, the rest from `base` (the baseline when None).

        Raises BadInputError for a value that the setting cannot take, KeyError for a name that is none.
        """
        start = self.baseline if base is None else base
        return self.effective(self._follow(start.replace(**{name: _parse(name, value) for name, value in values.items()})))

    def values_of(self, config: RunConfig) -> dict[str, Any]:
        """The values of the dimensions that lead to `config`; a clamped setting is told by the value of its domain."""
        return {name: self._value_of(config, name) for name in self.domains}

    def points(self, names: Sequence[str] | None = None, *, base: RunConfig | None = None) -> Iterator[RunConfig]:
        """Distinct settled points that nothing speaks against, over the values of `names` (all dimensions when None).

        Other dimensions stay at `base` (the baseline when None). What is dear to change changes least often.
        """
        start = self.baseline if base is None else base
        chosen = sorted(self.domains if names is None else names, key=lambda name: _BY_COST.index(self.costs[name]))
        seen: set[RunConfig] = set()
        for combination in product(*(self.domains[name].values for name in chosen)):
            point = self.effective(self._follow(start.replace(**dict(zip(chosen, combination, strict=True)))))
            if point not in seen and self.refusal(point) is None:
                yield point
            seen.add(point)

    def relevant(self, phases: Collection[Phase]) -> tuple[str, ...]:
        """Dimensions that move one of these phases, in order."""
        return tuple(name for name in self.domains if self.affects[name] & set(phases))

    def _follow(self, config: RunConfig) -> RunConfig:
        """Settings that are not searched themselves keep up with those that they depend on."""
        if self.context_per_slot is not None:
            config = config.replace(ctx_size=max(self.context_per_slot * config.parallel, self.least_context))
        return config.replace(cache_type_v=config.cache_type_k) if self.v_follows_k else config

    def _value_of(self, config: RunConfig, name: str) -> Any:
        value = getattr(config, name)
        domain = self.domains[name].values
        if value in domain:
            return value
        alike = (each for each in domain if self.effective(self._follow(config.replace(**{name: each}))) == config)
        return next(alike, value)

    def _model_of(self, config: RunConfig) -> str:
        return config.model if config.model in self.facts else self.baseline.model


def _parse(name: str, value: Any) -> Any:
    dimension = find_dimension(name)
    if dimension is None:
        raise KeyError(name)
    return dimension.parse_value(value)
