"""From a data sheet to ceilings: what `predict --machine` reckons with, in the same form as a calibration.

Every figure is assumed: a published rate times a fitted efficiency. Its spread is the error that the fit made on devices it had
not seen, so that 80 % intervals hold that error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuner.memory.record import HOST
from tuner.model.ggml import TENSOR_TYPES
from tuner.roofline.ceilings import (
    AttentionCeiling,
    Ceilings,
    DeviceCeiling,
    Figure,
    FixedCeiling,
    FormatCeiling,
    LinkCeiling,
)
from tuner.roofline.coefficients import (
    Coefficients,
    attend_seconds,
    layer_seconds,
    load_coefficients,
    look_seconds,
    move_seconds,
    multiply_seconds,
    padded_tokens,
    read_seconds,
    spread_name,
)
from tuner.roofline.sheet import Backend, Sheet

TOKENS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FORMATS: Final = tuple(
    kind.name for kind in TENSOR_TYPES.values() if not kind.name.startswith(("I", "F64")) or kind.name[1] == "Q"
)
CACHE_TYPES: Final = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
"""Bits of an element by type of the cache."""

HEAD_SIZES: Final = (64, 128, 256)
"""Lengths of keys that figures without flash attention are made for."""

GROUPED_HEADS: Final = 4
"""Query heads that share a head of K and V: usual since 2024. One token reads a byte of float16 for so many operations; models
that share none (Llama 2 7B) look back up to four times as long as predicted."""

LAYER_WIDTH: Final = 4096
"""Hidden size that figures of a layer are made for."""

LINK_EFFICIENCY: Final = 0.8
"""What copies reach of a PCIe link's raw rate: packet headers cost about a fifth (PCI-SIG; usual bandwidthTest results)."""

STAGING_GBS: Final = 9.6
"""How fast a driver copies pageable memory to where the device can fetch it, 10⁹ bytes/s; mapped weights are pageable. The
median of published rates of large pageable copies over links that are faster: 5.5 (11.5 GB/s where pinned, dask-cuda pull
request 98), 9.6 (32.4, kekzl/imp 1409) and 12.9 (23.9, NVlabs/cuda-oxide 976). Both ways overlap: the last of these reports
18.4 for 16 MiB, for which, one after the other, the first way would have to make 81."""

LINK_LATENCY_S: Final = 2e-5
"""One small copy with its synchronisation, s; a rule of thumb."""

_LINK_SPREAD: Final = 0.3
_DEVICE_NAMES: Final[dict[Backend, str]] = {
    "cpu": HOST,
    "cuda": "CUDA0",
    "rocm": "ROCm0",
    "vulkan": "Vulkan0",
    "metal": "MTL0",
    "sycl": "SYCL0",
}
_GIB: Final = 2**30


def sheet_ceilings(sheet: Sheet, *, host: Sheet | None = None, fitted: Coefficients | None = None) -> Ceilings:
    """Ceilings of the sheet's processor, with a CPU's sheet as `host` where layers may stay in main memory.

    Raises BadInputError for a sheet without a compute rate.
    """
    known = fitted or load_coefficients()
    sheets = (sheet,) if host is None or sheet.kind == "cpu" else (host, sheet)
    return Ceilings(
        source="data sheet",
        machine=sheet.name,
        summary=" with ".join(each.title or each.name for each in reversed(sheets)),
        devices=tuple(_roofs(each) for each in sheets),
        formats=tuple(figure for each in sheets for figure in _formats(each, known)),
        attention=tuple(figure for each in sheets for figure in _attention(each, known)),
        fixed=tuple(figure for each in sheets for figure in _fixed(each, known)),
        links=_links(sheets),
        doubts=tuple(text for each in sheets for text in (each.note, _name_unconfirmed(each)) if text),
    )


def device_name(sheet: Sheet) -> str:
    """How llama.cpp would list the processor."""
    return _DEVICE_NAMES[sheet.backend]


def _name_unconfirmed(sheet: Sheet) -> str:
    if not sheet.unconfirmed:
        return ""
    return f"No public page was found for these figures of {sheet.title or sheet.name}: {', '.join(sheet.unconfirmed)}."


def _roofs(sheet: Sheet) -> DeviceCeiling:
    memory = sheet.memory_gib
    return DeviceCeiling(
        device=device_name(sheet),
        bandwidth=Figure(value=sheet.bandwidth_gbs.value * 1e9),
        compute=Figure(value=sheet.tflops * 1e12),
        memory_bytes=round(memory.value * _GIB) if memory else None,
    )


def _formats(sheet: Sheet, fitted: Coefficients) -> Iterator[FormatCeiling]:
    for form in FORMATS:
        for routed in (False,) if sheet.kind == "cpu" else (False, True):
            for threads, share in _thread_counts(sheet):
                for tokens in TOKENS:
                    yield FormatCeiling(
                        device=device_name(sheet),
                        format=form,
                        threads=threads,
                        tokens=tokens,
                        routed=routed,
                        seconds_per_byte=Figure(
                            value=_weight_seconds(sheet, form, fitted, tokens=tokens, share=share, routed=routed),
                            spread=_spread(sheet, tokens, fitted),
                        ),
                    )


def _weight_seconds(sheet: Sheet, form: str, fitted: Coefficients, *, tokens: int, share: float, routed: bool) -> float:
    operation = multiply_seconds(sheet, form, fitted, share=share, routed=routed)
    rows = padded_tokens(sheet, tokens) if routed else tokens
    return read_seconds(sheet, form, fitted) + 2 * _elements_per_byte(form) * rows * operation


def _attention(sheet: Sheet, fitted: Coefficients) -> Iterator[AttentionCeiling]:
    for cache, bits in CACHE_TYPES.items():
        for flash in (True, False):
            looking = look_seconds(sheet, fitted, flash_attn=flash) * bits / 16 / GROUPED_HEADS
            for head in (0,) if flash else HEAD_SIZES:
                for threads, share in _thread_counts(sheet):
                    several = attend_seconds(sheet, fitted, flash_attn=flash, head_size=head or 128, share=share)
                    for tokens, value in ((1, looking), (TOKENS[-1], several)):
                        yield AttentionCeiling(
                            device=device_name(sheet),
                            cache_type_k=cache,
                            cache_type_v=cache,
                            flash_attn=flash,
                            threads=threads,
                            tokens=tokens,
                            head_size=head,
                            seconds_per_op=Figure(value=value, spread=_spread(sheet, tokens, fitted)),
                        )


def _fixed(sheet: Sheet, fitted: Coefficients) -> Iterator[FixedCeiling]:
    for threads, _ in _thread_counts(sheet):
        for tokens in TOKENS:
            layer = layer_seconds(sheet, fitted) + move_seconds(sheet, fitted, tokens=tokens, width=LAYER_WIDTH)
            yield FixedCeiling(
                device=device_name(sheet),
                threads=threads,
                tokens=tokens,
                step_s=Figure(value=0.0),
                layer_s=Figure(value=layer, spread=_spread(sheet, tokens, fitted)),
                width=LAYER_WIDTH,
            )


def _links(sheets: tuple[Sheet, ...]) -> tuple[LinkCeiling, ...]:
    return tuple(
        LinkCeiling(
            device=device_name(sheet),
            bytes_per_s=Figure(value=1 / link_seconds(sheet.link_gbs.value), spread=_LINK_SPREAD),
            latency_s=Figure(value=LINK_LATENCY_S, spread=_LINK_SPREAD),
        )
        for sheet in sheets
        if sheet.link_gbs is not None
    )


def link_seconds(link_gbs: float) -> float:
    """Seconds per byte of mapped weights over a link of that raw rate, 10⁹ bytes/s: copied twice, and the slower way counts."""
    return 1e-9 / min(link_gbs * LINK_EFFICIENCY, STAGING_GBS)


def _thread_counts(sheet: Sheet) -> list[tuple[int, float]]:
    """(threads, share of the cores); 0 threads where they mean nothing."""
    if sheet.kind != "cpu" or sheet.cores is None:
        return [(0, 1.0)]
    cores = max(1, round(sheet.cores.value))
    counts = {cores} | {2**power for power in range(10) if 2**power < cores}
    return [(count, count / cores) for count in sorted(counts)]


def _elements_per_byte(form: str) -> float:
    kind = next(each for each in TENSOR_TYPES.values() if each.name == form)
    return kind.block / kind.size


def _spread(sheet: Sheet, tokens: int, fitted: Coefficients) -> float:
    return fitted.spread[spread_name("decode" if tokens <= TOKENS[3] else "prefill", sheet)]
