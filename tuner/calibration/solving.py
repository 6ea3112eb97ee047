"""Linear least squares with no unknown below 0, in names instead of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Terms = Mapping[str, float]
"""How much of each unknown is in one time."""


def solve(rows: Sequence[Terms], targets: Sequence[float], scales: Sequence[float]) -> dict[str, float]:
    """The unknowns that explain `targets` best, errors counted relative to `scales` (the whole times)."""
    import numpy as np

    names = sorted({name for row in rows for name in row})
    matrix = np.array([[row.get(name, 0.0) / scale for name in names] for row, scale in zip(rows, scales, strict=True)])
    found = _solve_positive(matrix, np.array(targets) / np.array(scales))
    return dict(zip(names, map(float, found), strict=True))


def _solve_positive(rows: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The most negative unknown is set to 0 until none is left."""
    import numpy as np

    free = list(range(rows.shape[1]))
    while True:
        scale = np.abs(rows[:, free]).max(axis=0)
        scale[scale == 0] = 1.0
        part = np.linalg.lstsq(rows[:, free] / scale, targets, rcond=None)[0] / scale
        worst = int(np.argmin(part * scale))
        if part[worst] >= 0 or len(free) == 1:
            break
        del free[worst]
    found = np.zeros(rows.shape[1])
    found[free] = np.maximum(part, 0.0)
    return found
