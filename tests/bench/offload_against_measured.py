"""How far are predictions off where layers lie on an RPC server?

SmolLM2 135M with none, some and all of its layers in a second process of this machine, measured by the same child that a tune
uses, beside what the calibrations of both predict (they are made first where there are none). Run it on a quiet machine:

    python -m tests.bench.offload_against_measured --folder ~/formats --out offload.txt
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
from tests.builders.rpc import serve_rpc
from tuner.calibration import calibrate, calibrate_server, find_ceilings
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.record import Plan
from tuner.measure.runner import ChildMeasurer
from tuner.measure.validity import ANYTHING
from tuner.model import read_model
from tuner.roofline.ceilings import Ceilings, join_ceilings
from tuner.roofline.prediction import Predictor
from tuner.runconfig import RunConfig
from tuner.workload import Workload

LAYERS = (0, 1, 10, 20, 31)
TURN = Workload(name="turn", prompt_tokens=256, output_tokens=32)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One number of layers, both ways, ms."""

    family: str
    form: str
    layers: int
    ttft: tuple[float, float]
    """Predicted, measured."""
    tpot: tuple[float, float]
    """Predicted, measured."""


def main() -> None:
    arguments = read_arguments()
    machine = profile_machine()
    host = find_ceilings(machine) or calibrate(machine, tell=tell)
    with tempfile.TemporaryDirectory() as scratch, serve_rpc() as endpoint:
        remote = calibrate_server(machine, endpoint, tell=tell, folder=Path(scratch))
        tell(f"the server took {remote.elapsed_s:.0f} s; {remote.links}; {remote.doubts}")
        rows = []
        for row in measure_all(arguments, join_ceilings(host, (remote,)), machine, endpoint):
            rows.append(row)
            print(write_row(row), flush=True)
    summary = summarise(rows)
    print(summary)
    if arguments.out:
        Path(arguments.out).write_text("\n".join([host.summary, *map(write_row, rows), summary]) + "\n")


def tell(text: str) -> None:
    print(text, file=sys.stderr)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="Q8_0")
    parser.add_argument("--folder", default="", help="where the formats are made and kept")
    parser.add_argument("--layers", default=",".join(map(str, LAYERS)))
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--out", default="", help="file for the table")
    return parser.parse_args()


def measure_all(arguments: argparse.Namespace, ceilings: Ceilings, machine: HardwareProfile, endpoint: str) -> Iterator[Row]:
    """One thread on each side: the two take turns, and never share a core."""
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="rooftune-formats-"))
    predictor, plan = Predictor(ceilings), Plan(samples=arguments.samples, decode_tokens=TURN.output_tokens)
    cores = float(machine.limits.usable_threads)
    with ChildMeasurer("llama-cpp-python", usable_cores=cores, rpc_servers=(endpoint,), tolerance=ANYTHING) as measurer:
        for family, form, path in list_models(arguments, folder):
            spec = read_model(path)
            for layers in map(int, arguments.layers.split(",")):
                config = RunConfig(
                    model=str(path), n_gpu_layers=layers, ctx_size=1024, threads=1, threads_batch=1, flash_attn="on"
                )
                found = measurer.measure(config, TURN, plan).measurement
                if found is None or found.ttft_ms is None or found.tpot_ms is None:
                    raise SystemExit(f"{family} {form} with {layers} layers there does not run")
                told = predictor.predict(spec, config, TURN)
                yield Row(
                    family=family,
                    form=form,
                    layers=layers,
                    ttft=(told.ttft.value, found.ttft_ms),
                    tpot=(told.tpot.value, found.tpot_ms),
                )


def write_row(row: Row) -> str:
    return (
        f"{row.family:13} {row.form:7} {row.layers:3} layers there  "
        f"TTFT {row.ttft[0]:7.1f} predicted {row.ttft[1]:7.1f} measured {row.ttft[0] / row.ttft[1] - 1:+6.1%}  "
        f"TPOT {row.tpot[0]:6.2f} predicted {row.tpot[1]:6.2f} measured {row.tpot[0] / row.tpot[1] - 1:+6.1%}"
    )


def summarise(rows: Sequence[Row]) -> str:
    ttft = statistics.median(abs(row.ttft[0] / row.ttft[1] - 1) for row in rows)
    tpot = statistics.median(abs(row.tpot[0] / row.tpot[1] - 1) for row in rows)
    return f"median error of TTFT {ttft:.1%}, of TPOT {tpot:.1%}"


if __name__ == "__main__":
    main()
