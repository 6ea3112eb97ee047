"""Which models are written and which batches timed: what a calibration consists of.

Each format is timed in a model of the size that people run (its weights do not stay in a core's own cache) while few tokens are
computed at once, and in a smaller one where computing binds and not reading: of a few layers for one thread, to save time, and
of twelve for all, since prefill loses up to a fifth of its speed to weights that are not in a cache. One format is timed in
further sizes: narrow models of almost no bytes tell what a layer and a step cost, others what width and bytes add to that.
The same format alone is timed at the thread counts between one and all cores, and beyond: the others follow its curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

import msgspec

from tuner.calibration.synthetic import Shape, count_bytes
from tuner.memory.record import HOST

FORMATS: Final = (
    "Q8_0", "F16", "Q4_0", "Q4_K", "Q6_K", "Q5_K", "Q5_0", "Q4_1", "Q5_1", "BF16", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K", "MXFP4",
)  # fmt: skip
"""Tensor formats that are calibrated, those that matter most first."""

DEVICE_FORMATS: Final = FORMATS[:5]
"""Formats that are calibrated on each device; others go by the nearest of these."""

REFERENCE: Final = FORMATS[0]
"""The format that tells layer, step and byte apart, and how speed grows with the threads."""

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

LARGE_BYTES: Final = 250 * 10**6
"""Weights of a model that times reading. Up to 200 MB a part was seen to come from a cache that all cores of a server share,
twice as fast and differently from hour to hour; larger ones all came from memory.
"""

SIZES: Final = tuple(size * 10**6 for size in (50, 90, 150, 600))
"""Weights of further models of the reference, for how reading depends on that; the first is that of all other formats."""

FEW: Final = (1, 2, 8, 16)
"""Tokens at once while reading binds."""
ALONE: Final = FEW[:2]
"""The same for one thread among others, whose figures in between are not worth the time."""
MANY: Final = (64, 256)
"""Tokens at once while computing binds."""
DEVICE_MANY: Final = (64, 512)
"""The same on a device, which is not busy before."""
LOOKS: Final = (1, 16, 64, 256)
"""Tokens at once for attention; from 64 on llama.cpp's flash attention works in tiles on the CPU."""

CELLS: Final = 256
"""llama.cpp's attention counts the cache in steps of so many cells; depths are such that no step is half full."""

WIDTH: Final = 768
"""Hidden size of most models: small models are about as wide, and narrow matrices keep threads less busy than wide ones."""


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
    sizes: bool = False
    """Tells how reading depends on the size of the model, and not what a byte costs."""
    cases: tuple[Case, ...]
    """What is timed."""
    rounds: int = 3
    """Times that every case is visited."""
    visit_s: float = 0.04
    """A case is repeated for at least this long each visit, s."""
    device: str = HOST
    """Where all layers are."""
    device_number: int = 0
    """Of the device, in llama.cpp's order of those that take layers."""
    cache_stays: bool = False
    """The KV cache stays in main memory while the layers are on the device."""


def choose_threads(usable: int, physical: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(thread counts for every figure, those for the reference alone): one and all cores; powers of two, and all threads."""
    cores = max(1, min(usable, physical))
    main = {1, cores if cores > 1 else usable}
    between = {2**power for power in range(12) if 2**power < cores} | {usable}
    return tuple(sorted(main)), tuple(sorted(between - main))


def plan_probes(
    threads: Sequence[int], *, between: Sequence[int] = (), formats: Sequence[str] = FORMATS, scale: float = 1.0
) -> tuple[Probe, ...]:
    """All probes of the processor, in an order in which a drift of the machine hits no format alone.

    `between` are thread counts that only the reference is timed at. `scale` makes models smaller, for tests.
    """
    every = sorted((*threads, *between))
    probes = []
    for size, cache in _list_histories():
        counts = every if (size, cache) == (HEAD_SIZES[0], CACHES[0]) else threads
        probes.append(_time_history(cache, size, counts))
    probes += _time_reference(every, scale=scale)
    probes += [_time_size(REFERENCE, threads, n_bytes=size, scale=scale) for size in SIZES]
    for form in formats:
        counts = every if form == REFERENCE else threads
        probes.append(_time_large(form, counts, n_bytes=LARGE_BYTES, n_ff=2048, scale=scale))
        if form != REFERENCE:
            probes.append(_time_size(form, threads[-1:], n_bytes=SIZES[0], scale=scale, few=(FEW[0], FEW[-2])))
        probes.append(_time_small(form, counts[:1], n_layer=4, n_ff=2048, scale=scale))
        probes.append(_time_small(form, counts[1:], n_layer=12, n_ff=2048, scale=scale))
    return tuple(probe for probe in probes if probe.cases)


def plan_device(
    device: str, number: int, *, n_bytes: float = LARGE_BYTES, formats: Sequence[str] = DEVICE_FORMATS, scale: float = 1.0
) -> tuple[Probe, ...]:
    """All probes of one device that takes layers: all of them lie there. `n_bytes`: of a model that times reading."""
    probes = [_time_history(cache, size, (1,)) for size, cache in _list_histories() if size <= 128 and cache in CACHES[:3]]
    probes += _time_reference((1,), scale=scale, many=DEVICE_MANY, n_bytes=n_bytes)
    probes += _time_link(scale)
    for form in formats:
        probes.append(_time_large(form, (1,), n_bytes=n_bytes, n_ff=2048, scale=scale))
        probes.append(_time_small(form, (1,), n_layer=6, n_ff=2048, scale=scale, many=DEVICE_MANY))
    place = {"device": device, "device_number": number}
    return tuple(
        msgspec.structs.replace(probe, title=f"{device}: {probe.title}", rounds=2, cases=_fill_cells(probe), **place)
        for probe in probes
        if probe.cases
    )


def _fill_cells(probe: Probe) -> tuple[Case, ...]:
    """Nobody tells whether a device skips what the mask hides: so few cells are hidden that it makes no difference."""
    if probe.history or probe.cache_stays:
        return probe.cases
    return tuple(msgspec.structs.replace(case, depth=max(0, CELLS - case.tokens)) for case in probe.cases)


def _list_histories() -> Iterator[tuple[int, tuple[str, str, bool]]]:
    for size in HEAD_SIZES:
        for cache in CACHES if size == 128 else CACHES[:3]:
            yield size, cache


def _time_reference(
    threads: Sequence[int], *, scale: float, many: Sequence[int] = MANY, n_bytes: float = LARGE_BYTES
) -> list[Probe]:
    """Pairs of as many bytes in few and in many layers, so that what layers cost is not mistaken for what bytes do."""
    return [
        *(_time_narrow(threads, n_layer=count) for count in (2, 16)),
        _time_small(REFERENCE, threads, n_layer=10, n_ff=2048, scale=scale, many=many),
        _time_small(REFERENCE, threads, n_layer=24, n_ff=512, scale=scale, many=many),
        _time_large(REFERENCE, threads, n_bytes=n_bytes, n_ff=512, scale=scale),
    ]


def _time_narrow(threads: Sequence[int], *, n_layer: int) -> Probe:
    """Almost nothing but what layers and steps cost by themselves. Wider ones would be read out of a core's own cache, at a
    speed that no other model has.
    """
    cases = tuple(Case(tokens=1, depth=0, threads=count) for count in threads)
    title = f"cost of a layer and a step, {n_layer} layers"
    return Probe(title=title, shape=_make_narrow(n_layer), cases=cases, visit_s=0.02)


def _time_link(scale: float) -> list[Probe]:
    """A wide model, whose hidden state is long, and a narrow one whose cache stays behind, so that each layer crosses.

    The wide one is small enough to be read out of a cache, so only batches that compute are timed with it.
    """
    shape = Shape(
        n_layer=2, n_embd=max(WIDTH + 256, round(2048 * scale) // 256 * 256), n_head=1, n_head_kv=1, head_size=64, n_ff=256,
        n_vocab=256, format=REFERENCE,
    )  # fmt: skip
    wide = tuple(Case(tokens=n, depth=0, threads=1) for n in DEVICE_MANY)
    return [
        Probe(title="the way there, for much data", shape=shape, cases=wide),
        Probe(
            title="the way there, for little data",
            shape=_make_narrow(16),
            cases=(Case(tokens=1, depth=0, threads=1),),
            cache_stays=True,
        ),
    ]


def _time_large(form: str, threads: Sequence[int], *, n_bytes: float, n_ff: int, scale: float) -> Probe:
    """As many layers as make up so many bytes, whatever the format."""
    one = make_shape(form, 1, n_ff)
    n_layer = max(1, round(scale * n_bytes / count_bytes(form, one.layer_elements)))
    few = {count: ALONE if count == 1 < len(threads) else FEW for count in threads}
    cases = tuple(Case(tokens=n, depth=0, threads=count) for count in threads for n in few[count])
    title = f"{form}: reading, {n_layer} layers"
    return Probe(title=title, shape=make_shape(form, n_layer, n_ff), cases=cases)


def _time_size(form: str, threads: Sequence[int], *, n_bytes: float, scale: float, few: Sequence[int] = FEW) -> Probe:
    probe = _time_large(form, threads, n_bytes=n_bytes, n_ff=2048, scale=scale)
    cases = tuple(case for case in probe.cases if case.tokens in few)
    return msgspec.structs.replace(probe, sizes=True, cases=cases, rounds=2)


def _time_small(
    form: str, threads: Sequence[int], *, n_layer: int, n_ff: int, scale: float, many: Sequence[int] = MANY
) -> Probe:
    cases = tuple(Case(tokens=n, depth=0, threads=count) for count, n in product(threads, many))
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
    """A model of the usual width."""
    return Shape(n_layer=n_layer, n_embd=WIDTH, n_head=12, n_head_kv=4, head_size=64, n_ff=n_ff, n_vocab=1024, format=form)


def _make_narrow(n_layer: int) -> Shape:
    return Shape(n_layer=n_layer, n_embd=64, n_head=1, n_head_kv=1, head_size=64, n_ff=64, n_vocab=64, format=REFERENCE)
