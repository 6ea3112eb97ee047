"""The dimensions there are, found in `tuner.space.dimensions`, in the one order that everything shows them in."""

from __future__ import annotations

from functools import cache
from typing import Final

from tuner.discover import discover_classes
from tuner.errors import suggest_name
from tuner.runconfig import RunConfig
from tuner.space import dimensions
from tuner.space.base import Dimension

_SHORT: Final = {
    "m": "model",
    "ngl": "n_gpu_layers",
    "c": "ctx_size",
    "b": "batch_size",
    "ub": "ubatch_size",
    "ctk": "cache_type_k",
    "ctv": "cache_type_v",
    "fa": "flash_attn",
    "t": "threads",
    "tb": "threads_batch",
    "np": "parallel",
    "ncmoe": "n_cpu_moe",
    "sm": "split_mode",
    "ts": "tensor_split",
    "mg": "main_gpu",
    "nkvo": "no_kv_offload",
}
"""llama.cpp's short flags, for hints: a setting has one name here."""


@cache
def list_dimensions() -> tuple[Dimension, ...]:
    """All dimensions, in the order of RunConfig's fields."""
    order = {name: place for place, name in enumerate(RunConfig.__struct_fields__)}
    found = [kind() for kind in discover_classes(dimensions, Dimension)]  # type: ignore[type-abstract]
    return tuple(sorted(found, key=lambda each: order[each.name]))


def find_dimension(name: str) -> Dimension | None:
    """The dimension called `name`, or None."""
    return next((each for each in list_dimensions() if each.name == name), None)


def suggest_dimension(name: str, *others: str) -> str:
    """A hint towards the setting that was meant, also by llama.cpp's short flag; `others` may have been meant as well."""
    short = _SHORT.get(name.strip().lstrip("-"))
    return f"Did you mean {short}?" if short else suggest_name(name, [*(each.name for each in list_dimensions()), *others])
