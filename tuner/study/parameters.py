"""How the values of a search space look to Optuna.

Evenly spaced numbers are whole-number parameters, all other dimensions are categories, so that a dashboard shows
llama.cpp's own values. Tuples and paths become short text.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from tuner.space.searchspace import SearchSpace

Plain = None | bool | int | float | str


class Parameters:
    """Translates between a space's values and Optuna's parameters."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        defaults = space.values_of(space.baseline)
        self._values = {
            name: _with_default(domain.values, defaults[name], ordered=domain.ordered) for name, domain in space.domains.items()
        }
        self._texts = {name: _name_values(name, values) for name, values in self._values.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def values(self, name: str) -> tuple[Any, ...]:
        """The values of one dimension, the default among them."""
        return self._values[name]

    def encode(self, values: Mapping[str, Any]) -> dict[str, Plain]:
        """Values of the space as parameters."""
        return {name: self._texts[name][_index(self._values[name], value)] for name, value in values.items()}

    def decode(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as values of the space; a dimension that is not named takes the default."""
        values = dict(self._space.values_of(self._space.baseline))
        for name, text in params.items():
            values[name] = self._values[name][_index(self._texts[name], text)]
        return values

    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna draws from; dimensions of one value are left out."""
        return {name: self._distribution(name) for name, texts in self._texts.items() if len(texts) > 1}

    def _distribution(self, name: str) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        texts = self._texts[name]
        if self._space.domains[name].ordered and (step := _find_step(texts)):
            return IntDistribution(low=int(texts[0] or 0), high=int(texts[-1] or 0), step=step)
        return CategoricalDistribution(texts)


def _find_step(texts: tuple[Plain, ...]) -> int | None:
    """The distance between neighbours of evenly spaced whole numbers; None for anything else."""
    numbers = [text for text in texts if isinstance(text, int) and not isinstance(text, bool)]
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    return steps.pop() if len(numbers) == len(texts) > 2 and len(steps) == 1 and min(steps) > 0 else None


def _with_default(values: tuple[Any, ...], default: Any, *, ordered: bool) -> tuple[Any, ...]:
    if any(_same(value, default) for value in values):
        return tuple(values)
    return tuple(sorted((*values, default))) if ordered else (default, *values)


def _index(values: tuple[Any, ...], wanted: Any) -> int:
    return next(index for index, value in enumerate(values) if _same(value, wanted))


def _same(one: Any, other: Any) -> bool:
    """Equal and of one type: True is not 1 here."""
    return type(one) is type(other) and bool(one == other)


def _name_values(name: str, values: tuple[Any, ...]) -> tuple[Plain, ...]:
    if name == "model":
        short = tuple(Path(value).name for value in values)
        return short if len(set(short)) == len(short) else values
    return tuple(",".join(f"{part:g}" for part in value) if isinstance(value, tuple) else value for value in values)
