"""How far off is the predicted throughput of several slots?

SmolLM2 135M and Gemma 3 270M decoding for 1 to 32 users at once, measured by the same child that a tune uses, beside what the
kept calibration of this machine predicts (it is made first where there is none). Run it on a quiet machine:

    python -m tests.bench.slots_against_measured --folder ~/formats --out slots.txt
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tests.bench.predict_against_measured import list_models
from tuner.calibration import calibrate, find_ceilings
from tuner.hardware import profile_machine
from tuner.measure.record import Plan
from tuner.measure.runner import ChildMeasurer
from tuner.model import read_model
from tuner.roofline.prediction import Predictor
from tuner.roofline.record import Estimate
from tuner.runconfig import RunConfig
from tuner.workload import Workload

SLOTS = (1, 2, 4, 8, 16, 32)
CONTEXT = 512
"""Cells of one slot."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model and number of slots, both ways."""

    family: str
    form: str
    slots: int
    state: str
    predicted: Estimate
    """Tokens per second over all slots."""
    measured: float
    """The same."""
    bound: str

    @property
    def error(self) -> float:
        return self.predicted.value / self.measured - 1

    @property
    def within(self) -> bool:
        return self.predicted.low <= self.measured <= self.predicted.high


def main() -> None:
    arguments = read_arguments()
    machine = profile_machine()
    ceilings = find_ceilings(machine) or calibrate(machine, tell=lambda text: print(text, file=sys.stderr))
    rows = []
    with ChildMeasurer("llama-cpp-python", usable_cores=float(machine.limits.usable_threads)) as measurer:
        for row in measure_all(arguments, Predictor(ceilings), measurer, machine.limits.usable_threads):
            rows.append(row)
            print(write_row(row), flush=True)
    summary = summarise(rows)
    print(summary)
    if arguments.out:
        lines = [f"{ceilings.summary}; calibrated {ceilings.made}", *map(write_row, rows), summary]
        Path(arguments.out).write_text("\n".join(lines) + "\n")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="Q4_0")
    parser.add_argument("--folder", default="", help="where the formats are made and kept")
    parser.add_argument("--slots", default=",".join(map(str, SLOTS)))
    parser.add_argument("--prompt", type=int, default=64, help="tokens in each slot before it decodes")
    parser.add_argument("--tokens", type=int, default=16, help="tokens that each slot writes")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--out", default="", help="file for the table")
    return parser.parse_args()


def measure_all(arguments: argparse.Namespace, predictor: Predictor, measurer: ChildMeasurer, threads: int) -> Iterator[Row]:
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="rooftune-formats-"))
    workload = Workload(name="slots", prompt_tokens=arguments.prompt, output_tokens=arguments.tokens)
    plan = Plan(samples=arguments.samples, prefill=False, decode_tokens=arguments.tokens)
    for family, form, path in list_models(arguments, folder):
        spec = read_model(path)
        for slots in map(int, arguments.slots.split(",")):
            config = RunConfig(
                model=str(path),
                n_gpu_layers=0,
                ctx_size=CONTEXT * slots,
                threads=threads,
                threads_batch=threads,
                parallel=slots,
            )
            outcome = measurer.measure(config, workload, plan)
            found = outcome.measurement
            if found is None or found.throughput_tps is None:
                raise SystemExit(f"{family} {form}, {slots} slots: {outcome.state}: {outcome.reason}")
            predicted = predictor.predict(spec, config, workload)
            yield Row(
                family=family,
                form=form,
                slots=slots,
                state=outcome.state,
                predicted=predicted.throughput,
                measured=found.throughput_tps,
                bound=predicted.decode.bound,
            )


def write_row(row: Row) -> str:
    told = row.predicted
    return (
        f"{row.family:13} {row.form:7} {row.slots:3} slots  {told.value:7.1f} tok/s predicted [{told.low:7.1f}, {told.high:7.1f}]"
        f" {row.measured:7.1f} measured {row.error:+6.1%}  {'within' if row.within else 'outside'}  {row.state}  {row.bound}"
    )


def summarise(rows: Sequence[Row]) -> str:
    errors = [abs(row.error) for row in rows]
    inside = sum(row.within for row in rows)
    return f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}; {inside} of {len(rows)} within the interval"


if __name__ == "__main__":
    main()
