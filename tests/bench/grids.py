"""Recorded grids: what tests/bench/record_grids.py writes and tests/bench/replay.py reads.

One JSON file a model; a point's settings are told by what differs from the default, so that a file stays small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tuner.runconfig import EffectiveFacts, RunConfig
from tuner.space.base import Domain
from tuner.workload import Workload

FOLDER: Final = Path(__file__).parent.parent / "data" / "grids"


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one point of a grid did."""

    config: RunConfig
    """Effective settings; `model` is the grid's name."""
    state: str = "complete"
    """As the measurer told it."""
    ttft_ms: tuple[float, ...] = ()
    """Each sample, ms."""
    tpot_ms: tuple[float, ...] = ()
    """Each sample, ms."""
    memory_bytes: int = 0
    """As llama.cpp reports it, bytes."""
    elapsed_s: float = 0.0
    """Wall time of the attempt, s."""
    predicted: dict[str, tuple[float, float, float]] = {}
    """By metric: value, lower and upper end of the 80 % interval, ms; {} without a calibration."""


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Every point of a space."""

    name: str
    """Model and format."""
    machine: str
    """The machine in one line."""
    runtime: str
    """Engine and version."""
    workload: Workload
    """What was run."""
    baseline: RunConfig
    """The default point."""
    domains: dict[str, Domain]
    """What was searched."""
    affects: dict[str, tuple[str, ...]]
    """By dimension: the phases that it moves."""
    facts: EffectiveFacts
    """What decides which points are one."""
    predicted_by: str = ""
    """The calibration whose predictions stand beside the figures: when it was made, and llama.cpp's version."""
    points: tuple[Point, ...]
    """In the order in which they were measured."""


def read_grid(path: Path) -> Grid:
    """The grid of a file."""
    data = msgspec.json.decode(path.read_bytes())
    for point in data["points"]:
        point["config"] = {**data["baseline"], **point["config"]}
    return msgspec.convert(data, Grid)


def write_grid(path: Path, grid: Grid) -> None:
    """One line a point."""
    data: dict[str, Any] = msgspec.to_builtins(grid)
    baseline, points = data["baseline"], data.pop("points")
    for point in points:
        point["config"] = {key: value for key, value in point["config"].items() if value != baseline[key]}
    head = msgspec.json.format(msgspec.json.encode(data), indent=1).decode().rstrip().removesuffix("}").rstrip()
    lines = ",\n  ".join(msgspec.json.encode(point).decode() for point in points)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "points": [\n  {lines}\n ]\n}}\n')
