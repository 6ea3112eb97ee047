"""The tables that the script prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tests.bench.sheets.evaluation import by_device
from tests.bench.sheets.fitting import Array
from tests.bench.sheets.rows import Row


def show_devices(rows: Sequence[Row], error: Array, inside: Array) -> None:
    """By device: rows, median relative error of tok/s, predicted over measured tok/s, share of rows inside the 80 % interval."""
    relative = np.abs(np.expm1(-error))
    print(f"\n{'phase':<9}{'device':<20}{'rows':>6}{'error':>9}{'pred/meas':>11}{'in 80 %':>9}")
    wrong, ratio, held = (by_device(rows, values) for values in (relative, np.exp(-error), inside.astype(float)))
    for phase, device in sorted(wrong):
        key = (phase, device)
        print(
            f"{phase:<9}{device:<20}{len(wrong[key]):>6}{np.median(wrong[key]):>9.1%}"
            f"{np.median(ratio[key]):>11.2f}{np.mean(held[key]):>9.0%}"
        )


def summarise(title: str, rows: Sequence[Row], error: Array, inside: Array) -> None:
    """Medians over devices and over rows, and the interval's coverage."""
    relative = np.abs(np.expm1(-error))
    print(f"\n{title}")
    for phase in ("decode", "prefill"):
        chosen = np.array([row.phase == phase for row in rows], bool)
        if not chosen.any():
            continue
        medians = [np.median(each) for (which, _), each in by_device(rows, relative).items() if which == phase]
        print(
            f"  {phase:<8} median over {len(medians):>2} devices {np.median(medians):6.1%}   over {chosen.sum():>4} rows "
            f"{np.median(relative[chosen]):6.1%}   in the 80 % interval {inside[chosen].mean():.0%} of rows"
        )


def show_skipped(table: str, used: int, skipped: Counter[str]) -> None:
    reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common())
    print(f"{table}.csv: {used} rows used; left out: {reasons or 'none'}")
