"""How many trials until one lies within 3 % of the best? A replay over recorded grids, on a machine that exists on paper only.

Every strategy runs as `rooftune tune` runs it, over the same points, with the noise that was measured; only the figures come from
tests/data/grids. Physics runs with the predictions recorded there, with these shuffled among the points, and without any.
A cell is the median over seeds; where a search ended without such a point, it counts with the size of the grid, and the cell
has a mark. Needs no model and no quiet machine; Optuna's GP sampler needs torch and is left out without it:

    python -m tests.bench.replay --seeds 30
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import random
import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import optuna

from tests.bench.grids import FOLDER, Grid, Point, read_grid
from tests.study.fakes import FACTS, FakeMeasurer, failing, make_predict
from tuner.errors import InterruptedRunError
from tuner.measure.record import Sample
from tuner.roofline.record import Prediction
from tuner.runconfig import RunConfig, resolve_effective
from tuner.study.events import StageStarted, TrialFinished
from tuner.study.loop import run_study
from tuner.study.request import StudyRequest

GOALS = ("ttft", "tpot", "latency")
METHODS = ("physics", "physics, shuffled", "physics, no predictions", "TPE", "GP of Optuna", "random")
CLOSE = 1.03


class RecordedSpace:
    """The space of a grid, as a study uses it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._known = {point.config for point in grid.points}
        self.domains, self.baseline = grid.domains, grid.baseline

    def effective(self, config: RunConfig) -> RunConfig:
        return resolve_effective(config, self._grid.facts)

    def refusal(self, config: RunConfig) -> str | None:
        return None if config in self._known else "the space has no such point"

    def relevant(self, phases: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name, moved in self._grid.affects.items() if set(moved) & set(phases))

    def values_of(self, config: RunConfig) -> dict[str, Any]:
        return {name: self._value_of(config, name) for name in self.domains}

    def from_values(self, values: dict[str, Any]) -> RunConfig:
        return self.effective(self.baseline.replace(**values))

    def _value_of(self, config: RunConfig, name: str) -> Any:
        values = self.domains[name].values
        alike = (value for value in values if self.effective(config.replace(**{name: value})) == config)
        return getattr(config, name) if getattr(config, name) in values else next(alike, values[-1])


class Truth:
    """What each point really takes: the median over all samples of points that do not differ in what moves the phase."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self._steps = grid, grid.workload.output_tokens - 1
        self.points = {point.config: point for point in grid.points if point.state in {"complete", "noisy"}}
        self._figures = {"ttft": self._pool("ttft", "prefill"), "tpot": self._pool("tpot", "decode")}

    def _pool(self, part: str, phase: str) -> dict[RunConfig, float]:
        names = [name for name, moved in self.grid.affects.items() if phase in moved]
        keys = {config: tuple(getattr(config, name) for name in names) for config in self.points}
        pools: dict[Any, list[float]] = {}
        for config, point in self.points.items():
            pools.setdefault(keys[config], []).extend(list_samples(point, part))
        return {config: statistics.median(pools[key]) for config, key in keys.items()}

    def figure(self, config: RunConfig, goal: str) -> float:
        if goal != "latency":
            return self._figures[goal][config]
        return self._figures["ttft"][config] + self._steps * self._figures["tpot"][config]

    def list_noise(self, part: str) -> list[float]:
        """Every recorded sample against its truth, in log units."""
        figures = self._figures[part]
        return [math.log(each / figures[c]) for c, point in self.points.items() for each in list_samples(point, part)]

    def find_close(self, goal: str) -> set[RunConfig]:
        figures = {config: self.figure(config, goal) for config in self.points}
        return {config for config, value in figures.items() if value <= CLOSE * min(figures.values())}


def list_samples(point: Point, part: str) -> tuple[float, ...]:
    return point.ttft_ms if part == "ttft" else point.tpot_ms


class ReplayMeasurer(FakeMeasurer):
    """Answers with the truth of a point and noise drawn from what was recorded."""

    def __init__(self, truth: Truth, seed: int) -> None:
        super().__init__(seed=seed, respond=lambda config, _: None if config in truth.points else failing("crash"))
        self._truth = truth
        self._noises = {part: truth.list_noise(part) for part in ("ttft", "tpot")}

    def _sample(self, config: RunConfig, workload: Any, plan: Any) -> Sample:
        ttft, tpot = (
            self._truth.figure(config, part) * math.exp(self._random.choice(self._noises[part])) for part in ("ttft", "tpot")
        )
        return Sample(
            ttft_ms=ttft if plan.prefill else None,
            tpot_ms=tpot if plan.decode_tokens else None,
            decode_tps=1000 / tpot if plan.decode_tokens else None,
            total_tps=None,
            prefill_cpu_share=None,
            decode_cpu_share=None,
            others_cores=None,
        )


class Watch:
    """Ends a study once a close point was run, or before its confirmation begins."""

    def __init__(self, close: set[RunConfig]) -> None:
        self._close, self.run, self.found, self.requested = close, 0, False, False

    def __call__(self, event: Any) -> None:
        if isinstance(event, StageStarted) and event.stage == "confirm":
            self.requested = True
        if not isinstance(event, TrialFinished) or event.trial.state == "duplicate" or event.trial.outcome is None:
            return
        self.run += not self.found
        self.found = self.found or event.trial.config in self._close
        self.requested = self.requested or self.found


def count_trials(path: Path, goal: str, method: str, seed: int, *, synthetic: float) -> tuple[float, bool]:
    """Points run until one is close, and whether one was."""
    grid = read_grid(path)
    truth = Truth(grid)
    watch = Watch(truth.find_close(goal))
    request = StudyRequest(
        workload=grid.workload,
        goals=(goal,),  # type: ignore[arg-type]
        space=RecordedSpace(grid),  # type: ignore[arg-type]
        facts=FACTS,
        storage="memory://",
        budget_s=1e9,
        seed=seed,
        allow_quality_loss=True,
        strategy="random" if method == "random" else "physics" if method.startswith("physics") else "tpe",
        predict=find_predictor(truth, method, seed, synthetic),
    )
    measurer = ReplayMeasurer(truth, seed)
    with patch("tuner.study.record.make_sampler", make_gp if method.startswith("GP") else _make_own), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(InterruptedRunError):
            run_study(request, measurer, emit=watch, find_misfit=lambda _: None, clock=measurer.clock, stop=watch)
    return (float(watch.run), True) if watch.found else (float(len(truth.points)), False)


def _make_own(request: StudyRequest, *, attempts: int) -> optuna.samplers.BaseSampler:
    from tuner.study.sampling import make_sampler

    return make_sampler(request, attempts=attempts)


def make_gp(request: StudyRequest, *, attempts: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.GPSampler(seed=request.seed + attempts)


def find_predictor(truth: Truth, method: str, seed: int, synthetic: float) -> Callable[[RunConfig], Prediction | None] | None:
    """What physics is told beforehand; None: nothing."""
    if not method.startswith("physics") or method == METHODS[2]:
        return None
    told = {config: dict(point.predicted) for config, point in truth.points.items()}
    if synthetic:
        told = {config: invent(truth, config, synthetic) for config in truth.points}
    if not any(told.values()):
        return None
    if method == METHODS[1]:
        configs, figures = list(told), list(told.values())
        random.Random(seed).shuffle(figures)
        told = dict(zip(configs, figures, strict=True))
    phases = {config: (each["ttft"][0], each["tpot"][0]) for config, each in told.items() if each}
    return make_predict(phases.get, workload=truth.grid.workload)


def invent(truth: Truth, config: RunConfig, error: float) -> dict[str, tuple[float, float, float]]:
    """A prediction that errs by this much, the same in every run."""
    rng = random.Random(str(config))
    ttft, tpot = (truth.figure(config, part) * math.exp(rng.gauss(0, error)) for part in ("ttft", "tpot"))
    figures = {"ttft": ttft, "tpot": tpot, "latency": ttft + (truth.grid.workload.output_tokens - 1) * tpot}
    return {part: (value, value * math.exp(-1.28 * error), value * math.exp(1.28 * error)) for part, value in figures.items()}


def main() -> None:
    arguments = read_arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    methods = [m for m in METHODS if arguments.methods in m and (not m.startswith("GP") or importlib.util.find_spec("torch"))]
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for path in sorted(Path(arguments.grids).glob("*.json")):
            for goal in GOALS:
                cells = {m: replay(pool, path, goal, m, arguments) for m in methods}
                rows.append((read_grid(path), goal, cells))
                print_row(rows[-1], methods, head=len(rows) == 1)
    print_summary(rows, methods)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--grids", default=str(FOLDER))
    parser.add_argument("--methods", default="", help="only those with this in their name")
    parser.add_argument("--synthetic", type=float, default=0.0, help="in place of recorded predictions, ones that err so much")
    return parser.parse_args()


def replay(pool: Any, path: Path, goal: str, method: str, arguments: argparse.Namespace) -> tuple[float, int]:
    """Median trials over the seeds, and how many never came close."""
    count = partial(count_trials, path, goal, method, synthetic=arguments.synthetic)
    found = list(pool.map(count, range(arguments.seeds)))
    return statistics.median(trials for trials, _ in found), sum(not reached for _, reached in found)


def print_row(row: tuple[Grid, str, dict[str, tuple[float, int]]], methods: Sequence[str], *, head: bool) -> None:
    grid, goal, cells = row
    if head:
        print(f"{'grid':22} {'goal':8} {'points':>6} {'close':>5} " + " ".join(f"{m:>23}" for m in methods))
    close = len(Truth(grid).find_close(goal))
    shown = (f"{median:g}" + (f" ({missed} missed)" if missed else "") for median, missed in (cells[m] for m in methods))
    print(f"{grid.name:22} {goal:8} {len(grid.points):6} {close:5} " + " ".join(f"{cell:>23}" for cell in shown), flush=True)


def print_summary(rows: Sequence[tuple[Grid, str, dict[str, tuple[float, int]]]], methods: Sequence[str]) -> None:
    if "random" not in methods:
        return
    hard = [cells for grid, goal, cells in rows if grid.baseline not in Truth(grid).find_close(goal)]
    ratios = {m: [cells[m][0] / cells["random"][0] for cells in hard] for m in methods}
    print(f"{len(hard)} of {len(rows)} rows count below: in the others the default is close already.")
    for title, choose in (("median against random", statistics.median), ("worst against random", max)):
        print(f"{title:44} " + " ".join(f"{choose(ratios[m]):23.2f}" for m in methods))
    if not importlib.util.find_spec("torch"):
        print("Optuna's GP sampler needs torch, which is not installed here.")
    if not any(point.predicted for grid, _, _ in rows for point in grid.points):
        print("These grids have no predictions: physics ran without any.")


if __name__ == "__main__":
    main()
