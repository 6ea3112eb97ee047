"""Small sets of numbers worth trying."""

from __future__ import annotations

from collections.abc import Iterable


def list_powers(least: int, most: int) -> tuple[int, ...]:
    """Powers of two from `least` to `most`, both as bounds."""
    found: list[int] = []
    value = 1
    while value <= most:
        if value >= least:
            found.append(value)
        value *= 2
    return tuple(found)


def raise_to_power(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << max(0, value - 1).bit_length()


def list_evenly(most: int, steps: int) -> tuple[int, ...]:
    """Numbers from 0 to `most` in about `steps` even steps, both ends among them."""
    return sort_distinct(round(most * step / steps) for step in range(steps + 1))


def sort_distinct(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))
