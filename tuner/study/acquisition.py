"""Which candidate to run next, or that none is worth it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from tuner.study.surrogate import Outlook

NOTICEABLE: Final = 0.01
"""A share of the goal below which a difference is not worth a changed setting."""
_LITTLE_HOPE: Final = 0.01
"""How likely it may be that some point is noticeably better, for the search to end."""
_ALIKE: Final = 0.98
"""Candidates that promise this share of the most are told apart by how simple they are."""
_POSSIBLE: Final = 0.01
"""A candidate less likely than this to keep the limits is not run."""


def choose_next(outlook: Outlook, seen: Collection[int], allowed: Collection[int], changes: Sequence[int]) -> int | None:
    """The row of the candidate to run, None when it is unlikely that any of them is noticeably better than what was seen.

    `seen` rows have figures, `allowed` ones may be run; `changes` counts each row's differences from the default. After the
    first point comes the best by expectation; from then on the one from which most improvement is to be expected. How many
    there are counts: a hundred points of little hope each are worth as much as one of much.
    """
    rows = np.array(sorted(row for row in allowed if outlook.feasible[row] > _POSSIBLE), dtype=np.int64)
    if not len(rows):
        return None
    kept = [row for row in seen if outlook.feasible[row] > 0.5]
    if not kept:
        return _pick(rows, outlook.feasible[rows], changes)
    mean = outlook.mean
    best = min(float(mean[row]) for row in kept)
    left = outlook.take(rows)
    if left.chance(best - NOTICEABLE) < _LITTLE_HOPE:
        return None
    if len(seen) == 1:
        return int(rows[np.argmin(mean[rows])])
    return _pick(rows, left.improvement(best), changes)


def _pick(rows: np.ndarray[tuple[int], np.dtype[np.int64]], merit: np.ndarray, changes: Sequence[int]) -> int:
    near = rows[merit >= _ALIKE * merit.max()]
    return int(min(near, key=lambda row: (changes[row], row)))
