"""How many trials until one lies within 3 % of the best? A replay over recorded grids, on a machine that exists on paper only.

Every strategy runs as `rooftune tune` runs it, over the same points, with the noise that was measured; only the figures come from
tests/data/grids. Physics runs with the predictions recorded there, with these shuffled among the points, and without any.
A cell is the median over seeds; where a search ended without such a point, it counts with the size of the grid, and the cell
has a mark. Needs no model and no quiet machine; Optuna's GP sampler needs torch and is left out without it:

    python -m tests.bench.replay --seeds 30 --keep results.jsonl

With --keep a replay that was stopped goes on where it was, and methods may be run one after another (--methods GP) for one table.
--elsewhere, --noise and --synthetic change the grids, to see whether the search only suits these; each such change wants a file
of its own to keep.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import random
import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
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

    def __init__(self, grid: Grid, baseline: RunConfig) -> None:
        self._grid = grid
        self._known = {point.config for point in grid.points}
        self.domains, self.baseline = grid.domains, baseline

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

    def __init__(self, truth: Truth, seed: int, scale: float) -> None:
        super().__init__(seed=seed, respond=lambda config, _: None if config in truth.points else failing("crash"))
        self._truth = truth
        self._noises = {part: [scale * each for each in truth.list_noise(part)] for part in ("ttft", "tpot")}

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


class Change(NamedTuple):
    """How the grids differ from what was recorded."""

    synthetic: float = 0.0
    """Error of predictions that are invented, in log units; 0 takes the recorded ones."""
    elsewhere: bool = False
    """The search starts at another point, by chance, in place of the default."""
    noise: float = 1.0
    """Factor of the recorded noise."""


def count_trials(path: Path, goal: str, method: str, seed: int, *, change: Change) -> tuple[float, bool]:
    """Points run until one is close, and whether one was."""
    grid = read_grid(path)
    truth = Truth(grid)
    start = random.Random(seed).choice(list(truth.points)) if change.elsewhere else grid.baseline
    watch = Watch(truth.find_close(goal))
    request = StudyRequest(
        workload=grid.workload,
        goals=(goal,),  # type: ignore[arg-type]
        space=RecordedSpace(grid, start),  # type: ignore[arg-type]
        facts=FACTS,
        storage="memory://",
        budget_s=1e9,
        seed=seed,
        allow_quality_loss=True,
        strategy="random" if method == "random" else "physics" if method.startswith("physics") else "tpe",
        predict=find_predictor(truth, method, seed, change.synthetic),
    )
    measurer = ReplayMeasurer(truth, seed, change.noise)
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


class Results:
    """Trials and whether a close point was reached, by grid, goal, method and seed; kept in a file where one is given."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._found: dict[tuple[str, str, str, int], tuple[float, bool]] = {}
        if self._path and self._path.exists():
            for line in self._path.read_text().splitlines():
                *key, trials, reached = json.loads(line)
                self._found[tuple(key)] = (trials, reached)

    def get(self, grid: str, goal: str, method: str, seeds: int) -> list[tuple[float, bool]]:
        """Of the seeds that were run."""
        found = (self._found.get((grid, goal, method, seed)) for seed in range(seeds))
        return [each for each in found if each]

    def knows(self, key: tuple[str, str, str, int]) -> bool:
        return key in self._found

    def add(self, key: tuple[str, str, str, int], trials: float, reached: bool) -> None:
        self._found[key] = (trials, reached)
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps([*key, trials, reached]) + "\n")


def main() -> None:
    arguments = read_arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    results = Results(arguments.keep)
    grids = {path: read_grid(path) for path in sorted(Path(arguments.grids).glob("*.json"))}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for path, grid in grids.items():
            for goal in GOALS:
                for method in list_methods(arguments.methods):
                    replay(pool, path, grid.name, goal, method, arguments, results)
    rows = [
        (grid, goal, {m: cell for m in METHODS if (cell := results.get(grid.name, goal, m, arguments.seeds))})
        for grid in grids.values()
        for goal in GOALS
    ]
    print_table(rows, counts_all=arguments.elsewhere)


def list_methods(part: str) -> list[str]:
    """Those asked for; Optuna's GP sampler only where torch is there."""
    return [m for m in METHODS if part in m and (not m.startswith("GP") or importlib.util.find_spec("torch"))]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--grids", default=str(FOLDER))
    parser.add_argument("--methods", default="", help="run only those with this in their name; the table has all that are kept")
    parser.add_argument("--keep", default="", help="file of results that are kept from one call to the next")
    parser.add_argument("--synthetic", type=float, default=0.0, help="in place of recorded predictions, ones that err so much")
    parser.add_argument("--elsewhere", action="store_true", help="start at a point of chance in place of the default")
    parser.add_argument("--noise", type=float, default=1.0, help="times the recorded noise")
    return parser.parse_args()


def replay(pool: Any, path: Path, grid: str, goal: str, method: str, arguments: argparse.Namespace, results: Results) -> None:
    """Run the seeds that are missing."""
    missing = [seed for seed in range(arguments.seeds) if not results.knows((grid, goal, method, seed))]
    change = Change(arguments.synthetic, arguments.elsewhere, arguments.noise)
    count = partial(count_trials, path, goal, method, change=change)
    for seed, (trials, reached) in zip(missing, pool.map(count, missing), strict=True):
        results.add((grid, goal, method, seed), trials, reached)


Row = tuple[Grid, str, dict[str, list[tuple[float, bool]]]]


def print_table(rows: Sequence[Row], *, counts_all: bool) -> None:
    methods = [m for m in METHODS if all(m in cells for _, _, cells in rows)]
    print(f"{'grid':22} {'goal':8} {'points':>6} {'close':>5} " + " ".join(f"{m:>23}" for m in methods))
    for grid, goal, cells in rows:
        close = len(Truth(grid).find_close(goal))
        shown = " ".join(f"{tell_cell(cells[m]):>23}" for m in methods)
        print(f"{grid.name:22} {goal:8} {len(grid.points):6} {close:5} {shown}")
    fewest = " ".join(f"{min(len(cells[m]) for _, _, cells in rows):23}" for m in methods)
    print(f"{'seeds, at least':44} {fewest}")
    print_summary(rows, methods, counts_all=counts_all)


def tell_cell(found: Sequence[tuple[float, bool]]) -> str:
    missed = sum(not reached for _, reached in found)
    return f"{statistics.median(trials for trials, _ in found):g}" + (f" ({missed} missed)" if missed else "")


def print_summary(rows: Sequence[Row], methods: Sequence[str], *, counts_all: bool) -> None:
    if "random" not in methods:
        return
    hard = [cells for grid, goal, cells in rows if counts_all or grid.baseline not in Truth(grid).find_close(goal)]
    print(f"{len(hard)} of {len(rows)} rows count below: in the others the default is close already.")
    for name, middle in (("medians", statistics.median), ("means", statistics.fmean)):
        ratios = {m: [compare(cells[m], cells["random"], middle) for cells in hard] for m in methods}
        for title, choose in (("median", statistics.median), ("worst", max)):
            told = " ".join(f"{choose(ratios[m]):23.2f}" for m in methods)
            print(f"{f'{name} over seeds against random, {title}':44} {told}")
    if not any(point.predicted for grid, _, _ in rows for point in grid.points):
        print("These grids have no predictions: physics ran without any.")


def compare(found: Sequence[tuple[float, bool]], other: Sequence[tuple[float, bool]], middle: Callable[..., float]) -> float:
    return middle([trials for trials, _ in found]) / middle([trials for trials, _ in other])


if __name__ == "__main__":
    main()
