"""Points of a search space: which are there, which were not seen yet."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tuner.runconfig import RunConfig
from tuner.study.history import History

if TYPE_CHECKING:
    from tuner.space.searchspace import SearchSpace

_COUNTABLE: Final = 5_000
"""Combinations that are looked through one by one; beyond, they are drawn at random."""
_DRAWS: Final = 2_000


def find_config(space: SearchSpace, values: Mapping[str, Any]) -> RunConfig:
    """The effective point at these values; dimensions that are not named take the default."""
    full = {**space.values_of(space.baseline), **values}
    return space.effective(space.from_values(full))


def find_unseen(space: SearchSpace, history: History, *, seed: int) -> dict[str, Any] | None:
    """A valid point that was neither tried nor told; None when the space is exhausted."""
    seen = {attempt.trial.config for attempt in history.attempts}
    for values in _walk(space, random.Random(seed)):
        config = find_config(space, values)
        if config not in seen and space.refusal(config) is None:
            return values
    return None


def _walk(space: SearchSpace, rng: random.Random) -> Iterator[dict[str, Any]]:
    names = list(space.domains)
    choices = [space.domains[name].values for name in names]
    if math.prod(len(values) for values in choices) > _COUNTABLE:
        for _ in range(_DRAWS):
            yield {name: rng.choice(values) for name, values in zip(names, choices, strict=True)}
        return
    combinations = list(itertools.product(*choices))
    rng.shuffle(combinations)
    for combination in combinations:
        yield dict(zip(names, combination, strict=True))


def count_points(space: SearchSpace, names: Sequence[str], *, most: int) -> int:
    """Distinct valid points over these dimensions, the others at the default; counting stops above `most`."""
    known = [name for name in names if name in space.domains]
    found: set[RunConfig] = set()
    for combination in itertools.islice(itertools.product(*(space.domains[name].values for name in known)), _COUNTABLE):
        config = find_config(space, dict(zip(known, combination, strict=True)))
        if space.refusal(config) is None:
            found.add(config)
        if len(found) > most:
            break
    return len(found)
