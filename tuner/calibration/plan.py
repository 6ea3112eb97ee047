"""Which models are written and which batches timed: what a calibration of the processor consists of.

Each format is timed in a model of the size that people run (its weights do not stay in a core's own cache) while few tokens are
computed at once, and in a smaller one where computing binds and not reading: of a few layers for one thread, to save time, and
of twelve for all, since prefill loses up to a fifth of its speed to weights that are not in a cache. One format is timed in
further sizes and depths, which tell the cost of a layer, of a step and of a byte apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import msgspec

from tuner.calibration.synthetic import Shape, count_bytes

FORMATS: Final = (
    "Q8_0", "F16", "Q4_0", "Q4_K", "Q6_K", "Q5_K", "Q5_0", "Q4_1", "Q5_1", "BF16", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K", "MXFP4",
)  # fmt: skip
"""Tensor formats that are calibrated, those that matter most first."""

REFERENCE: Final = FORMATS[0]
"""The format that tells layer, step and byte apart."""

CACHES: Final = (
    ("f16", "f16", True),
    ("f16", "f16", False),
    ("q8_0", "q8_0", True),
    ("q4_0", "q4_0", True),
    ("q8_0", "f16", False),
)
"""Types of K and V, and flash attention: what is calibrated. Other types go by the nearest of these."""

HEAD_SIZES: Final = (64, 128, 256)
"""Lengths of a key: the short ones do not fill some vector units. The first is that of the models that time weights."""

LARGE_BYTES: Final = 140 * 10**6
"""Weights of a model that times reading; 50 MB were seen to be read out of a shared cache four times as fast as 100 MB."""

FEW: Final = (1, 2, 8)
"""Tokens at once while reading binds."""
MANY: Final = (16, 64, 256)
"""Tokens at once while computing binds."""
LOOKS: Final = (1, 16, 64, 256)
"""Tokens at once for attention; from 64 on llama.cpp's flash attention works in tiles on the CPU."""

CELLS: Final = 256
"""llama.cpp's attention counts the cache in steps of so many cells; depths are such that no step is half full."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One batch to time."""

    tokens: int
    """Tokens computed at once."""
    depth: int
    """Tokens in the cache before it."""
    threads: int
    """Threads at work."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One model, loaded once, and all that is timed with it."""

    title: str
    """What it is for, for the user to read while it runs."""
    shape: Shape
    """The model."""
    cache: tuple[str, str, bool] = CACHES[0]
    """Types of K and V, and flash attention."""
    history: bool = False
    """Tells the cost of the history, and not that of weights."""
    cases: tuple[Case, ...]
    """What is timed."""
    rounds: int = 3
    """Times that every case is visited."""
    visit_s: float = 0.04
    """A case is repeated for at least this long each visit, s."""


def plan_probes(threads: Sequence[int], *, formats: Sequence[str] = FORMATS, scale: float = 1.0) -> tuple[Probe, ...]:
    """All probes of one calibration, in an order in which a drift of the machine hits no format alone.

    `scale` makes models smaller, for tests.
    """
    probes = [_time_history(cache, size, threads) for size in HEAD_SIZES for cache in (CACHES if size == 128 else CACHES[:3])]
    probes += [
        *(_time_small(REFERENCE, threads, n_layer=count, n_ff=256, scale=scale) for count in (6, 24)),
        _time_large(REFERENCE, threads, n_bytes=LARGE_BYTES, n_ff=512, scale=scale),
        _time_large(REFERENCE, threads, n_bytes=2 * LARGE_BYTES, n_ff=2048, scale=scale),
    ]
    for form in formats:
        probes.append(_time_large(form, threads, n_bytes=LARGE_BYTES, n_ff=2048, scale=scale))
        probes.append(_time_small(form, threads[:1], n_layer=4, n_ff=2048, scale=scale))
        probes.append(_time_small(form, threads[1:], n_layer=12, n_ff=2048, scale=scale))
    return tuple(probe for probe in probes if probe.cases)


def _time_large(form: str, threads: Sequence[int], *, n_bytes: int, n_ff: int, scale: float) -> Probe:
    """As many layers as make up so many bytes, whatever the format."""
    one = make_shape(form, 1, n_ff)
    n_layer = max(1, round(scale * n_bytes / count_bytes(form, one.layer_elements)))
    cases = tuple(Case(tokens=n, depth=0, threads=count) for count, n in product(threads, FEW))
    title = f"{form}: reading, {n_layer} layers"
    return Probe(title=title, shape=make_shape(form, n_layer, n_ff), cases=cases)


def _time_small(form: str, threads: Sequence[int], *, n_layer: int, n_ff: int, scale: float) -> Probe:
    cases = tuple(Case(tokens=n, depth=0, threads=count) for count, n in product(threads, MANY))
    title = f"{form}: computing, {n_layer} layers"
    return Probe(title=title, shape=make_shape(form, max(1, round(n_layer * scale)), n_ff), cases=cases, rounds=2, visit_s=0.01)


def _time_history(cache: tuple[str, str, bool], head_size: int, threads: Sequence[int]) -> Probe:
    """Each batch ends at the same two lengths."""
    cases = tuple(
        Case(tokens=n, depth=end - n, threads=count)
        for count, n, end in product(threads, LOOKS, (CELLS, 4 * CELLS))
        if count > 1 or n < LOOKS[-1]
    )
    flash = "with" if cache[2] else "without"
    title = f"history: {cache[0]}/{cache[1]}, heads of {head_size}, {flash} flash attention"
    heads = 512 // head_size
    shape = msgspec.structs.replace(
        make_shape(REFERENCE, 2, 256), n_embd=512, n_head=heads, n_head_kv=heads // 2, head_size=head_size
    )
    return Probe(title=title, shape=shape, cache=cache, history=True, cases=cases, rounds=2, visit_s=0.02)


def make_shape(form: str, n_layer: int, n_ff: int) -> Shape:
    """As wide as small models are: narrow matrices keep the threads less busy than wide ones."""
    return Shape(n_layer=n_layer, n_embd=768, n_head=12, n_head_kv=4, head_size=64, n_ff=n_ff, n_vocab=1024, format=form)
