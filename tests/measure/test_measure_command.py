"""What `rooftune measure` shows: figures with unit, spread and depth, and raw samples on request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from tests.builders.measurements import measured
from tuner.cli.commands.measure import draw_figures, draw_samples
from tuner.workload import PRESETS


def render(table: object) -> str:
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_every_figure_says_its_depth_and_unit() -> None:
    """Decode happens behind the history and the prompt."""
    text = render(draw_figures(measured(ttft_ms=250.0, tpot_ms=12.5, workload=PRESETS["chat"])))
    assert "TTFT, 512 tokens @ depth 2048" in text
    assert "TPOT, 256 tokens @ depth 2560" in text
    assert "250 ms" in text
    assert "12.5 ms" in text
    assert "200 MiB" in text


def test_what_was_not_measured_is_not_available() -> None:
    """Never 0."""
    text = render(draw_figures(measured(tpot_ms=None)))
    latency = next(line for line in text.splitlines() if "latency of" in line)
    assert "n/a" in latency


def test_samples_that_did_not_count_say_why() -> None:
    """All turns are listed, the disturbed ones with their reason."""
    found = measured(samples=2)
    spoiled = msgspec.structs.replace(found.samples[0], disturbed="the machine was swapping (99 pages)", others_cores=None)
    text = render(draw_samples(msgspec.structs.replace(found, discarded=(spoiled,))))
    assert text.count("100 ms") == 3
    assert "the machine was swapping (99 pages)" in text
    assert "n/a" in text


def test_the_parent_never_loads_native_code() -> None:
    """Opening a measurer, and even using it, imports neither llama_cpp nor numpy here."""
    code = (
        "import sys\n"
        "from tuner.measure.runner import ChildMeasurer\n"
        "ChildMeasurer('llama-cpp-python').close()\n"
        "print(sorted({'llama_cpp', 'numpy', 'optuna', 'textual'} & set(sys.modules)))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, timeout=60)
    assert done.stdout == "[]\n"
