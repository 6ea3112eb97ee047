"""Figures at thread counts that were timed for the reference alone: the others are taken to follow its curve.

How speed grows with the threads is a matter of the machine far more than of the format: reading stops growing when memory is
busy, computing goes on to the last core, and threads beyond the cores help neither. A straight line between one thread and all
of them would miss the bend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, TypeVar

import msgspec

from tuner.calibration.fitting import Fit
from tuner.calibration.plan import CACHES, HEAD_SIZES, REFERENCE
from tuner.roofline.ceilings import AttentionCeiling, Figure, FormatCeiling

CURVE_SPREAD: Final = 0.1
"""Added to a figure that follows another one's curve: kernels that compute more an element bend later. Assumed."""

FLAT: Final = 0.05
"""A reference that gains less than this from one thread to all of them says nothing of where another one bends."""

T = TypeVar("T", FormatCeiling, AttentionCeiling)
Curve = dict[int, float]
"""Seconds by threads."""


def fill_threads(fit: Fit, threads: Sequence[int]) -> Fit:
    """The fit with every format and cache at every one of `threads`, as far as the reference was timed there."""
    return msgspec.structs.replace(
        fit,
        formats=_fill(
            fit.formats,
            threads,
            kind=lambda each: (each.format, each.tokens),
            reference=lambda each: (REFERENCE, each.tokens),
            value=lambda each: each.seconds_per_byte,
            make=lambda each, count, figure: msgspec.structs.replace(each, threads=count, seconds_per_byte=figure),
        ),
        attention=_fill(
            fit.attention,
            threads,
            kind=_kind_of_attention,
            reference=lambda each: (*CACHES[0], HEAD_SIZES[0], each.tokens),
            value=lambda each: each.seconds_per_op,
            make=lambda each, count, figure: msgspec.structs.replace(each, threads=count, seconds_per_op=figure),
        ),
    )


def follow_curve(reference: Curve, mine: Curve, threads: int) -> float:
    """Between (and beyond) the two thread counts of `mine`, as far along as `reference` is there; on logarithmic axes."""
    first, last = min(mine), max(mine)
    gain = math.log(reference[first] / reference[last])
    if abs(gain) < FLAT:
        along = math.log(threads / first) / math.log(last / first)
    else:
        along = math.log(reference[first] / reference[threads]) / gain
    return mine[first] * math.exp(along * math.log(mine[last] / mine[first]))


def _kind_of_attention(each: AttentionCeiling) -> tuple[object, ...]:
    return each.cache_type_k, each.cache_type_v, each.flash_attn, each.head_size, each.tokens


def _fill(
    rows: Sequence[T],
    threads: Sequence[int],
    *,
    kind: Callable[[T], tuple[object, ...]],
    reference: Callable[[T], tuple[object, ...]],
    value: Callable[[T], Figure],
    make: Callable[[T, int, Figure], T],
) -> tuple[T, ...]:
    groups = {key: list(each) for key, each in groupby(sorted(rows, key=kind), key=kind)}
    curves = {key: {each.threads: value(each).value for each in group} for key, group in groups.items()}
    filled = list(rows)
    for key, group in groups.items():
        guide: Curve = curves.get(reference(group[0]), {})
        own: Curve = curves[key]
        model = max(group, key=lambda each: each.threads)
        if len(own) < 2 or min(*guide.values(), *own.values()) <= 0:
            continue
        for count in threads:
            if count in own or not guide.keys() >= {count, *own}:
                continue
            figure = Figure(
                value=follow_curve(guide, own, count),
                spread=math.hypot(value(model).spread, CURVE_SPREAD),
                marked=value(model).marked,
            )
            filled.append(make(model, count, figure))
    return tuple(filled)
