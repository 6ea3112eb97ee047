"""The dimensions there are, found in `tuner.space.dimensions`, in the one order that everything shows them in."""

from __future__ import annotations

from functools import cache

from tuner.discover import discover_classes
from tuner.runconfig import RunConfig
from tuner.space import dimensions
from tuner.space.base import Dimension


@cache
def list_dimensions() -> tuple[Dimension, ...]:
    """All dimensions, in the order of RunConfig's fields."""
    order = {name: place for place, name in enumerate(RunConfig.__struct_fields__)}
    found = [kind() for kind in discover_classes(dimensions, Dimension)]  # type: ignore[type-abstract]
    return tuple(sorted(found, key=lambda each: order[each.name]))


def find_dimension(name: str) -> Dimension | None:
    """The dimension called `name`, or None."""
    return next((each for each in list_dimensions() if each.name == name), None)
