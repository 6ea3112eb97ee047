"""Fits what llama.cpp makes of a data sheet to published results, tests it on devices left out, and writes the coefficients.

    python -m tests.bench.fit_sheets --data FOLDER [--write] [--fixed-widths]

FOLDER holds llama_bench.csv, parallel.csv, depth.csv and offload.csv. Fitted are dense models of llama_bench.csv, of depth.csv
and, of parallel.csv, the rows of other devices than the one that fills it, with one token or 64 and more at once (between, GPUs
switch kernels, which a data sheet says nothing about). Tested are all dense rows of llama_bench.csv, each with coefficients that
never saw its device; then mixtures of experts, deep histories and partial offload, none of them fitted as such.
"""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path

import numpy as np
import yaml

from tests.bench.sheets.evaluation import CANDIDATES, Study, choose_widths, covered, find_spread, fit, leave_out, open_study
from tests.bench.sheets.fitting import Array, build_problem
from tests.bench.sheets.offload import show_offload
from tests.bench.sheets.rows import Row, read_rows
from tests.bench.sheets.tables import show_devices, show_skipped, summarise

OUTPUT = Path(__file__).parents[2] / "tuner" / "roofline" / "coefficients.yaml"
FILLS_PARALLEL = "strix-halo"
TABLES = ("llama_bench", "parallel", "depth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="replace the shipped coefficients")
    parser.add_argument(
        "--fixed-widths", action="store_true", help="choose widths once, on all devices: quicker and less honest"
    )
    options = parser.parse_args()
    everything = read_tables(options.data)
    study = open_study([row for row in everything if not row.moe and is_fitted(row)])
    print(f"{study.training.sum()} of {len(study.rows)} dense rows fitted, {len(set(study.devices))} devices")
    held = leave_out(study, nested=not options.fixed_widths, report=print)
    error = held.predicted - study.problem.target
    show_dense(study, error)
    everyone = np.ones(len(study.rows), bool)
    best = choose_widths(study, everyone, [fit(study, everyone, each) for each in CANDIDATES])
    theta = fit(study, everyone, CANDIDATES[best])
    tested = select(study.rows, "llama_bench")
    spread = find_spread([study.rows[i] for i in tested], error[tested])
    print(f"\nall devices choose widths {best}; spread { ({name: round(value, 3) for name, value in spread.items()}) }")
    fitted = {name: float(value) for name, value in zip(study.problem.names, theta, strict=True)}
    show_others(everything, study, fitted, spread, CANDIDATES[best])
    show_offload(options.data, fitted)
    if options.write:
        write(study, fitted, spread)


def read_tables(folder: Path) -> list[Row]:
    found: list[Row] = []
    for table in TABLES:
        rows, skipped = read_rows(folder, table)
        show_skipped(table, len(rows), skipped)
        # depth.csv repeats llama_bench.csv where there is no depth
        found += [row for row in rows if table != "depth" or row.depth > 0]
    return found


def is_fitted(row: Row) -> bool:
    return row.table != "parallel" or (row.device != FILLS_PARALLEL and (row.tokens >= 64 or row.tokens == 1))


def select(rows: list[Row], table: str) -> list[int]:
    return [i for i, row in enumerate(rows) if row.table == table]


def show_dense(study: Study, error: Array) -> None:
    chosen = select(study.rows, "llama_bench")
    rows, mine = [study.rows[i] for i in chosen], error[chosen]
    inside = covered(rows, mine)
    show_devices(rows, mine, inside)
    summarise("llama_bench.csv, dense, one device left out:", rows, mine, inside)
    sound = [i for i, row in enumerate(rows) if row.settings not in {"hip", "rocwmma"}]
    title = "the same but for the builds without hipBLASLt, which their source calls a fault on that GPU:"
    summarise(title, [rows[i] for i in sound], mine[sound], inside[sound])


def show_others(
    everything: list[Row], study: Study, fitted: dict[str, float], spread: dict[str, float], widths: dict[str, float]
) -> None:
    """Rows of kinds that were not fitted, by all devices' coefficients and by those without their device."""
    groups = {
        "mixtures of experts (llama_bench.csv)": [row for row in everything if row.moe and row.table == "llama_bench"],
        "deep histories (depth.csv), dense": [row for row in everything if not row.moe and row.table == "depth"],
        "deep histories (depth.csv), mixtures of experts": [row for row in everything if row.moe and row.table == "depth"],
    }
    names = study.problem.names
    without = {
        device: fit(study, study.devices != device, widths)
        for device in sorted({row.device for rows in groups.values() for row in rows})
    }
    for title, rows in groups.items():
        problem = build_problem(rows, names)
        error = problem.predict(np.array([fitted[name] for name in names]))[0] - problem.target
        held = error.copy()
        for device, theta in without.items():
            mine = np.array([row.device == device for row in rows])
            held[mine] = problem.pick(mine).predict(theta)[0] - problem.target[mine]
        for how, values in (("all devices' coefficients", error), ("its device left out", held)):
            limits = np.array([1.2816 * spread[f"{row.phase} {'cpu' if row.sheet.kind == 'cpu' else 'gpu'}"] for row in rows])
            summarise(f"{title}, {how}:", rows, values, np.abs(values) <= limits)


def write(study: Study, fitted: dict[str, float], spread: dict[str, float]) -> None:
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    document = {
        "schema": "rooftune-coefficients/1",
        "provenance": (
            f"Fitted by tests/bench/fit_sheets.py on {today} to {int(study.training.sum())} published results of "
            f"{len(set(study.devices))} devices (llama-bench tables, dense models); spreads from devices left out."
        ),
        "spread": {name: round(value, 3) for name, value in spread.items()},
        "logarithms": {
            name: round(value, 3) for name, value in sorted(fitted.items()) if abs(value) >= 0.0005 and "without" not in name
        },
    }
    OUTPUT.write_text(yaml.safe_dump(document, sort_keys=False, width=120), encoding="utf-8")
    print(f"\nwritten: {OUTPUT.name}")


if __name__ == "__main__":
    main()
