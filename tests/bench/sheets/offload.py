"""Partial offload (offload.csv): weights that stay in main memory are read by the CPU in decode, and cross the link in prefill.

From 32 tokens on the GPU computes host layers too: each micro-batch copies their weights over the link, and after them K and V
of these layers, which lie in main memory as well (`ggml_backend_sched_compute_splits`; no computing meanwhile). The weights are
mapped and thus pageable, so that the driver copies them twice (`link_seconds`). Experts that a micro-batch does not choose stay.

Only rows whose devices have data sheets; the host's memory is mostly not stated, and is then taken to be that of a desktop with
two channels of DDR5-5200, which the table marks. Marked too are two sets that no present llama.cpp would give: those of pull
request 6083 that show what it replaced (matrices were offloaded one by one, with all activations going back and forth), and
those of issue 18725, a fault of one model's kernels with Vulkan above 512 tokens at once, since repaired.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.bench.sheets.devices import device_sheet, find_backend
from tests.bench.sheets.fitting import row_seconds
from tests.bench.sheets.mixes import BITS, find_mix
from tests.bench.sheets.rows import cell_bytes, number, read_row
from tests.bench.sheets.shapes import Shape, find_shape
from tuner.roofline.coefficients import Coefficients, layer_seconds, multiply_seconds, read_seconds
from tuner.roofline.sheet import Sheet
from tuner.roofline.sheet_ceilings import LINK_LATENCY_S, link_seconds
from tuner.roofline.work import experts_touched

MACHINES = (
    ("RTX 3090 Ti", "rtx-3090-ti", None, 31.5),
    ("TB3 eGPU", "rtx-3090", None, 3.94),
    ("RTX 4070", "rtx-4070", None, 31.5),
    ("RTX A1000", "rtx-a1000-8gb", "core-i9-9900t", 7.88),
    ("8060S", "strix-halo", "strix-halo-cpu", None),
)
"""(part of the device's text, sheet, host's sheet, GB/s of the link; None: not stated, or shared memory). The RTX A1000 has eight
lanes, and the Core i9-9900T PCIe 3.0."""

USUAL_HOST = "ryzen-9-7950x"
BUILDS = {"#6083": "(2437)"}
"""Builds of rows that do not state them, by their source."""
FAULTS = (("earlier commit", "replaced"), ("ubatch regression", "fault"))
"""(part of the note, mark)."""


class Case(NamedTuple):
    text: str
    measured: float
    predicted: float
    mark: str
    """Why it is doubtful; "" where it is not."""

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)


def show_offload(folder: Path, fitted: dict[str, float]) -> None:
    """Rows, predicted and measured tok/s, and the median error."""
    known = Coefficients(provenance="", logarithms=fitted, spread={})
    with (folder / "offload.csv").open(newline="") as file:
        entries = list(csv.DictReader(file))
    cases = [case for entry in entries if (case := predict_case(entry, known))]
    print(f"\noffload.csv: {len(cases)} of {len(entries)} rows, the others without a data sheet, an exact split or lengths")
    for case in cases:
        mark = f"  ({case.mark})" if case.mark else ""
        print(f"  {case.text:<66}{case.measured:>9.1f}{case.predicted:>9.1f}{case.error:>8.0%}{mark}")
    sound = [case.error for case in cases if case.mark not in {mark for _, mark in FAULTS}]
    print(f"  median error {np.median([case.error for case in cases]):.1%}, without the faults {np.median(sound):.1%}")


def predict_case(entry: dict[str, str], fitted: Coefficients) -> Case | None:
    found = next((each for each in MACHINES if each[0] in entry["device"]), None)
    shape, backend, split = find_shape(entry["model"]), find_backend(entry["backend"]), number(entry["n_gpu_layers"], None)
    size, mix = number(entry["file_size_GiB"]), find_mix(entry["quant"])
    if found is None or shape is None or backend is None or split is None or size is None or mix is None:
        return None
    sheet, host = device_sheet(found[1], backend), device_sheet(found[2] or USUAL_HOST, "cpu")
    prompt = number(entry["n_prompt"], 0) or 0
    if prompt:
        seconds = prefill_seconds(entry, shape, fitted, sheet=sheet, link=found[3], split=split)
    else:
        seconds = decode_seconds(entry, shape, mix, fitted, sheet=sheet, host=host, split=split)
    mark = next((mark for part, mark in FAULTS if part in entry["note"]), "")
    text = f"{entry['device'][:30]}, {entry['model'][:20]} {entry['quant']}, {'prefill' if prompt else 'decode'}, {split:.0f} layers"
    assumed = "host assumed" if not prompt and found[2] is None else ""
    return Case(text, float(entry["tokens_per_s"]), (prompt or 1) / seconds, mark or assumed)


def host_share(entry: dict[str, str], shape: Shape, split: float) -> float:
    """Of layers in main memory; with `--n-cpu-moe` all their experts."""
    return 1.0 if entry["n_cpu_moe"] == "all" or split >= shape.layers else 1 - split / shape.layers


def prefill_seconds(
    entry: dict[str, str], shape: Shape, fitted: Coefficients, *, sheet: Sheet, link: float | None, split: float
) -> float:
    """Everything computed by the GPU, and what must get there."""
    build = next((build for part, build in BUILDS.items() if part in entry["source"]), entry["build"])
    filled = entry | {"build": build, "n_gen": "0", "depth": entry["depth"] or "0"}
    row = read_row(filled, "offload", offloaded_to=sheet)
    seconds = row_seconds(row, fitted)
    if link is None:
        return seconds
    share, by_experts = host_share(entry, shape, split), bool(entry["n_cpu_moe"])
    size = (number(entry["file_size_GiB"]) or 0) * 2**30
    experts = size * shape.routed / shape.parameters
    touched = experts_touched(shape.experts, shape.used, row.tokens) / shape.experts if shape.experts else 0.0
    weights = experts * touched + (0 if by_experts else size - experts)
    # new K and V go down as float32, all in use come up as float16
    cells = 0 if by_experts else shape.layers * cell_bytes(shape) * (2 * row.tokens + (row.length + row.tokens) / 2)
    return seconds + row.steps * share * (weights + cells) * link_seconds(link)


def decode_seconds(
    entry: dict[str, str], shape: Shape, mix: dict[str, float], fitted: Coefficients, *, sheet: Sheet, host: Sheet, split: float
) -> float:
    """One token, with that share of the weights read by the host's CPU, s."""
    whole = (number(entry["file_size_GiB"]) or 0) * 2**30
    experts = whole * shape.routed / shape.parameters * shape.used / max(1, shape.experts)
    dense = whole * (1 - shape.routed / shape.parameters)
    share = host_share(entry, shape, split)
    on_host = share * (experts if entry["n_cpu_moe"] else experts + dense)
    # with experts left behind, the hidden state goes there and back in each layer
    trips = 2 * shape.layers * share if entry["n_cpu_moe"] else 2
    seconds = shape.layers * layer_seconds(sheet, fitted) + trips * LINK_LATENCY_S
    for form, part in mix.items():
        seconds += (experts + dense - on_host) * part * read_seconds(sheet, form, fitted)
        operations = 2 * on_host * part * 8 / BITS[form]
        seconds += on_host * part * read_seconds(host, form, fitted) + operations * multiply_seconds(host, form, fitted)
    return seconds
