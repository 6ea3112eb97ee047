"""The points that a search chooses among, as numbers: all of a small space; of a large one a sample, and what lies around good
points.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tuner.runconfig import RunConfig
from tuner.study.gaussian import Array
from tuner.study.parameters import Parameters
from tuner.study.points import find_config

if TYPE_CHECKING:
    from tuner.space.searchspace import SearchSpace

MOST: Final = 2_000
"""Combinations that are all looked at; of more, so many are drawn."""


class Candidates:
    """Distinct effective points that nothing speaks against, in a fixed order; more can be added."""

    def __init__(self, space: SearchSpace, names: Sequence[str], *, start: Mapping[str, Any], seed: int) -> None:
        self._space, self.names = space, tuple(names)
        parameters = Parameters(space)
        self._choices = {name: parameters.values(name) for name in names}
        self._places: dict[RunConfig, int] = {}
        self.values: list[dict[str, Any]] = []
        self.configs: list[RunConfig] = []
        self._rows: list[list[float]] = []
        self.ordered = np.array([space.domains[name].ordered for name in names], dtype=np.bool_)
        self.add(start)
        self.add_around(start)
        for combination in self._combinations(random.Random(seed)):
            self.add({**start, **dict(zip(names, combination, strict=True))})

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def codes(self) -> Array:
        """One row a point, one column a name; ordered settings lie between 0 and 1."""
        return np.array(self._rows, dtype=np.float64).reshape(len(self._rows), len(self.names))

    def find(self, config: RunConfig) -> int | None:
        """The row of an effective point."""
        return self._places.get(config)

    def add(self, values: Mapping[str, Any]) -> None:
        """Take the point in, unless it is there or refused."""
        config = find_config(self._space, values)
        if config in self._places or self._space.refusal(config) is not None:
            return
        self._places[config] = len(self.configs)
        self.configs.append(config)
        self.values.append(dict(values))
        self._rows.append([self._encode(name, config) for name in self.names])

    def add_around(self, values: Mapping[str, Any]) -> None:
        """All points that differ from this one in a single setting."""
        for name in self.names:
            for value in self._choices[name]:
                self.add({**values, name: value})

    def _combinations(self, rng: random.Random) -> Iterator[tuple[Any, ...]]:
        choices = list(self._choices.values())
        if math.prod(len(values) for values in choices) <= MOST:
            yield from itertools.product(*choices)
            return
        for _ in range(MOST):
            yield tuple(rng.choice(values) for values in choices)

    def _encode(self, name: str, config: RunConfig) -> float:
        """An ordered value by its rank, what lies between two values in proportion; others by number."""
        value, choices = getattr(config, name), self._choices[name]
        if self._space.domains[name].ordered:
            return float(np.interp(value, choices, np.linspace(0.0, 1.0, len(choices))))
        return float(choices.index(value)) if value in choices else -1.0
