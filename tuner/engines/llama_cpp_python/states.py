"""Saved histories: a sequence's state, kept so that other contexts of the same kind restore it instead of computing it.

The store is bounded: 2 GiB or a tenth of the memory that is available, whichever is less; what does not fit is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec
import psutil

_MOST_BYTES: Final = 2 * 2**30
_SHARE: Final = 0.1


class StateKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a saved state fits: the file, how its cache is laid out, and which tokens it holds."""

    model: tuple[str, int, int]
    """Path, size in bytes and time of last change of the model file."""
    cache_type_k: str
    cache_type_v: str
    flash_attn: str | None
    """As settled; V is stored transposed without it."""
    swa_full: bool
    depth: int
    """Tokens of history."""
    prompt: int
    """Tokens of slot 0's prompt after them."""


class StateStore:
    """Least recently used goes first."""

    def __init__(self, limit: Callable[[], int] | None = None) -> None:
        self._limit = limit or measure_limit
        self._held: OrderedDict[StateKey, Any] = OrderedDict()

    def find(self, key: StateKey) -> Any:
        """The saved bytes, or None."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def has_room(self, size: int) -> bool:
        """Whether a state of `size` bytes may be kept at all."""
        return size <= self._limit()

    def keep(self, key: StateKey, blob: Any) -> None:
        """Keep a state, dropping old ones until the bound is met."""
        limit = self._limit()
        self._held[key] = blob
        while len(self._held) > 1 and sum(len(b) for b in self._held.values()) > limit:
            self._held.popitem(last=False)

    def forget(self, key: StateKey) -> None:
        """Drop one that turned out not to fit."""
        self._held.pop(key, None)

    def clear(self) -> None:
        """Drop all."""
        self._held.clear()


def measure_limit() -> int:
    """Bytes of saved states allowed now."""
    return min(_MOST_BYTES, int(psutil.virtual_memory().available * _SHARE))
