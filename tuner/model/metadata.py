"""Typed questions to a header's metadata: each gives a plain number of the right kind, or None, or a BadInputError."""

from __future__ import annotations

import math
from typing import Final

from tuner.errors import BadInputError
from tuner.model.gguf import ArrayValue, Header, shown

_MOST_COUNT: Final = 2**32 - 1


class Facts:
    """The metadata of one architecture; keys are told without the architecture's prefix."""

    def __init__(self, header: Header, architecture: str) -> None:
        self.header = header
        self.prefix = architecture

    def count(self, key: str) -> int | None:
        """A whole number from 0 to 2³²−1; of an array, its largest."""
        value = self._value(key)
        if isinstance(value, ArrayValue):
            return max(self._numbers(key, value), default=None)
        return None if value is None else self._whole(key, value)

    def counts(self, key: str, n_layer: int) -> tuple[int, ...] | None:
        """One whole number per block; a single number stands for all. An array of another length is refused."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, ArrayValue):
            return (self._whole(key, value),) * n_layer
        if value.count != n_layer:
            raise self.refusal(key, f"has {value.count} entries for {n_layer} blocks")
        return self._numbers(key, value)

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """An array of truth values of whatever length; None for a missing key or a single number."""
        value = self._value(key)
        return tuple(bool(number) for number in self._numbers(key, value)) if isinstance(value, ArrayValue) else None

    def single(self, key: str) -> int | None:
        """A whole number that is no array; None for a missing key or an array."""
        value = self._value(key)
        return None if value is None or isinstance(value, ArrayValue) else self._whole(key, value)

    def real(self, key: str) -> float | None:
        """A finite number."""
        value = self._value(key)
        if value is None:
            return None
        if isinstance(value, bool | str | ArrayValue) or not math.isfinite(value):
            raise self.refusal(key, "is no finite number")
        return float(value)

    def text(self, key: str) -> str | None:
        value = self._value(key)
        return value if isinstance(value, str) else None

    def _value(self, key: str) -> bool | int | float | str | ArrayValue | None:
        return self.header.metadata.get(f"{self.prefix}.{key}")

    def _whole(self, key: str, value: object) -> int:
        if isinstance(value, bool):
            return int(value)
        if not isinstance(value, int) or not 0 <= value <= _MOST_COUNT:
            raise self.refusal(key, f"is {shown(value)!r} where a count belongs")
        return value

    def _numbers(self, key: str, value: ArrayValue) -> tuple[int, ...]:
        if value.values is None:
            raise self.refusal(key, f"is an array of {value.count} entries where one number per block belongs")
        return tuple(self._whole(key, number) for number in value.values)

    def refusal(self, key: str, what: str) -> BadInputError:
        return BadInputError(
            f"{shown(self.header.path)} cannot be read as a model: {shown(self.prefix)}.{key} {what}.",
            "Convert or download the model again.",
        )
