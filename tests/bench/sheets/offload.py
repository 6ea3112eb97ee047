"""Partial offload (offload.csv): weights that stay in main memory are read by the CPU in decode, and cross the link in prefill.

Only rows whose devices have data sheets; the host's memory is mostly not stated, and is then taken to be that of a desktop with
two channels of DDR5-5200, which the table marks.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.bench.sheets.devices import device_sheet, find_backend
from tests.bench.sheets.mixes import BITS, find_mix, mean_bits
from tests.bench.sheets.rows import multiplied, number, seen_positions
from tests.bench.sheets.shapes import Shape, find_shape
from tuner.roofline.coefficients import Coefficients, attend_seconds, layer_seconds, multiply_seconds, read_seconds
from tuner.roofline.sheet import Sheet
from tuner.roofline.sheet_ceilings import LINK_EFFICIENCY

MACHINES = (
    ("RTX 3090 Ti", "rtx-3090-ti", None, 31.5),
    ("TB3 eGPU", "rtx-3090", None, 3.94),
    ("RTX 4070", "rtx-4070", None, 31.5),
    ("RTX A1000", "rtx-a1000-8gb", "core-i9-9900t", 15.8),
    ("8060S", "strix-halo", "strix-halo-cpu", None),
)
"""(part of the device's text, sheet, host's sheet, GB/s of the link; None: not stated, or shared memory)."""

USUAL_HOST = "ryzen-9-7950x"


class Case(NamedTuple):
    text: str
    measured: float
    predicted: float
    assumed: bool
    """The host's memory is not stated, and matters."""


def show_offload(folder: Path, fitted: dict[str, float]) -> None:
    """Rows, predicted and measured tok/s, and the median error."""
    known = Coefficients(provenance="", logarithms=fitted, spread={})
    with (folder / "offload.csv").open(newline="") as file:
        entries = list(csv.DictReader(file))
    cases = [case for entry in entries if (case := predict_case(entry, known))]
    print(f"\noffload.csv: {len(cases)} of {len(entries)} rows, the others without a data sheet, an exact split or lengths")
    for case in cases:
        error, mark = abs(case.predicted / case.measured - 1), "  (host assumed)" if case.assumed else ""
        print(f"  {case.text:<66}{case.measured:>9.1f}{case.predicted:>9.1f}{error:>8.0%}{mark}")
    print(f"  median error {np.median([abs(each.predicted / each.measured - 1) for each in cases]):.1%}")


def predict_case(entry: dict[str, str], fitted: Coefficients) -> Case | None:
    found = next((each for each in MACHINES if each[0] in entry["device"]), None)
    shape, mix, backend = find_shape(entry["model"]), find_mix(entry["quant"]), find_backend(entry["backend"])
    split, size, speed = number(entry["n_gpu_layers"], None), number(entry["file_size_GiB"]), float(entry["tokens_per_s"])
    if found is None or shape is None or mix is None or backend is None or size is None:
        return None
    by_experts = bool(entry["n_cpu_moe"])
    if split is None:
        return None
    sheet, host = device_sheet(found[1], backend), device_sheet(found[2] or USUAL_HOST, "cpu")
    prompt = number(entry["n_prompt"], 0) or 0
    kept = 0.94 if by_experts else max(0.0, 1 - split / shape.layers)
    whole = size * 2**30
    if prompt:
        batch = min(number(entry["n_ubatch"], 512) or 512, prompt)
        seconds = prefill_seconds(sheet, shape, mix, fitted, prompt=prompt, batch=batch)
        touched = whole * kept * (1.0 if shape.active is None else 1 - (1 - shape.active / shape.parameters) ** batch)
        if found[3]:
            seconds += math.ceil(prompt / batch) * touched / (found[3] * 1e9 * LINK_EFFICIENCY)
        predicted = prompt / seconds
    else:
        predicted = 1 / decode_seconds(sheet, host, shape, mix, fitted, whole=whole, kept=kept)
    text = f"{entry['device'][:30]}, {entry['model'][:20]} {entry['quant']}, {'prefill' if prompt else 'decode'}, {split:.0f} layers"
    return Case(text, speed, predicted, assumed=not prompt and found[2] is None)


def prefill_seconds(
    sheet: Sheet, shape: Shape, mix: dict[str, float], fitted: Coefficients, *, prompt: float, batch: float
) -> float:
    """With everything computed by the GPU, s."""
    operations = 2e9 * multiplied(shape, prompt) * prompt
    bits = mean_bits(mix)
    seconds = sum(operations * share * bits / BITS[form] * multiply_seconds(sheet, form, fitted) for form, share in mix.items())
    size = shape.parameters * 1e9 * bits / 8
    steps = math.ceil(prompt / batch)
    seconds += steps * sum(size * share * read_seconds(sheet, form, fitted) for form, share in mix.items())
    attended = 4 * shape.heads * shape.head * seen_positions(shape, (prompt + batch) / 2) * prompt
    seconds += attended * attend_seconds(sheet, fitted, tokens=int(batch), flash_attn=True)
    return seconds + steps * shape.layers * layer_seconds(sheet, fitted)


def decode_seconds(
    sheet: Sheet, host: Sheet, shape: Shape, mix: dict[str, float], fitted: Coefficients, *, whole: float, kept: float
) -> float:
    """One token, with that share of the weights read by the host's CPU, s."""
    active = whole * (1.0 if shape.active is None else shape.active / shape.parameters)
    on_host = active * kept if shape.active is None else active * min(kept, 0.75)
    seconds = shape.layers * layer_seconds(sheet, fitted)
    for form, share in mix.items():
        seconds += (active - on_host) * share * read_seconds(sheet, form, fitted)
        operations = 2 * on_host * share * 8 / BITS[form]
        seconds += on_host * share * read_seconds(host, form, fitted) + operations * multiply_seconds(host, form, fitted)
    return seconds
