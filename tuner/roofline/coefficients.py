"""What llama.cpp makes of a data sheet: efficiencies fitted to published results, as named numbers in `coefficients.yaml`.

Seven costs carry a machine, each a data sheet's rate times the exponential of a sum of coefficients (so each coefficient is the
logarithm of a factor: 0.1 makes the cost ten per cent dearer):

    reading      s per byte of weights                     exp(Σ) / memory bandwidth
    multiplying  s per operation of a matrix               exp(Σ) / compute rate (a CPU's by the share of its cores at work)
    layer        s per layer and step                      exp(Σ) × 10 µs
    looking      s per byte of K and V, one token          exp(Σ) / memory bandwidth
    attending    s per operation on the history, several   exp(Σ) / compute rate
    scores       s per byte of scores, no flash attention  exp(Σ) / memory bandwidth
    moving       s per byte of activations, several tokens exp(Σ) / memory bandwidth (a GPU; a CPU's stay in its caches)

Experts that a router chooses are matrices like others, with two differences on a GPU: kernels compute tiles of a fixed number
of rows, so that an expert's last tile is half empty on average (`padded_tokens`), and sorting and gathering tokens costs too,
which a coefficient of their own stands for. Without flash attention a GPU writes the scores of all heads to memory, and reads
them for the softmax and again for the values (`SCORE_BYTES`).

The form is the roofline's (Williams, Waterman, Patterson 2009), with sums where it has a maximum. The script
`tests/bench/fit_sheets.py` fits the coefficients with these same functions and writes the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

from tuner.roofline.sheet import Backend, Sheet

Features = dict[str, float]
"""Which coefficients a cost consists of, and how many times each."""

LAYER_UNIT_S: Final = 1e-5

ROUTED_TILE: Final = 64
"""Rows of tokens that a GPU's kernel for chosen experts computes at once (mmq.cu picks 8 to 128, ggml-vulkan 32 to 128)."""

FEW_TOKENS: Final = 8
"""Up to so many tokens an expert is a matrix-vector product, without tiles (MMVQ_MAX_BATCH_SIZE in llama.cpp)."""

SCORE_BYTES: Final = 16
"""Memory traffic of one float32 score without flash attention: written, read and written by the softmax, read again."""

ACTIVATION_BYTES: Final = 200
"""Memory traffic of one token in one layer beside weights and history, bytes per element of the hidden size, where each
operation is a kernel of its own: 50 float32 elements. In hidden sizes w, with heads as wide as w, K and V a quarter of it, and
a feed-forward of 3.5 w: two norms 4, two sums 6, inputs of seven matrices quantised and read 14, their outputs 10.5, rotating
2.5, filling the cache 1, attention's own in and out 2, the gated activation 10.5."""

_USUAL_BANDWIDTH: Final = 300e9
_LEGACY: Final = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"})
_PLAIN: Final = frozenset({"F32", "F16", "BF16"})
_WIDE_CLASSES: Final = {"Q8_0": "q8", "MXFP4": "mxfp4"}


SPREADS: Final = ("decode gpu", "decode cpu", "prefill gpu", "prefill varied", "prefill cpu")
"""What errors are told apart by; varied: ROCm, Vulkan and SYCL, whose prefill depends on build, library and driver, and of
which few devices were seen."""


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    schema: Literal["rooftune-coefficients/1"] = "rooftune-coefficients/1"
    """Version of these keys."""
    provenance: str
    """What was fitted to what, and when."""
    logarithms: dict[str, float]
    """Coefficient by name; a name that is absent counts 0."""
    spread: dict[str, float]
    """Relative standard deviation by phase and kind (`SPREADS`) on devices that the fit never saw."""

    def factor(self, features: Mapping[str, float]) -> float:
        """The exponential of the features' sum."""
        return math.exp(sum(self.logarithms.get(name, 0.0) * times for name, times in features.items()))


def read_features(sheet: Sheet, form: str) -> Features:
    """Reading weights of a format."""
    side, log_bandwidth = _side(sheet), math.log(sheet.bandwidth_gbs.value * 1e9 / _USUAL_BANDWIDTH)
    found = {
        f"read {side}": 1.0,
        f"read {sheet.backend}": 1.0,
        f"read bandwidth {side}": log_bandwidth,
        f"read bandwidth {sheet.backend}": log_bandwidth,
    }
    return found if side == "cpu" else found | {f"read {side} {format_class(form)}": 1.0}


def multiply_features(sheet: Sheet, form: str, *, routed: bool = False) -> Features:
    """Multiplying with weights of a format; `routed`: those of experts that a router chooses."""
    side = _side(sheet)
    found = {"multiply": 1.0, f"multiply {side}": 1.0, f"multiply {sheet.backend}": 1.0}
    if multiplies_integers(sheet, form):
        found["multiply int8"] = 1.0
    if side == "cpu":
        return found | {f"multiply cpu {form}": 1.0}
    units = {"multiply matrix": 1.0} if sheet.matrix_units else {}
    chosen = {"multiply routed": 1.0, f"multiply routed {sheet.backend}": 1.0} if routed else {}
    return found | units | chosen | {f"multiply gpu {format_class(form)}": 1.0}


def layer_features(sheet: Sheet) -> Features:
    """What a layer costs beside its weights."""
    return {f"layer {_side(sheet)}": 1.0, f"layer {sheet.backend}": 1.0}


def look_features(sheet: Sheet, *, flash_attn: bool) -> Features:
    """Reading the history for one token."""
    found = {"look": 1.0, f"look {_side(sheet)}": 1.0, f"look {sheet.backend}": 1.0}
    return found if flash_attn else found | {"look plain": 1.0}


def attend_features(sheet: Sheet, *, flash_attn: bool, kernel: str = "matrix") -> Features:
    """Attending to the history with several tokens at once; `kernel` is "matrix" for today's, as the fit calls older ones."""
    if kernel == "rows":
        return {"attend rows": 1.0}
    found = {"attend": 1.0, f"attend {_side(sheet)}": 1.0, f"attend {sheet.backend}": 1.0}
    return found | ({} if flash_attn else {"attend plain": 1.0}) | ({"attend tile": 1.0} if kernel == "tile" else {})


def score_features(sheet: Sheet) -> Features:
    """Scores through memory, on a GPU without flash attention."""
    return {"scores": 1.0, f"scores {sheet.backend}": 1.0}


def move_features(sheet: Sheet) -> Features:
    """Activations between the kernels of a layer, on a GPU."""
    return {"move": 1.0, f"move {sheet.backend}": 1.0}


def multiplies_integers(sheet: Sheet, form: str) -> bool:
    """CUDA multiplies quantised weights as 8-bit integers where it can (mmq.cu); its fp16 units do the rest."""
    return sheet.backend == "cuda" and sheet.int8_tops is not None and form not in _PLAIN


def multiply_rate(sheet: Sheet, form: str) -> float:
    """The stated rate of the units that multiply with weights of a format, operations/s."""
    if sheet.int8_tops is not None and multiplies_integers(sheet, form):
        return sheet.int8_tops.value * 1e12
    return sheet.tflops * 1e12


def padded_tokens(sheet: Sheet, tokens: float) -> float:
    """Rows that are computed for an expert with so many tokens: half a tile more, on average, on a GPU."""
    return tokens if sheet.kind == "cpu" or tokens <= FEW_TOKENS else tokens + ROUTED_TILE / 2


def read_seconds(sheet: Sheet, form: str, fitted: Coefficients) -> float:
    """Seconds per byte of weights."""
    return fitted.factor(read_features(sheet, form)) / (sheet.bandwidth_gbs.value * 1e9)


def multiply_seconds(sheet: Sheet, form: str, fitted: Coefficients, *, share: float = 1.0, routed: bool = False) -> float:
    """Seconds per operation, with that share of the cores at work."""
    return fitted.factor(multiply_features(sheet, form, routed=routed)) / (multiply_rate(sheet, form) * share)


def layer_seconds(sheet: Sheet, fitted: Coefficients) -> float:
    """Seconds per layer and step."""
    return fitted.factor(layer_features(sheet)) * LAYER_UNIT_S


def move_seconds(sheet: Sheet, fitted: Coefficients, *, tokens: float, width: float) -> float:
    """Seconds per layer and step for the activations of so many tokens; those of one token, or of a CPU, stay in caches."""
    if sheet.kind == "cpu" or tokens <= 1:
        return 0.0
    return fitted.factor(move_features(sheet)) * ACTIVATION_BYTES * tokens * width / (sheet.bandwidth_gbs.value * 1e9)


def look_seconds(sheet: Sheet, fitted: Coefficients, *, flash_attn: bool) -> float:
    """Seconds per byte of K and V that one token looks at."""
    return fitted.factor(look_features(sheet, flash_attn=flash_attn)) / (sheet.bandwidth_gbs.value * 1e9)


def attend_seconds(
    sheet: Sheet, fitted: Coefficients, *, flash_attn: bool, head_size: float = 128, share: float = 1.0
) -> float:
    """Seconds per operation of attention, over all tokens together; one score stands for 4 × head size of them."""
    seconds = fitted.factor(attend_features(sheet, flash_attn=flash_attn)) / (sheet.tflops * 1e12 * share)
    if flash_attn or sheet.kind == "cpu":
        return seconds
    traffic = fitted.factor(score_features(sheet)) / (sheet.bandwidth_gbs.value * 1e9)
    return seconds + traffic * SCORE_BYTES / (4 * head_size)


def format_class(form: str) -> str:
    """The family of kernels that a tensor type belongs to."""
    if form in _PLAIN:
        return "plain"
    if form in _LEGACY:
        return "legacy"
    return _WIDE_CLASSES.get(form) or ("iq" if form.startswith(("IQ", "TQ")) else "k")


def spread_name(phase: str, sheet: Sheet) -> str:
    """Which of `SPREADS` holds for a phase on a machine."""
    varied = phase == "prefill" and sheet.backend in {"rocm", "vulkan", "sycl"}
    return f"{phase} varied" if varied else f"{phase} {_side(sheet)}"


@cache
def load_coefficients() -> Coefficients:
    """The shipped coefficients."""
    import yaml

    text = files("tuner.roofline").joinpath("coefficients.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), Coefficients)


def _side(sheet: Sheet) -> Literal["cpu", "gpu"]:
    backend: Backend = sheet.backend
    return "cpu" if backend == "cpu" else "gpu"
