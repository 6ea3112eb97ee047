"""The fit: log times as sums of a few exponentials, by a ridge towards prior means and a robust loss, each device counting equally.

Time of a row = Σ over terms of offset × exp(coefficients), as `tuner.roofline.coefficients` has it; its logarithm is fitted by
Gauss-Newton steps. Coefficients of a backend or format are deviations that shrink towards 0, so that a device of a kind never
seen falls back to what is common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.bench.sheets.mixes import BITS, mean_bits
from tests.bench.sheets.rows import Row, Work
from tuner.roofline import coefficients as cost

Array = NDArray[np.float64]
Index = NDArray[np.int64]

NOISE = 0.15
"""Log error from which on a row counts less (Huber)."""
ROWS_AT_ONCE = 8
"""Operations on each byte of K and V where a kernel reads them anew for every eight tokens (float16)."""
LAUNCH_S = 2e-5
"""Starting the two to four kernels of one matrix of one expert, s; a rule of thumb."""
COPY_S = 6e-6
"""One call of the host to copy little, s: 5 to 7 µs (DualPath, arXiv 2602.21548, section 5.2)."""
ROWS_A_DEVICE = 6.0
"""What the rows of one device and phase weigh together, in rows."""


class Problem(NamedTuple):
    """Coefficients of terms as a list of entries, for most terms have few of many."""

    names: list[str]
    offsets: Array
    """rows × terms, logarithms."""
    slot: Index
    """Of each entry: its place in `offsets`, counted row by row."""
    column: Index
    """Of each entry: which coefficient."""
    times: Array
    """Of each entry: how many times it counts."""
    target: Array
    """Log seconds."""

    def pick(self, chosen: Array) -> Problem:
        """The rows where `chosen` is true."""
        width = self.offsets.shape[1]
        row, place = np.divmod(self.slot, width)
        kept = chosen[row]
        moved = (np.cumsum(chosen) - 1)[row[kept]] * width + place[kept]
        return self._replace(
            offsets=self.offsets[chosen], target=self.target[chosen],
            slot=moved, column=self.column[kept], times=self.times[kept],
        )  # fmt: skip

    def predict(self, theta: Array) -> tuple[Array, Array]:
        """Log seconds, and each term's share of the time."""
        sums = np.bincount(self.slot, self.times * theta[self.column], self.offsets.size)
        logs = self.offsets + sums.reshape(self.offsets.shape)
        most = logs.max(1, keepdims=True)
        parts = np.exp(logs - most)
        whole = parts.sum(1, keepdims=True)
        return (most + np.log(whole))[:, 0], parts / whole

    def differentiate(self, shares: Array) -> Array:
        """rows × coefficients: by how much the log seconds grow with each."""
        rows, width = self.offsets.shape
        place = self.slot // width * len(self.names) + self.column
        return np.bincount(place, shares.ravel()[self.slot] * self.times, rows * len(self.names)).reshape(rows, -1)


def row_terms(row: Row) -> list[tuple[float, cost.Features]]:
    """(seconds at an efficiency of one, coefficients) of each part of a row's time."""
    sheet = row.sheet
    bandwidth, rate = sheet.bandwidth_gbs.value * 1e9, sheet.tflops * 1e12 * row.share
    terms = [each for work in row.work for each in _work_terms(row, work, bandwidth)]
    terms.append((row.steps * row.layers * cost.LAYER_UNIT_S, cost.layer_features(sheet)))
    if row.tokens == 1:
        return [*terms, (row.looked / bandwidth, cost.look_features(sheet, flash_attn=row.flash_attn))]
    if sheet.kind != "cpu":
        terms.append((row.moved / bandwidth, cost.move_features(sheet)))
    kernel = row.kernel if row.flash_attn else "matrix"
    vector = sheet.fp32_tflops.value * 1e12 if sheet.fp32_tflops else rate
    rates = {"matrix": rate, "tile": vector, "rows": ROWS_AT_ONCE * bandwidth}
    terms.append((row.attended / rates[kernel], cost.attend_features(sheet, flash_attn=row.flash_attn, kernel=kernel)))
    if not row.flash_attn and sheet.kind != "cpu":
        scores = row.attended / (4 * row.head) * cost.SCORE_BYTES
        terms.append((scores / bandwidth, cost.score_features(sheet)))
    return terms


def _work_terms(row: Row, work: Work, bandwidth: float) -> Iterator[tuple[float, cost.Features]]:
    sheet = row.sheet
    padding = cost.padded_tokens(sheet, work.tokens) / work.tokens if work.routed else 1.0
    for form, share in work.mix.items():
        yield work.n_bytes * share / bandwidth, cost.read_features(sheet, form)
        if work.converted and cost.format_class(form) != "plain":
            # written out once, read once, two bytes each
            yield 4 * work.n_bytes * share * 8 / BITS[form] / bandwidth, cost.read_features(sheet, "F16")
        operations = padding * work.operations * share * mean_bits(work.mix) / BITS[form]
        if work.converted and work.library:
            yield operations / work.library, {"library": 1.0}
            continue
        done = "F16" if work.converted else form
        features = cost.multiply_features(sheet, done, routed=work.routed)
        yield operations / (cost.multiply_rate(sheet, done) * row.share), features
    if work.looped:
        yield 3 * work.looped * LAUNCH_S, {"loop": 1.0}
    if work.copied:
        yield 3 * work.copied * COPY_S, {}


def build_problem(rows: list[Row]) -> Problem:
    terms = [row_terms(row) for row in rows]
    names = sorted({name for parts in terms for _, features in parts for name in features})
    index = {name: i for i, name in enumerate(names)}
    width = max(len(parts) for parts in terms)
    offsets = np.full((len(rows), width), -60.0)
    entries: list[tuple[int, int, float]] = []
    for i, parts in enumerate(terms):
        for k, (seconds, found) in enumerate(parts):
            offsets[i, k] = np.log(max(seconds, 1e-12))
            entries += [(i * width + k, index[name], times) for name, times in found.items()]
    slot, column, times = (np.array(each) for each in zip(*entries, strict=True))
    return Problem(names, offsets, slot, column, times, np.log([row.seconds for row in rows]))


def row_seconds(row: Row, fitted: cost.Coefficients) -> float:
    """A row's time by known coefficients, s."""
    return sum(seconds * fitted.factor(features) for seconds, features in row_terms(row))


def weigh_rows(rows: list[Row]) -> Array:
    """Equal weight for each device, phase and kind of model, less where it has under four rows."""
    counts = Counter((row.device, row.phase, row.moe) for row in rows)
    each = [counts[row.device, row.phase, row.moe] for row in rows]
    return np.array([ROWS_A_DEVICE * min(1.0, n / 4) / n for n in each]) / NOISE**2


def solve(problem: Problem, weights: Array, mean: Array, width: Array, start: Array | None = None) -> Array:
    theta = (mean if start is None else start).copy()
    for _ in range(25):
        fitted, shares = problem.predict(theta)
        jacobian = problem.differentiate(shares)
        residual = problem.target - fitted
        robust = weights / np.maximum(1.0, np.abs(residual) / NOISE)
        normal = (jacobian * robust[:, None]).T @ jacobian + np.diag(width**-2)
        step = np.linalg.solve(normal, (jacobian * robust[:, None]).T @ residual - (theta - mean) / width**2)
        largest = float(np.abs(step).max())
        theta += step * min(1.0, 1.0 / max(largest, 1e-9))
        if largest < 1e-3:
            break
    return theta
