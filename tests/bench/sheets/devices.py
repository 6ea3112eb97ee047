"""Which machine a row is about: one group for all spellings of one device, and its data sheet."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from msgspec.structs import replace

from tuner.roofline.sheet import Backend, Sheet, list_sheets, load_sheet

FOLDER = Path(__file__).parent / "machines"
"""Sheets of devices that appear in the results and are not worth shipping."""

DEVICES = (
    ("Ryzen AI MAX+ 395 (CPU)", "strix-halo-cpu"),
    ("8060S", "strix-halo"),
    ("RX 7900 XTX", "rx-7900-xtx"),
    ("RX 7800 XT", "rx-7800-xt"),
    ("RX 6800", "rx-6800"),
    ("RX 9060 XT", "rx-9060-xt"),
    ("RTX 3090 Ti", None),
    ("RTX 3090", "rtx-3090"),
    ("RTX 4090", "rtx-4090"),
    ("RTX 5090", "rtx-5090"),
    ("RTX 4070", "rtx-4070"),
    ("Tesla P40", "tesla-p40"),
    ("GB10", "dgx-spark"),
    ("Arc B580", "arc-b580"),
    ("M1 7-core", "apple-m1-7"),
    ("M2 Max (CPU", "apple-m2-max-cpu"),
    ("M2 Max", "apple-m2-max-30"),
    ("M2 Ultra (CPU", None),
    ("M2 Ultra 76", "apple-m2-ultra-76"),
    ("M3 Ultra 96GB", "apple-m3-ultra-60"),
    ("M4 10-core", "apple-m4"),
    ("Ryzen 9 7950X", "ryzen-9-7950x"),
    ("Ryzen 5 7600X", "ryzen-5-7600x"),
    ("Graviton3", "graviton3-64"),
    ("E5-2683 v4", "xeon-e5-2683-v4"),
)
"""(part of the device's text, sheet); None: known, but without a sheet."""

BACKENDS: tuple[tuple[str, Backend], ...] = (
    ("vulkan", "vulkan"),
    ("hip", "rocm"),
    ("roc", "rocm"),
    ("metal", "metal"),
    ("cuda", "cuda"),
    ("sycl", "sycl"),
    ("cpu", "cpu"),
)


def find_device(text: str) -> str | None:
    """Name of the sheet of a row's device."""
    return next((sheet for part, sheet in DEVICES if part.lower() in text.lower()), None)


def find_backend(text: str) -> Backend | None:
    """None where the row does not say."""
    return next((backend for part, backend in BACKENDS if part in text.lower()), None)


@cache
def device_sheet(name: str, backend: Backend) -> Sheet:
    """The sheet as driven by the row's backend."""
    found = load_sheet(name if name in list_sheets() else str(FOLDER / f"{name}.yaml"))
    return replace(found, backend=backend)
