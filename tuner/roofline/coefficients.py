"""What llama.cpp makes of a data sheet: efficiencies fitted to published results, as named numbers in `coefficients.yaml`.

Four costs carry a machine, each a data sheet's rate times the exponential of a sum of coefficients (so each coefficient is the
logarithm of a factor: 0.1 makes the cost ten per cent dearer):

    reading      s per byte of weights             exp(Σ) / memory bandwidth
    multiplying  s per operation of a matrix       exp(Σ) / compute rate (a CPU's by the share of its cores at work)
    layer        s per layer and step              exp(Σ) × 10 µs
    attending    s per operation on the history    exp(Σ) / memory bandwidth for one token, / compute rate for several

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
_USUAL_BANDWIDTH: Final = 300e9
_LEGACY: Final = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"})
_PLAIN: Final = frozenset({"F32", "F16", "BF16"})
_WIDE_CLASSES: Final = {"Q8_0": "q8", "MXFP4": "mxfp4"}


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    schema: Literal["rooftune-coefficients/1"] = "rooftune-coefficients/1"
    """Version of these keys."""
    provenance: str
    """What was fitted to what, and when."""
    logarithms: dict[str, float]
    """Coefficient by name; a name that is absent counts 0."""
    spread: dict[str, float]
    """Relative standard deviation of decode and prefill by kind ("decode gpu", …) on devices that the fit never saw."""

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


def multiply_features(sheet: Sheet, form: str) -> Features:
    """Multiplying with weights of a format."""
    side = _side(sheet)
    found = {"multiply": 1.0, f"multiply {side}": 1.0, f"multiply {sheet.backend}": 1.0}
    if side == "cpu":
        return found | {f"multiply cpu {form}": 1.0}
    units = {"multiply matrix": 1.0} if sheet.matrix_units else {}
    return found | units | {f"multiply gpu {format_class(form)}": 1.0}


def layer_features(sheet: Sheet) -> Features:
    """What a layer costs beside its weights."""
    return {f"layer {_side(sheet)}": 1.0, f"layer {sheet.backend}": 1.0}


def attend_features(sheet: Sheet, *, tokens: int, flash_attn: bool) -> Features:
    """Attending to the history, `tokens` at once."""
    number = "one" if tokens == 1 else "many"
    found = {f"attend {number}": 1.0, f"attend {number} {_side(sheet)}": 1.0, f"attend {number} {sheet.backend}": 1.0}
    return found if flash_attn else found | {f"attend {number} plain": 1.0}


def read_seconds(sheet: Sheet, form: str, fitted: Coefficients) -> float:
    """Seconds per byte of weights."""
    return fitted.factor(read_features(sheet, form)) / (sheet.bandwidth_gbs.value * 1e9)


def multiply_seconds(sheet: Sheet, form: str, fitted: Coefficients, *, share: float = 1.0) -> float:
    """Seconds per operation, with that share of the cores at work."""
    return fitted.factor(multiply_features(sheet, form)) / (sheet.tflops * 1e12 * share)


def layer_seconds(sheet: Sheet, fitted: Coefficients) -> float:
    """Seconds per layer and step."""
    return fitted.factor(layer_features(sheet)) * LAYER_UNIT_S


def attend_seconds(sheet: Sheet, fitted: Coefficients, *, tokens: int, flash_attn: bool, share: float = 1.0) -> float:
    """Seconds per operation of attention, over all `tokens` together."""
    rate = sheet.bandwidth_gbs.value * 1e9 if tokens == 1 else sheet.tflops * 1e12 * share
    return fitted.factor(attend_features(sheet, tokens=tokens, flash_attn=flash_attn)) / rate


def format_class(form: str) -> str:
    """The family of kernels that a tensor type belongs to."""
    if form in _PLAIN:
        return "plain"
    if form in _LEGACY:
        return "legacy"
    return _WIDE_CLASSES.get(form) or ("iq" if form.startswith(("IQ", "TQ")) else "k")


@cache
def load_coefficients() -> Coefficients:
    """The shipped coefficients."""
    import yaml

    text = files("tuner.roofline").joinpath("coefficients.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), Coefficients)


def _side(sheet: Sheet) -> Literal["cpu", "gpu"]:
    backend: Backend = sheet.backend
    return "cpu" if backend == "cpu" else "gpu"
