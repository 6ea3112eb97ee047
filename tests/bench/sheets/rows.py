"""Published results as records: which rows of the tables are used, and what each measured.

Left out, and counted: rows whose device or backend is not stated, devices without a data sheet, results of servers and of
Ollama (they are not llama-bench's terms), partial offload (kept apart for its own test), lengths not stated, both phases in one
figure, models and mixes whose shape is unknown. The DeepSeek R1 distillations are marked as mixtures of experts in the tables
and are dense Qwen 2.5 models; here they count as dense.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

from tests.bench.sheets.devices import device_sheet, find_backend, find_device
from tests.bench.sheets.mixes import find_mix, mean_bits
from tests.bench.sheets.shapes import Shape, find_shape
from tuner.roofline.coefficients import ACTIVATION_BYTES
from tuner.roofline.sheet import Backend, Sheet
from tuner.roofline.work import experts_touched

Phase = Literal["decode", "prefill"]
Kernel = Literal["matrix", "tile", "rows"]
"""How several tokens attend: with what multiplies matrices, with vector units only, or with vector units that read K and V anew
for every eight tokens."""

SKIPS_SINCE: dict[Backend, int] = {"cpu": 0, "cuda": 6018, "rocm": 6018, "vulkan": 7940, "metal": 6750}
"""Build of llama.cpp from which on flash attention leaves out blocks of positions that are masked for all of a tile's tokens
(pull request 14924 for CUDA and ROCm; the builds of Vulkan and Metal from memory, about); sycl does not."""

CUDA_SKIPS_FROM = 1024
"""Tokens of a micro-batch from which on the kernels of CUDA and ROCm look for such blocks (fattn-common.cuh)."""

MATRIX_ATTENTION_SINCE = 7900
"""Build from which on ROCm's flash attention uses RDNA's matrix units without rocWMMA, for models with grouped heads and keys of
at most 128 elements (pull request 18481; fattn.cu); others stay with vector units."""

TILE_ATTENTION_SINCE = 6400
"""Build from which on it has a good kernel for many tokens (from memory, about); before, the kernel for up to eight tokens (pull
request 7061) did them all: "On AMD the tile kernels perform poorly, use the vec kernel instead" (pull request 12032)."""

INTEGERS_SINCE: dict[Backend, int] = {"cuda": 3216, "rocm": 7300}
"""Build from which on CUDA, and ROCm on cards with matrix units, multiply quantised weights as they are; before, from 64 tokens
on, they wrote them out as float16 for cuBLAS or rocBLAS, each time anew (pull requests 8075 and 17576; mmq.cu)."""

CONVERTS_FROM = 64
"""Tokens from which on they did (MMQ_DP4A_MAX_BATCH_SIZE)."""

CONVERTED_BYTES = 61
"""Memory traffic beside `ACTIVATION_BYTES`, in the same unit, where a library multiplies: inputs are written out as float16 and not
as 8-bit integers (2 bytes more), outputs come as float16 and are written out as float32 (4 bytes more)."""

EXPERTS_AT_ONCE_SINCE: dict[Backend, int] = {"cuda": 5180, "rocm": 7300}
"""Build from which on all chosen experts are one launch; before, the host went through them one by one (pull request 17576, CUDA's
from memory, about; ggml_cuda_mul_mat_id)."""

LIBRARY_TFLOPS = {"hip": 5.0, "rocwmma": 5.0, "hip +hipBLASLt": 24.0, "rocwmma +hipBLASLt": 24.0, "HIP": 5.0, "ROCm": 24.0}
"""What AMD's libraries of 2025 themselves reach on gfx1151, of which the data sheet says 59, by the backend as rows spell it; no
whole model's speed went into them. rocBLAS: in llama.cpp's own layout, where both operands lie along the summed index, 5.1 at
best over all sizes (BF16, mamf-finder, https://llm-tracker.info/_TOORG/Strix-Halo) and 4.9 for 4096 x 512 x 14336 (float16,
ROCm's issue 4748; up to 10.8 there in another layout). hipBLASLt: the median over matrices of 1024 to 8192 in ROCm's issues
4566 and 4748; at best 36.9 by mamf-finder, 23.4 for 4096 x 1024 x 4096 (kroqueta-s/gfx1151-gemm)."""

WITHOUT_ROCWMMA = frozenset({5863})
"""Builds whose rows are labelled rocWMMA and cannot have it: they measure what the same build without it does, within two per cent
with hipBLASLt and without it in the median (single rows up to 16 per cent apart), over all models and prompts of 512 to 8192
tokens, where later builds of the same source differ by factors of 1.2 to 3.6."""

EXPERTS_TOGETHER_SINCE = 2690
"""Build from which on CUDA and ROCm multiply with all experts of a token in one operation, and gather rows by a kernel (pull
request 6505). Before, each of a token's experts was an operation of its own, over all matrices, and the host had every row copied
there and back by a call (pull request 4538)."""

LLAMAFILE_BUILD = 3000
"""What llamafile's results of May 2024 were made with, about."""

EXPERT_BITS = {"gpt-oss": 4.25}
"""Bits of the experts of models that are published with experts in MXFP4 whatever the rest is in."""


class Work(NamedTuple):
    """Multiplying with one kind of matrices, over all steps."""

    mix: dict[str, float]
    """Formats by their share of the bytes."""
    n_bytes: float
    """Weights read, bytes."""
    operations: float
    tokens: float
    """That meet each matrix at once."""
    routed: bool
    """Experts that a router chose."""
    converted: bool = False
    """Written out as float16 first."""
    library: float | None = None
    """Operations/s of the library that multiplies what was written out; None: not known."""
    looped: float = 0.0
    """Experts that the host goes through one by one, over all layers and steps."""
    copied: float = 0.0
    """Rows that the host has copied one by one, over all layers and steps."""


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
    kernel: Kernel
    """For flash attention."""
    layers: int
    head: int
    """Length of the keys."""
    work: tuple[Work, ...]
    attended: float
    """Operations on the history, over all steps."""
    looked: float
    """K and V of the history, bytes, over all steps; counts where one token is computed at once."""
    moved: float
    """Activations between kernels, bytes, over all steps; counts on a GPU where several tokens are computed at once."""
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


def read_row(entry: dict[str, str], table: str, *, offloaded_to: Sheet | None = None) -> Row:
    """Raises Skipped. `offloaded_to`: as though that device had all layers, whatever the entry says."""
    sheet, device = (offloaded_to, offloaded_to.name) if offloaded_to else find_sheet(entry)
    shape, mix = find_model(entry)
    offloaded = number(entry["n_gpu_layers"], -1)
    if offloaded_to is None and sheet.kind != "cpu" and offloaded < shape.layers:
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
    flash = entry["flash_attn"] not in {"0", ""}
    length, computed = prompt or answer, prompt or 1
    history = depth + (length + (0 if skips(sheet.backend, flash, tokens, entry["build"]) else tokens)) / 2
    seen = seen_positions(shape, history, tokens)
    work = list_work(entry, sheet, shape, mix, computed=computed, tokens=tokens, steps=steps)
    per_element = ACTIVATION_BYTES + (CONVERTED_BYTES if work[0].converted else 0)
    return Row(
        table=table, device=device, sheet=sheet, settings=entry["backend"], model=entry["model"], moe=shape.active is not None,
        quant=entry["quant"], phase="prefill" if prompt else "decode", length=length, depth=depth, tokens=tokens,
        steps=steps, share=core_share(sheet, number(entry["n_threads"])), flash_attn=flash,
        kernel=find_kernel(sheet, shape, entry), layers=shape.layers, head=shape.head,
        work=work, moved=per_element * computed * shape.layers * shape.width,
        attended=4 * shape.heads * shape.head * seen * computed, looked=cell_bytes(shape) * seen * steps,
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


def list_work(
    entry: dict[str, str], sheet: Sheet, shape: Shape, mix: dict[str, float], *, computed: float, tokens: float, steps: int
) -> tuple[Work, ...]:
    """Matrices that every token meets, and those of chosen experts."""
    whole, experts = weight_bytes(entry, shape, mix)
    bits = mean_bits(mix)
    table = shape.vocabulary * shape.width * (bits if bits >= 8 else min(bits, 6)) / 8
    # of a prompt, only the last token needs the output matrix
    read = whole - experts - (0 if shape.tied else table) - table * (1 - 1 / steps)
    build = build_number(entry["build"], entry["backend"])
    old = sheet.matrix_units and build < INTEGERS_SINCE.get(sheet.backend, 0)
    library = LIBRARY_TFLOPS.get(entry["backend"]) if sheet.name == "strix-halo" else None
    rate = library * 1e12 if library else None
    dense = Work(
        mix, steps * read, 2e9 * multiplied(shape, computed) * computed, tokens, routed=False,
        converted=old and tokens >= CONVERTS_FROM, library=rate,
    )  # fmt: skip
    if not shape.routed:
        return (dense,)
    looping = build < EXPERTS_AT_ONCE_SINCE.get(sheet.backend, 0) and tokens > 1
    times = shape.used if looping and build < EXPERTS_TOGETHER_SINCE else 1
    touched = experts_touched(shape.experts, shape.used // times, tokens)
    each = tokens * shape.used / times / touched
    chosen = Work(
        {"MXFP4": 1.0} if find_expert_bits(entry) else mix, times * steps * experts * touched / shape.experts,
        2e9 * shape.routed * shape.used / shape.experts * computed, each, routed=True,
        converted=old and each >= CONVERTS_FROM, library=rate,
        looped=times * steps * shape.layers * touched if looping else 0.0,
        copied=2 * steps * shape.layers * tokens * shape.used if times > 1 else 0.0,
    )  # fmt: skip
    return dense, chosen


def weight_bytes(entry: dict[str, str], shape: Shape, mix: dict[str, float]) -> tuple[float, float]:
    """Of the whole file, and of the experts in it."""
    size, bits = number(entry["file_size_GiB"]), find_expert_bits(entry)
    whole = size * 2**30 if size else shape.parameters * 1e9 * mean_bits(mix) / 8
    return whole, shape.routed * 1e9 * bits / 8 if bits else whole * shape.routed / shape.parameters


def find_expert_bits(entry: dict[str, str]) -> float | None:
    return next((value for name, value in EXPERT_BITS.items() if name in entry["model"].lower()), None)


def multiplied(shape: Shape, computed: float) -> float:
    """10⁹ parameters that every token multiplies with; of a prompt, only the last token needs the output matrix."""
    embedding = shape.vocabulary * shape.width / 1e9
    body = shape.parameters - shape.routed - (0 if shape.tied else embedding)
    return body - embedding * (1 - 1 / computed)


def skips(backend: Backend, flash: bool, tokens: float, build: str) -> bool:
    """Whether masked positions cost nothing; a build without a number is taken to be new."""
    since = SKIPS_SINCE.get(backend)
    if not flash or since is None or build_number(build) < since:
        return False
    return backend not in {"cuda", "rocm"} or tokens >= CUDA_SKIPS_FROM


def find_kernel(sheet: Sheet, shape: Shape, entry: dict[str, str]) -> Kernel:
    """What a row's build attends with."""
    build = build_number(entry["build"])
    if sheet.backend != "rocm" or ("rocwmma" in entry["backend"].lower() and build not in WITHOUT_ROCWMMA):
        return "matrix"
    if build < TILE_ATTENTION_SINCE:
        return "rows"
    grouped = shape.heads > shape.kv_heads and shape.head <= 128
    return "matrix" if build >= MATRIX_ATTENTION_SINCE and grouped else "tile"


def build_number(build: str, backend: str = "") -> int:
    """What llama.cpp counts its commits by; large where the row does not say."""
    if "llamafile" in backend:
        return LLAMAFILE_BUILD
    found = re.search(r"\(b?(\d{4,5})\)", build)
    return int(found.group(1)) if found else 99_999


def seen_positions(shape: Shape, history: float, tokens: float) -> float:
    """Positions that one token attends to, summed over layers; a window's cells hold a micro-batch besides."""
    others = min(shape.window + (tokens if tokens > 1 else 0), history) if shape.window else 0.0
    return shape.layers * (shape.full * history + (1 - shape.full) * others)


def cell_bytes(shape: Shape) -> float:
    """K and V of one position in one layer in float16; with latent attention (one head of 576) V is a part of K."""
    return 2 * shape.kv_heads * shape.head * (1 if shape.head > 512 else 2)


def core_share(sheet: Sheet, threads: float | None) -> float:
    if sheet.kind != "cpu" or sheet.cores is None:
        return 1.0
    return min(1.0, (threads or sheet.cores.value) / sheet.cores.value)


def number(text: str, default: float | None = None) -> float | None:
    try:
        return float(text)
    except ValueError:
        return default
