"""A machine as its data sheet states it: what `--machine` names, shipped or a user's own YAML file.

A sheet states only what vendors publish, each figure with its source and whether that was read there; what llama.cpp makes
of it is fitted elsewhere (`tuner.roofline.coefficients`), and no figure is chosen to suit a prediction. A file is data from
anywhere: its size and types are bounded, and what is wrong with it is said in one sentence.
"""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from tuner.errors import BadInputError, UsageError, suggest_name

Kind = Literal["cpu", "gpu", "igpu"]
"""igpu: a graphics processor that shares main memory."""

Backend = Literal["cpu", "cuda", "rocm", "vulkan", "metal", "sycl"]
"""The part of llama.cpp that drives it."""

State = Literal["read", "derived", "unconfirmed", "given"]
"""read: the address states this very figure; derived: the arithmetic in the source gives it, from what the address states;
unconfirmed: no page was found that does; given: by whoever wrote the file, who does not say."""

MOST_BYTES: Final = 65_536
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
_REMEDY: Final = (
    "Copy a shipped machine and edit it: name, kind, backend, bandwidth_gbs and fp16_tflops (a CPU: fp32_tflops and cores)."
)
_FIGURES: Final = ("bandwidth_gbs", "fp16_tflops", "fp32_tflops", "int8_tops", "memory_gib", "link_gbs", "cores")


class Sourced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published figure."""

    value: float
    """In the unit that the field around it names."""
    source: str = "not stated"
    """What the page says of it, or the arithmetic that gives it, or why it is unconfirmed."""
    address: str = ""
    """The page it was looked up in; "" none."""
    state: State = "given"
    """What the source is worth."""


class Sheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One processor with its memory."""

    name: _Name
    """What `--machine` is given."""
    title: str = ""
    """Full name of the product; "" where the name says it all."""
    kind: Kind
    """What computes."""
    backend: Backend
    """How llama.cpp is assumed to drive it."""
    bandwidth_gbs: Sourced
    """Memory bandwidth, 10⁹ bytes/s."""
    fp16_tflops: Sourced | None = None
    """Dense FP16 with the matrix units where there are any, 10¹² operations/s; None: not stated."""
    fp32_tflops: Sourced | None = None
    """FP32 without matrix units, all cores, 10¹² operations/s; None: not stated."""
    int8_tops: Sourced | None = None
    """Dense INT8, 10¹² operations/s; None: not stated."""
    memory_gib: Sourced | None = None
    """Memory that the processor can use, GiB; None: not stated."""
    link_gbs: Sourced | None = None
    """One way from main memory, 10⁹ bytes/s; None: shares main memory, or not stated."""
    cores: Sourced | None = None
    """CPU cores that compute; None: not stated."""
    matrix_units: bool = False
    """The FP16 figure is that of matrix units (tensor cores, WMMA, XMX)."""
    note: str = ""
    """What a reader should know beside the figures."""

    @property
    def tflops(self) -> float:
        """The rate that efficiencies refer to: FP32 of a CPU, FP16 of a GPU or, unstated, FP32; 10¹² operations/s."""
        first, second = (self.fp32_tflops, None) if self.kind == "cpu" else (self.fp16_tflops, self.fp32_tflops)
        found = first or second
        if found is None:
            raise BadInputError(f"The machine {self.name} states no compute rate.", _REMEDY)
        return found.value

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Names of the figures that no page was found to state."""
        figures: dict[str, Sourced | None] = {key: getattr(self, key) for key in _FIGURES}
        return tuple(key for key, figure in figures.items() if figure is not None and figure.state == "unconfirmed")


def list_sheets() -> tuple[str, ...]:
    """Names of the shipped machines, sorted."""
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml")))


def load_sheet(name_or_path: str) -> Sheet:
    """A shipped machine by its name, or a user's YAML file.

    Raises UsageError for a name that is none, BadInputError for a file that describes no machine.
    """
    if name_or_path in list_sheets():
        return read_sheet(_folder().joinpath(f"{name_or_path}.yaml").read_bytes(), source=name_or_path)
    path = Path(name_or_path)
    if path.suffix.lower() not in {".yaml", ".yml"}:
        hint = suggest_name(name_or_path[:100], list_sheets(), others="or a YAML file of your own")
        raise UsageError(f"There is no machine {name_or_path[:100]!r}.", hint)
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise BadInputError(f"Cannot read the machine {str(path)[:200]!r}: {reason}.", "Check the path.") from error
    return read_sheet(text, source=str(path))


def read_sheet(text: bytes, *, source: str) -> Sheet:
    """A machine from YAML text. Raises BadInputError."""
    import yaml

    if len(text) > MOST_BYTES:
        raise BadInputError(f"{source} is too long for a machine.", _REMEDY)
    try:
        return _check(msgspec.convert(_spell_out(_parse_yaml(text.decode()), source), Sheet))
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInputError(f"{source} describes no machine: {reason}.", _REMEDY) from error


def _parse_yaml(text: str) -> object:
    import yaml

    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
        raise ValueError("aliases are not accepted")
    return yaml.safe_load(text)


def _folder() -> Any:
    return files("tuner.roofline").joinpath("machines")


def _spell_out(data: object, source: str) -> object:
    """A plain number stands for a figure without a source; the file's own name for a missing name."""
    if not isinstance(data, dict):
        return data
    given = {"name": Path(source).stem, **data}
    plain = {key: {"value": given[key]} for key in _FIGURES if isinstance(given.get(key), int | float)}
    return given | plain


def _check_figure(key: str, figure: Sourced) -> None:
    if not (math.isfinite(figure.value) and 0 < figure.value < 1e9):
        raise ValueError(f"{key} is {figure.value:g}, and must be a positive number")
    if figure.state in {"read", "derived"} and not figure.address.startswith(("https://", "http://")):
        raise ValueError(f"{key} is {figure.state}, and its address is missing")


def _check(sheet: Sheet) -> Sheet:
    for key in _FIGURES:
        figure: Sourced | None = getattr(sheet, key)
        if figure is not None:
            _check_figure(key, figure)
    if (sheet.kind == "cpu") != (sheet.backend == "cpu"):
        raise ValueError(f"a {sheet.kind} is not driven by the backend {sheet.backend}")
    if sheet.kind == "cpu" and (sheet.fp32_tflops is None or sheet.cores is None):
        raise ValueError("a CPU needs fp32_tflops and cores")
    if sheet.kind != "cpu" and sheet.fp16_tflops is None and sheet.fp32_tflops is None:
        raise ValueError("fp16_tflops is missing")
    return sheet
