"""How wide the interval of an expected gain must be, by the setting that changes: predicted against measured ratios of all pairs
of points in the recorded grids that differ in one setting as the checklist may change it.

    python -m tests.bench.gain_intervals

Prints, for each setting and metric, the pairs with a predicted gain of 8 % and more, the mean error, the mean joint width of both
predictions (as if they erred each by itself), the share of it that holds four of five measured ratios, and half of them.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRIDS = Path(__file__).parents[1] / "data" / "grids"
METRICS = ("ttft", "tpot", "latency")
LEAST_GAIN = math.log(1.08)
CACHES = {"cache_type_k", "cache_type_v"}


def main() -> None:
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for path in sorted(GRIDS.glob("*.json")):
        for setting, metric, error, width in list_pairs(json.loads(path.read_text())):
            found[setting, metric].append((error, width))
    print(f"{'setting':<14}{'metric':<9}{'pairs':>6}{'error':>8}{'width':>8}{'4 of 5 within':>15}{'half within':>13}")
    for (setting, metric), pairs in sorted(found.items()):
        shares = sorted(abs(error) / width for error, width in pairs)
        error, width = (statistics.fmean(abs(each[number]) for each in pairs) for number in (0, 1))
        held, half = (shares[min(len(shares) - 1, int(part * len(shares)))] for part in (0.8, 0.5))
        print(f"{setting:<14}{metric:<9}{len(pairs):>6}{error:>8.2f}{width:>8.2f}{held:>15.2f}{half:>13.2f}")


def list_pairs(grid: dict[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """(setting, metric, logarithm of predicted over measured ratio, joint half width)."""
    names = tuple(grid["domains"])
    points = [point for point in grid["points"] if "predicted" in point and point.get("ttft_ms")]
    settings = [{name: point["config"].get(name, grid["baseline"][name]) for name in names} for point in points]
    steps = grid["workload"]["output_tokens"] - 1
    for (one, here), (other, there) in itertools.combinations(zip(points, settings, strict=True), 2):
        setting = _name_change(here, there)
        if setting is None:
            continue
        for metric in METRICS:
            before, after = one["predicted"][metric], other["predicted"][metric]
            predicted = math.log(before[0] / after[0])
            if abs(predicted) >= LEAST_GAIN:
                measured = math.log(_measure(one, metric, steps) / _measure(other, metric, steps))
                width = math.hypot(*(math.log(high / low) / 2 for _, low, high in (before, after)))
                yield setting, metric, predicted - measured, width


def _name_change(here: dict[str, Any], there: dict[str, Any]) -> str | None:
    """The setting that differs; both cache types together count as one, and only equal ones."""
    changed = {name for name in here if here[name] != there[name]}
    alike = all(each.get("cache_type_k") == each.get("cache_type_v") for each in (here, there))
    if not alike:
        return None
    return "cache types" if changed == CACHES else changed.pop() if len(changed) == 1 else None


def _measure(point: dict[str, Any], metric: str, steps: int) -> float:
    ttft, tpot = statistics.median(point["ttft_ms"]), statistics.median(point["tpot_ms"])
    return {"ttft": ttft, "tpot": tpot, "latency": ttft + steps * tpot}[metric]


if __name__ == "__main__":
    main()
