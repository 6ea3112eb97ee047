"""How a user's wish to stop reaches a measurement: once means after this sample, twice means now."""

from __future__ import annotations

import itertools


class Stop:
    """A wish to stop. Safe to call from any thread and from a signal handler: it takes no lock."""

    def __init__(self) -> None:
        self._counter = itertools.count(1)
        self._count = 0

    def request(self) -> None:
        """Ask once more."""
        self._count = max(self._count, next(self._counter))

    @property
    def requested(self) -> bool:
        """Finish the sample, then stop."""
        return self._count >= 1

    @property
    def immediate(self) -> bool:
        """Stop now, whatever is under way."""
        return self._count >= 2
