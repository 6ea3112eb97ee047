"""Fits what llama.cpp makes of a data sheet to published results, tests it on devices left out, and writes the coefficients.

    python -m tests.bench.fit_sheets --data FOLDER [--write] [--fixed-widths]

Under a minute on one core with OMP_NUM_THREADS=1, several with threads: the matrices are too small to share out.

FOLDER holds llama_bench.csv, parallel.csv, depth.csv and offload.csv. Fitted are llama_bench.csv, depth.csv and, of parallel.csv,
the rows of other devices than the one that fills it, with one token or 64 and more at once (between, GPUs switch kernels, which
a data sheet says nothing about). Tested are all rows of llama_bench.csv and depth.csv, each with coefficients, prior widths and
intervals that never saw its device; then partial offload, which is not fitted at all.

What is doubtful, and why, as of the coefficients beside this script:

- Prefill of dense models is off by 21 % over rows. Two thirds of these rows are one device (Strix Halo, gfx1151), and most of
  them are builds of mid-2025 whose speed hangs on software that no sheet tells of. Nearly half of all rows leave prefill to
  AMD's libraries, which reach a tenth (rocBLAS) or two fifths (hipBLASLt) of the sheet's rate there; public benchmarks of the
  libraries stand in for it (`LIBRARY_TFLOPS`). Which of them to go by, which builds lack rocWMMA whatever their label says, and
  what the old attention kernel costs was settled after the error of that device had been seen, though not by trying values;
  without these three choices it is 25.5 % (widths fixed). Beside them, Vulkan became twice as fast from build 5863 to 8038, and
  amdvlk is three times slower than RADV.
- DGX Spark is predicted 40 % too fast in prefill. Public multiplications in BF16 reach anything from 60 to 97 of its 125 TFLOPS,
  so that no figure of theirs is used.
- Intervals hold 79 % of prefill rows. That other kinds of GPU count in them (`RELATIVES`) was settled after their coverage had
  been seen.
- Partial offload is off by 21 %, by 17 % without two sets that no present llama.cpp would give (`sheets/offload`), which are
  still off by factors. That copies to a device overlap was settled after two slow links had been seen to be faster than
  predicted. What remains is decode under WSL, and Mixtral by a build of March 2024, predicted a fifth too slow.
- The shapes of the newest models are guessed (`sheets/shapes`), and so are some builds (`sheets/rows`).
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml

from tests.bench.sheets.evaluation import CANDIDATES, Study, choose_widths, covered, find_spread, fit, leave_out, open_study
from tests.bench.sheets.fitting import Array
from tests.bench.sheets.offload import show_offload
from tests.bench.sheets.rows import Row, read_rows
from tests.bench.sheets.tables import show_devices, show_skipped, summarise

OUTPUT = Path(__file__).parents[2] / "tuner" / "roofline" / "coefficients.yaml"
PAST = frozenset({"library", "loop", "attend rows", "attend tile"})
"""Coefficients of builds that nobody would build today."""
FILLS_PARALLEL = "strix-halo"
TABLES = ("llama_bench", "parallel", "depth")
CLOSING = "Widths were chosen {how}; spreads and intervals come from residuals of devices left out, other than the one tested."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="replace the shipped coefficients")
    parser.add_argument(
        "--fixed-widths", action="store_true", help="choose widths once, on all devices: quicker and less honest"
    )
    options = parser.parse_args()
    everything = read_tables(options.data)
    study = open_study([row for row in everything if is_fitted(row)])
    print(f"{study.training.sum()} of {len(study.rows)} rows fitted, {len(set(study.devices))} devices")
    held = leave_out(study, nested=not options.fixed_widths, report=print)
    error = held.predicted - study.problem.target
    show_dense(study, error)
    show_others(study, error)
    everyone = np.ones(len(study.rows), bool)
    best = choose_widths(study, everyone, [fit(study, everyone, each) for each in CANDIDATES])
    theta = fit(study, everyone, CANDIDATES[best])
    dense = select(study.rows, lambda row: not row.moe)
    spread = find_spread([study.rows[i] for i in dense], error[dense])
    fitted = {name: float(value) for name, value in zip(study.problem.names, theta, strict=True)}
    show_offload(options.data, fitted)
    print(f"\nall devices choose widths {best}; spread { ({name: round(value, 3) for name, value in spread.items()}) }")
    print(CLOSING.format(how="once, on all devices" if options.fixed_widths else "for each device left out, on the others"))
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


def select(rows: list[Row], wanted: Callable[[Row], bool]) -> list[int]:
    return [i for i, row in enumerate(rows) if wanted(row)]


def show_dense(study: Study, error: Array) -> None:
    chosen = select(study.rows, lambda row: row.table == "llama_bench" and not row.moe)
    rows, mine, inside = judge(study, error, chosen)
    show_devices(rows, mine, inside)
    summarise("llama_bench.csv, dense, one device left out:", rows, mine, inside)
    sound = [i for i, row in enumerate(rows) if not any(work.library for work in row.work if work.converted)]
    title = "the same without builds that leave gfx1151's prefill to AMD's libraries of 2025:"
    summarise(title, [rows[i] for i in sound], mine[sound], inside[sound])


def show_others(study: Study, error: Array) -> None:
    """Mixtures of experts and deep histories, with their device left out."""
    for title, table, moe in (
        ("mixtures of experts (llama_bench.csv)", "llama_bench", True),
        ("deep histories (depth.csv), dense", "depth", False),
        ("deep histories (depth.csv), mixtures of experts", "depth", True),
    ):
        chosen = select(study.rows, lambda row, table=table, moe=moe: row.table == table and row.moe == moe)
        summarise(f"{title}, one device left out:", *judge(study, error, chosen))


def judge(study: Study, error: Array, chosen: list[int]) -> tuple[list[Row], Array, Array]:
    """Those rows, their errors, and whether the interval that other devices' dense rows give holds them."""
    dense = select(study.rows, lambda row: not row.moe)
    rows = [study.rows[i] for i in chosen]
    return rows, error[chosen], covered(rows, error[chosen], [study.rows[i] for i in dense], error[dense])


def write(study: Study, fitted: dict[str, float], spread: dict[str, float]) -> None:
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    document = {
        "schema": "rooftune-coefficients/1",
        "provenance": (
            f"Fitted by tests/bench/fit_sheets.py on {today} to {int(study.training.sum())} published results of "
            f"{len(set(study.devices))} devices (llama-bench tables); spreads from devices left out."
        ),
        "spread": {name: round(value, 3) for name, value in spread.items()},
        "logarithms": {
            name: round(value, 3) for name, value in sorted(fitted.items()) if abs(value) >= 0.0005 and name not in PAST
        },
    }
    OUTPUT.write_text(yaml.safe_dump(document, sort_keys=False, width=120), encoding="utf-8")
    print(f"\nwritten: {OUTPUT.name}")


if __name__ == "__main__":
    main()
