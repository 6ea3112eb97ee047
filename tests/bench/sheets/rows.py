"""Published results as records: which rows of the tables are used, and what each measured.

Left out, and counted: rows whose device or backend is not stated, devices without a data sheet, results of servers and of
Ollama (they are not llama-bench's terms), partial offload (kept apart for its own test), lengths not stated, both phases in one
figure, models and mixes whose shape is unknown. The DeepSeek R1 distillations are marked as mixtures of experts in the tables
and are dense Qwen 2.5 models; here they count as dense.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

from tests.bench.sheets.devices import device_sheet, find_backend, find_device
from tests.bench.sheets.mixes import find_mix, mean_bits
from tests.bench.sheets.shapes import Shape, find_shape
from tuner.roofline.sheet import Sheet

Phase = Literal["decode", "prefill"]


class Row(NamedTuple):
    table: str
    device: str
    """Name of the sheet: all spellings of one device are one group."""
    sheet: Sheet
    settings: str
    """The backend as the row spells it."""
    model: str
    moe: bool
    quant: str
    mix: dict[str, float]
    phase: Phase
    length: float
    """Tokens read or written."""
    depth: float
    """Tokens of history before them."""
    tokens: float
    """Computed at once."""
    steps: int
    share: float
    """Of the CPU's cores at work."""
    flash_attn: bool
    layers: int
    step_bytes: float
    """Weights that all steps together read, bytes."""
    operations: float
    """Of matrices, over all steps."""
    attended: float
    """Operations on the history, over all steps."""
    seconds: float
    """Of all steps."""
    build: str

    @property
    def sweep(self) -> tuple[object, ...]:
        """What a sweep over lengths has in common: its rows are near-duplicates of each other."""
        return (self.device, self.settings, self.model, self.quant, self.flash_attn, self.phase, self.build, self.depth > 0)


class Skipped(Exception):  # noqa: N818
    """Why a row is not used."""


def read_rows(folder: Path, table: str) -> tuple[list[Row], Counter[str]]:
    """The usable rows of one table, and why others are not, with their number."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    with (folder / f"{table}.csv").open(newline="") as file:
        for entry in csv.DictReader(file):
            try:
                rows.append(read_row(entry, table))
            except Skipped as reason:
                skipped[str(reason)] += 1
    return rows, skipped


def read_row(entry: dict[str, str], table: str) -> Row:
    sheet, device = find_sheet(entry)
    shape, mix = find_model(entry)
    on_cpu = sheet.kind == "cpu"
    offloaded = number(entry["n_gpu_layers"], -1)
    if not on_cpu and offloaded < shape.layers:
        raise Skipped("partial offload or layers not stated")
    prompt, answer, depth = number(entry["n_prompt"]), number(entry["n_gen"]), number(entry["depth"], 0)
    if prompt is None or answer is None:
        raise Skipped("lengths not stated")
    if prompt and answer:
        raise Skipped("both phases in one figure")
    if answer and number(entry["n_parallel"], 1) != 1:
        raise Skipped("several sequences at once")
    batch = min(number(entry["n_ubatch"], 512) or 512, number(entry["n_batch"], 2048) or 2048)
    tokens = min(batch, prompt) if prompt else 1
    steps = math.ceil(prompt / batch) if prompt else 1
    length = prompt or answer
    computed = prompt or 1
    # each token of a micro-batch looks at all cells in use at its end
    history = depth + (length + tokens) / 2
    return Row(
        table=table, device=device, sheet=sheet, settings=entry["backend"], model=entry["model"], moe=shape.active is not None,
        quant=entry["quant"], mix=mix, phase="prefill" if prompt else "decode", length=length, depth=depth, tokens=tokens,
        steps=steps, share=core_share(sheet, number(entry["n_threads"])), flash_attn=entry["flash_attn"] not in {"0", ""},
        layers=shape.layers, step_bytes=steps * step_bytes(entry, shape, mix, tokens, steps),
        operations=2e9 * multiplied(shape, computed) * computed,
        attended=4 * shape.heads * shape.head * seen_positions(shape, history) * computed,
        seconds=computed / float(entry["tokens_per_s"]), build=entry["build"],
    )  # fmt: skip


def find_sheet(entry: dict[str, str]) -> tuple[Sheet, str]:
    if entry["flag"] != "ok":
        raise Skipped("device not stated")
    if "ollama" in entry["backend"].lower() or "server" in entry["backend"]:
        raise Skipped("a server's figures")
    device, backend = find_device(entry["device"]), find_backend(entry["backend"])
    if device is None:
        raise Skipped("no data sheet")
    if backend is None:
        raise Skipped("backend not stated")
    return device_sheet(device, backend), device


def find_model(entry: dict[str, str]) -> tuple[Shape, dict[str, float]]:
    shape, mix = find_shape(entry["model"]), find_mix(entry["quant"])
    if shape is None:
        raise Skipped("model of unknown shape")
    if mix is None:
        raise Skipped("mix of unknown parts")
    size = number(entry["file_size_GiB"])
    if size and shape.tied and size * 2**33 / (shape.parameters * 1e9) > 1.15 * max(mean_bits(mix), 4.9):
        # the file holds the output matrix a second time, which the published number of parameters leaves out
        shape = shape._replace(parameters=shape.parameters + shape.vocabulary * shape.width / 1e9, tied=0)
    return shape, mix


def multiplied(shape: Shape, computed: float) -> float:
    """10⁹ parameters that a token multiplies with; of a prompt, only the last token needs the output matrix."""
    embedding = shape.vocabulary * shape.width / 1e9
    body = shape.active or shape.parameters - (0 if shape.tied else embedding)
    return body - embedding * (1 - 1 / computed)


def step_bytes(entry: dict[str, str], shape: Shape, mix: dict[str, float], tokens: float, steps: int) -> float:
    """Weights that one step reads, bytes: without an embedding that is only looked up, and with the experts that are chosen."""
    bits = mean_bits(mix)
    size = number(entry["file_size_GiB"])
    whole = size * 2**30 if size else shape.parameters * 1e9 * bits / 8
    table = shape.vocabulary * shape.width * (bits if bits >= 8 else min(bits, 6)) / 8
    read = whole - (0 if shape.tied else table) - table * (1 - 1 / steps)
    return read if shape.active is None else chosen_bytes(entry, shape, whole, read, tokens)


def chosen_bytes(entry: dict[str, str], shape: Shape, whole: float, read: float, tokens: float) -> float:
    assert shape.active is not None
    share = shape.active / shape.parameters
    one = whole * share
    if "gpt-oss" in entry["model"].lower():
        experts, share = (114.66, 4 / 128) if "120" in entry["model"] else (19.11, 4 / 32)
        expert_bytes = experts * 1e9 * 4.25 / 8
        rest = 1 - shape.vocabulary * shape.width / 1e9 / (shape.parameters - experts)
        one = expert_bytes * share + (whole - expert_bytes) * rest
    touched = 1 - (1 - share) ** tokens
    return one if tokens == 1 else max(one, read * touched)


def seen_positions(shape: Shape, history: float) -> float:
    """Positions that one token attends to, summed over layers."""
    others = min(shape.window, history) if shape.window else 0.0
    return shape.layers * (shape.full * history + (1 - shape.full) * others)


def core_share(sheet: Sheet, threads: float | None) -> float:
    if sheet.kind != "cpu" or sheet.cores is None:
        return 1.0
    return min(1.0, (threads or sheet.cores.value) / sheet.cores.value)


def number(text: str, default: float | None = None) -> float | None:
    try:
        return float(text)
    except ValueError:
        return default
