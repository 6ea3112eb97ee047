"""Leave one device out: predictions for devices that the fit never saw, the choice of widths inside, and how good both are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.bench.sheets.fitting import Array, Problem, build_problem, solve, weigh_rows
from tests.bench.sheets.rows import Row
from tuner.roofline.coefficients import SPREADS, spread_name

Z80 = 1.2816
FOLDS = 5
RELATIVES = 0.25
"""What a row of the same phase on another kind of GPU counts for in a spread: few devices of a kind say little about its tail.
Anything from 0.1 to 1 keeps the coverage between 70 and 90 %."""

Widths = dict[str, float]
"""Prior standard deviation by kind of coefficient."""

CANDIDATES: tuple[Widths, ...] = tuple(
    {"read": read, "format read": 2 * read, "multiply": multiply, "format multiply gpu": formats,
     "format multiply cpu": 0.6, "routed": routed}
    for read, multiply, formats, routed in (
        (0.03, 0.3, 0.15, 0.15), (0.03, 0.3, 0.4, 0.15), (0.03, 0.6, 0.15, 0.15), (0.03, 0.6, 0.4, 0.15),
        (0.03, 0.3, 0.15, 0.4), (0.1, 0.3, 0.15, 0.15),
    )
)  # fmt: skip
"""From strict to free; the data choose."""

MEANS = {
    "read gpu": 0.2, "read cpu": 0.2, "read bandwidth gpu": 0.0, "read bandwidth cpu": 0.3, "read bandwidth metal": 0.2,
    "layer gpu": 1.5, "layer cpu": 0.0,
    "multiply": 1.0, "multiply int8": 0.7, "multiply routed": 0.3, "look": 0.5, "attend": 1.5, "scores": 0.2, "move": 0.2,
    "attend rows": 0.75,
}  # fmt: skip
"""What is expected before any data: 80 % of the bandwidth, 50 µs and 10 µs a layer, a third of the compute rate; and that wide
memories are harder to fill: in llama.cpp's discussion 4167, Apple chips reach 79 % of 68 GB/s and 45 % of 800 GB/s. Rows: of
llama.cpp's pull request 7061, where 4096 tokens take a Radeon RX 7900 XTX 1.4 s (Llama 3 8B) and 3.3 s (Command-R) more with
that kernel than all but attention does."""

COMMON = {
    "read gpu": 1.0, "read cpu": 1.0, "read bandwidth gpu": 0.1, "read bandwidth cpu": 0.2, "read bandwidth metal": 0.1,
    "layer gpu": 1.0, "layer cpu": 1.0, "multiply": 1.0, "library": 0.2, "multiply int8": 0.5, "multiply routed": 0.5,
    "look": 1.0, "look plain": 0.5, "attend": 1.0, "attend plain": 0.3, "attend tile": 0.5, "attend rows": 0.5, "scores": 0.5, "loop": 0.5,
    "move": 0.5,
}  # fmt: skip
"""Widths of what is common to many devices."""


class Study(NamedTuple):
    rows: list[Row]
    problem: Problem
    training: Array
    """Rows that are fitted; of a sweep over lengths two, for the others are near-duplicates."""
    devices: Array


class Held(NamedTuple):
    predicted: Array
    """Log seconds of each row by coefficients that never saw its device."""
    chosen: dict[str, int]
    """Which candidate each device's fit chose without it."""


def open_study(rows: list[Row]) -> Study:
    lengths = defaultdict(set)
    for row in rows:
        lengths[row.sweep].add(row.length)
    kept = {key: {min(found), min(found, key=lambda x: abs(x - 2048))} for key, found in lengths.items()}
    training = np.array([row.length in kept[row.sweep] for row in rows])
    return Study(rows, build_problem(rows), training, np.array([row.device for row in rows]))


def prior(names: Sequence[str], widths: Widths) -> tuple[Array, Array]:
    means = np.array([MEANS.get(name, 0.0) for name in names])
    return means, np.array([_width(name, widths) for name in names])


def _width(name: str, widths: Widths) -> float:
    words = name.split()
    if name in COMMON:
        return COMMON[name]
    if name.startswith("read bandwidth"):
        return 0.03
    if name.startswith("multiply routed"):
        return widths["routed"]
    if words[0] == "read":
        return widths["format read" if len(words) == 3 else "read"]
    if words[0] == "multiply":
        return widths[f"format multiply {words[1]}" if len(words) == 3 else "multiply"]
    return 0.15


def fit(study: Study, use: Array, widths: Widths, start: Array | None = None) -> Array:
    chosen = study.training & use
    rows = [row for row, used in zip(study.rows, chosen, strict=True) if used]
    means, spread = prior(study.problem.names, widths)
    return solve(study.problem.pick(chosen), weigh_rows(rows), means, spread, start)


def leave_out(study: Study, *, nested: bool, report: Callable[[str], None] = lambda _: None) -> Held:
    """Each device predicted from the others; widths chosen by folds of devices among those others."""
    predicted, chosen = np.zeros(len(study.rows)), {}
    everyone = np.ones(len(study.rows), bool)
    starts = [fit(study, everyone, each) for each in CANDIDATES]
    usual = choose_widths(study, everyone, starts)
    for device in sorted(set(study.devices)):
        others = study.devices != device
        best = choose_widths(study, others, starts) if nested else usual
        theta = fit(study, others, CANDIDATES[best], starts[best])
        predicted[~others] = study.problem.pick(~others).predict(theta)[0]
        chosen[device] = best
        report(f"  without {device}: widths {best}")
    return Held(predicted, chosen)


def choose_widths(study: Study, use: Array, starts: list[Array]) -> int:
    """The candidate that predicts folds of devices best."""
    names = sorted(set(study.devices[use]))
    scores = np.zeros(len(CANDIDATES))
    for fold in range(FOLDS):
        out = np.isin(study.devices, names[fold::FOLDS])
        test = use & out & study.training
        rows = [row for row, used in zip(study.rows, test, strict=True) if used]
        for i, widths in enumerate(CANDIDATES):
            theta = fit(study, use & ~out, widths, starts[i])
            error = study.problem.pick(test).predict(theta)[0] - study.problem.target[test]
            scores[i] += sum(min(1.0, np.median(np.abs(each))) for each in by_device(rows, error).values())
    return int(scores.argmin())


def by_device(rows: Sequence[Row], values: Array) -> dict[tuple[str, str], list[float]]:
    """(phase, device) → values of its rows."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        found[row.phase, row.device].append(float(value))
    return found


def side(row: Row) -> str:
    """What spreads are told apart by."""
    return spread_name(row.phase, row.sheet)


def are_related(one: str, other: str) -> bool:
    """Whether two spreads are of one phase, and both of GPUs or both of CPUs."""
    return one.partition(" ")[0] == other.partition(" ")[0] and one.endswith("cpu") == other.endswith("cpu")


def find_spread(rows: Sequence[Row], error: Array, without: str = "") -> dict[str, float]:
    """Relative standard deviation by phase and kind whose 80 % interval holds four of five errors; each device counts as the square
    root of its rows, so that neither one device nor single rows rule, and other kinds of GPU by `RELATIVES`."""
    spread = {}
    counts = Counter((side(row), row.device) for row in rows)
    for name in SPREADS:
        chosen = [i for i, row in enumerate(rows) if are_related(side(row), name) and row.device != without]
        order = sorted(chosen, key=lambda i: abs(error[i]))
        kinds = [(side(rows[i]), rows[i].device) for i in order]
        weights = np.cumsum([(1.0 if kind[0] == name else RELATIVES) * counts[kind] ** -0.5 for kind in kinds])
        at = int(np.searchsorted(weights, 0.8 * weights[-1]))
        spread[name] = abs(float(error[order[min(at, len(order) - 1)]])) / Z80
    return spread


def covered(rows: Sequence[Row], error: Array, all_rows: Sequence[Row], all_errors: Array) -> Array:
    """Which rows lie in the 80 % interval that all other devices' errors give."""
    found = np.zeros(len(rows), bool)
    for device in {row.device for row in rows}:
        spread = find_spread(all_rows, all_errors, without=device)
        for i, row in enumerate(rows):
            if row.device == device:
                found[i] = abs(error[i]) <= Z80 * spread[side(row)]
    return found
