"""The fit: log times as sums of a few exponentials, by a ridge towards prior means and a robust loss, each device counting equally.

Time of a row = Σ over terms of offset × exp(coefficients), as `tuner.roofline.coefficients` has it; its logarithm is fitted by
Gauss-Newton steps. Coefficients of a backend or format are deviations that shrink towards 0, so that a device of a kind never
seen falls back to what is common.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.bench.sheets.mixes import BITS, mean_bits
from tests.bench.sheets.rows import Row
from tuner.roofline import coefficients as cost

Array = NDArray[np.float64]

NOISE = 0.15
"""Log error from which on a row counts less (Huber)."""
ROWS_A_DEVICE = 6.0
"""What the rows of one device and phase weigh together, in rows."""


class Problem(NamedTuple):
    names: list[str]
    offsets: Array
    """rows × terms, logarithms."""
    features: Array
    """rows × terms × coefficients."""
    target: Array
    """Log seconds."""

    def pick(self, chosen: Array) -> Problem:
        return self._replace(offsets=self.offsets[chosen], features=self.features[chosen], target=self.target[chosen])

    def predict(self, theta: Array) -> tuple[Array, Array]:
        """Log seconds, and each term's share of the time."""
        logs = self.offsets + self.features @ theta
        most = logs.max(1, keepdims=True)
        parts = np.exp(logs - most)
        whole = parts.sum(1, keepdims=True)
        return (most + np.log(whole))[:, 0], parts / whole


def row_terms(row: Row) -> list[tuple[float, cost.Features]]:
    """(seconds at an efficiency of one, coefficients) of each part of a row's time."""
    sheet, terms = row.sheet, []
    bandwidth, rate = sheet.bandwidth_gbs.value * 1e9, sheet.tflops * 1e12 * row.share
    for form, share in row.mix.items():
        terms.append((row.step_bytes * share / bandwidth, cost.read_features(sheet, form)))
        operations = row.operations * share * mean_bits(row.mix) / BITS[form]
        features = cost.multiply_features(sheet, form)
        if sheet.backend == "rocm" and row.settings in {"hip", "rocwmma"}:
            # gfx1151 without hipBLASLt: a fault of that build, of no use for other machines
            features = features | {"multiply without hipBLASLt": 1.0}
        terms.append((operations / rate, features))
    terms.append((row.steps * row.layers * cost.LAYER_UNIT_S, cost.layer_features(sheet)))
    attend = cost.attend_features(sheet, tokens=int(row.tokens), flash_attn=row.flash_attn)
    terms.append((max(row.attended / (bandwidth if row.tokens == 1 else rate), 1e-12), attend))
    return terms


def build_problem(rows: list[Row], names: list[str] | None = None) -> Problem:
    terms = [row_terms(row) for row in rows]
    known = names or sorted({name for parts in terms for _, features in parts for name in features})
    index = {name: i for i, name in enumerate(known)}
    width = max(len(parts) for parts in terms)
    offsets = np.full((len(rows), width), -60.0)
    features = np.zeros((len(rows), width, len(known)))
    for i, parts in enumerate(terms):
        for k, (seconds, found) in enumerate(parts):
            offsets[i, k] = np.log(seconds)
            for name, times in found.items():
                if name in index:
                    features[i, k, index[name]] = times
    return Problem(known, offsets, features, np.log([row.seconds for row in rows]))


def weigh_rows(rows: list[Row]) -> Array:
    """Equal weight for each device and phase, less where it has under four rows."""
    counts = Counter((row.device, row.phase) for row in rows)
    each = [counts[row.device, row.phase] for row in rows]
    return np.array([ROWS_A_DEVICE * min(1.0, n / 4) / n for n in each]) / NOISE**2


def solve(problem: Problem, weights: Array, mean: Array, width: Array, start: Array | None = None) -> Array:
    theta = (mean if start is None else start).copy()
    for _ in range(25):
        fitted, shares = problem.predict(theta)
        jacobian = np.einsum("ik,ikp->ip", shares, problem.features)
        residual = problem.target - fitted
        robust = weights / np.maximum(1.0, np.abs(residual) / NOISE)
        normal = (jacobian * robust[:, None]).T @ jacobian + np.diag(width**-2)
        step = np.linalg.solve(normal, (jacobian * robust[:, None]).T @ residual - (theta - mean) / width**2)
        largest = float(np.abs(step).max())
        theta += step * min(1.0, 1.0 / max(largest, 1e-9))
        if largest < 1e-3:
            break
    return theta
