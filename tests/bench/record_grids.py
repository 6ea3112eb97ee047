"""Records full grids, for tests/bench/replay.py: every point of a space, measured by the same child that a tune uses.

One file a model, with the raw samples of each point; the three goals of a replay are drawn from the same samples. A grid that is
cut short by --seconds goes on where it was when the command is given again. Run it on a quiet machine:

    python -m tests.bench.record_grids --demo-formats Q8_0,Q4_0,Q4_1 --gemma --seconds 280
    python -m tests.bench.record_grids --predict --demo-formats Q8_0,Q4_0,Q4_1 --gemma

The second puts the predictions of this machine's calibration beside the figures; it measures nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.grid_against_tune import gather_models, tell
from tests.bench.grids import FOLDER, Grid, Point, read_grid, write_grid
from tuner.hardware import profile_machine
from tuner.measure.record import Outcome, Plan
from tuner.measure.stop import Stop
from tuner.runconfig import RunConfig
from tuner.session.checking import Checked, check_tune
from tuner.session.request import TuneRequest
from tuner.session.tuning import form_space, open_measurer
from tuner.space import SearchSpace
from tuner.study.foresight import make_predict

WORKLOAD = {"name": "replay", "prompt_tokens": 64, "output_tokens": 12, "depth_tokens": 512}
SPACES = {
    "cache": {
        "threads": "auto",
        "threads_batch": "auto",
        "ubatch_size": [16, 32, 512],
        "flash_attn": "auto",
        "cache_type_k": ["f16", "q8_0", "q4_0"],
        "cache_type_v": ["f16", "q8_0"],
    },
    "batches": {
        "threads": "auto",
        "threads_batch": "auto",
        "batch_size": [32, 2048],
        "ubatch_size": [16, 32, 512],
        "flash_attn": "auto",
        "cache_type_k": ["f16", "q8_0"],
        "cache_type_v": ["f16", "q8_0"],
    },
}
"""What is worth searching on a processor with a history in the cache; JSON is YAML too."""


def main() -> None:
    arguments = read_arguments()
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="rooftune-grids-"))
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.seconds
    for name, path in gather_models(arguments, folder).items():
        target = Path(arguments.out) / f"{name.replace(' ', '_')}.json"
        checked, space = form(path, folder, arguments.space)
        if arguments.predict:
            predict_grid(target, checked, space, name)
        else:
            record_grid(target, checked, space, name, deadline, arguments)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="GGUF files")
    parser.add_argument("--demo-formats", default="", help="formats to make of the demo model, comma-separated")
    parser.add_argument("--gemma", action="store_true", help="Gemma 3 270M from its package too")
    parser.add_argument("--space", default="cache", choices=sorted(SPACES))
    parser.add_argument("--samples", type=int, default=2, help="turns for each point")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long; the same command goes on")
    parser.add_argument("--predict", action="store_true", help="put predictions beside the figures")
    parser.add_argument("--folder", default="", help="where made formats go")
    parser.add_argument("--out", default=str(FOLDER))
    return parser.parse_args()


def form(path: Path, folder: Path, space: str) -> tuple[Checked, SearchSpace]:
    """The request and its space for one file."""
    files = {"workload": WORKLOAD, "space": {"name": space, "dimensions": SPACES[space]}}
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(json.dumps(content))
    request = TuneRequest(
        models=(str(path),), workload=str(folder / "workload.yaml"), space=str(folder / "space.yaml"), storage="memory://"
    )
    checked = check_tune(request)
    return checked, form_space(checked, profile_machine())


def record_grid(
    target: Path, checked: Checked, space: SearchSpace, name: str, deadline: float, arguments: argparse.Namespace
) -> None:
    """Measure what the file does not have yet, in an order of chance."""
    earlier = read_grid(target) if target.exists() else None
    known = earlier.points if earlier else ()
    missing = [point for point in space.points() if hide(point, name) not in {each.config for each in known}]
    random.Random(0).shuffle(missing)
    plan = Plan(samples=arguments.samples, prefill=True, decode_tokens=checked.workload.output_tokens)
    points = list(known)
    machine = profile_machine()
    with open_measurer("llama-cpp-python", machine, stop=Stop()) as measurer:
        runtime = measurer.describe_runtime()
        for config in missing:
            if time.monotonic() > deadline:
                break
            points.append(note_point(hide(config, name), measurer.measure(config, checked.workload, plan)))
    grid = Grid(
        name=name,
        machine=machine.summary,
        runtime=f"{runtime.engine} {runtime.version}",
        workload=checked.workload,
        baseline=hide(space.baseline, name),
        domains={key: domain for key, domain in space.domains.items() if key != "model"},
        affects={key: tuple(sorted(space.affects[key])) for key in space.domains if key != "model"},
        facts=next(iter(space.facts.values())),
        predicted_by=earlier.predicted_by if earlier else "",
        points=tuple(points),
    )
    write_grid(target, grid)
    states = [point.state for point in points]
    tell(
        f"{name}: {len(points)} points, {states.count('complete')} complete, {len(missing) + len(known) - len(points)} missing"
    )


def predict_grid(target: Path, checked: Checked, space: SearchSpace, name: str) -> None:
    """Put the predictions of this machine's calibration into the file."""
    from tuner.calibration import find_ceilings

    grid, machine = read_grid(target), profile_machine()
    ceilings = find_ceilings(machine)
    predict = make_predict(checked.models, checked.workload, ceilings)
    told = {point.config: predict(point.config.replace(model=space.baseline.model)) for point in grid.points} if predict else {}
    points = tuple(msgspec.structs.replace(point, predicted=note_prediction(told.get(point.config))) for point in grid.points)
    origin = f"calibration of {ceilings.made}, llama.cpp {ceilings.llama_cpp}" if ceilings else ""
    write_grid(target, msgspec.structs.replace(grid, points=points, predicted_by=origin))
    tell(f"{name}: {sum(bool(point.predicted) for point in points)} of {len(points)} points predicted")


def note_prediction(prediction: Any) -> dict[str, tuple[float, float, float]]:
    if prediction is None:
        return {}
    found = {metric: prediction.estimate(metric) for metric in ("ttft", "tpot", "latency")}
    return {metric: (each.value, each.low, each.high) for metric, each in found.items() if each is not None}


def note_point(config: RunConfig, outcome: Outcome) -> Point:
    samples = outcome.measurement.samples if outcome.measurement else ()
    return Point(
        config=config,
        state=outcome.state,
        ttft_ms=tuple(round(sample.ttft_ms, 3) for sample in samples if sample.ttft_ms is not None),
        tpot_ms=tuple(round(sample.tpot_ms, 4) for sample in samples if sample.tpot_ms is not None),
        memory_bytes=outcome.measurement.memory_bytes if outcome.measurement else 0,
        elapsed_s=round(outcome.elapsed_s, 3),
    )


def hide(config: RunConfig, name: str) -> RunConfig:
    """The point without the place of its file."""
    return config.replace(model=name)


if __name__ == "__main__":
    main()
