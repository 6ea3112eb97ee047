"""From the times of batches to ceilings: least squares with the very sum that `tuner.roofline.timing` adds up again.

    step + layers × layer + weight bytes × byte(format) + attention operations × operation + crossings × link

For each device, thread count and number of tokens by itself, few tokens first: what a batch of one token told (the cost of the
output matrix, of a step, of a crossing) is known when larger ones are taken apart. Attention's figure is the difference between
two lengths of the history; with it known, the rest is linear. Errors count relative to the times.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tuner.calibration.attention import find_op, find_spread, fit_attention
from tuner.calibration.reading import fit_readings
from tuner.calibration.solving import solve
from tuner.calibration.timed import Timed
from tuner.memory.record import HOST
from tuner.roofline.ceilings import (
    AttentionCeiling,
    DeviceCeiling,
    Figure,
    FixedCeiling,
    FormatCeiling,
    LinkCeiling,
    ReadingCeiling,
)
from tuner.roofline.work import bits_of

SMALLEST_CROSSING: Final = 1e-13
"""Seconds a byte (10 TB/s) and seconds a crossing: a link is never taken to be faster."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one device."""

    formats: tuple[FormatCeiling, ...]
    """By format, threads and tokens."""
    attention: tuple[AttentionCeiling, ...]
    """By cache types, flash attention, threads and tokens."""
    fixed: tuple[FixedCeiling, ...]
    """By threads and tokens."""
    readings: tuple[ReadingCeiling, ...] = ()
    """By threads, tokens and size of the model; () where one size was timed only."""
    links: tuple[LinkCeiling, ...] = ()
    """The way to the device; () for the processor, and where no crossing was timed."""


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What smaller batches told already."""

    width: int
    """Hidden size that layers are told for."""
    op_s: float = 0.0
    """Seconds per operation of attention."""
    ones: dict[str, float] = {}
    """Format → seconds per byte of one token."""
    step: float = 0.0
    """Once a step, s."""
    layer: float = 0.0
    """Once a layer with one token, s."""
    crossing: float = 0.0
    """Each crossing, s."""
    crossed: float = 0.0
    """Each byte that crosses, s."""


def fit_ceilings(timed: Sequence[Timed], device: str = HOST) -> Fit:
    """The figures that explain the times best. Needs one format in several shapes at each number of tokens."""
    mine = [each for each in timed if each.device == device]
    attention = fit_attention(mine)
    by_threads: dict[int, list[Timed]] = defaultdict(list)
    for each in mine:
        if not (each.history or each.sizes):
            by_threads[each.threads].append(each)
    parts = [_fit_threads(here, attention, threads, device) for threads, here in sorted(by_threads.items())]
    return Fit(
        formats=tuple(each for part in parts for each in part.formats),
        attention=attention,
        fixed=tuple(each for part in parts for each in part.fixed),
        readings=fit_readings(
            [each for each in mine if each.sizes],
            [each for part in parts for each in part.formats],
            [each for part in parts for each in part.fixed],
            attention,
        ),
        links=tuple(each for part in parts for each in part.links),
    )


def fit_device(formats: Iterable[FormatCeiling], device: str = HOST, memory_bytes: int | None = None) -> DeviceCeiling:
    """A device's two roofs: the fastest reading with one token and multiplying with the most that any format reached."""
    known = [each for each in formats if each.seconds_per_byte.value > 0]
    reading = min((each for each in known if each.tokens == 1), key=lambda each: each.seconds_per_byte.value)
    most = max(each.tokens for each in known)
    computing = max((each for each in known if each.tokens == most), key=_rate)
    return DeviceCeiling(
        device=device,
        bandwidth=msgspec.structs.replace(reading.seconds_per_byte, value=1 / reading.seconds_per_byte.value),
        compute=msgspec.structs.replace(computing.seconds_per_byte, value=_rate(computing)),
        memory_bytes=memory_bytes,
    )


def _rate(ceiling: FormatCeiling) -> float:
    """Operations a second: two for each element and token."""
    return 2 * ceiling.tokens * 8 / bits_of(ceiling.format) / ceiling.seconds_per_byte.value


def _fit_threads(timed: Sequence[Timed], attention: Sequence[AttentionCeiling], threads: int, device: str) -> Fit:
    """All numbers of tokens at one thread count, those first that tell something about the others."""
    known = _Known(width=statistics.mode(each.shape.n_embd for each in timed))
    found: dict[int, dict[str, Figure]] = {}
    link: dict[str, Figure] = {}
    counts = sorted({each.tokens for each in timed})
    for tokens in counts if device == HOST else _take_turns(counts):
        here = [each for each in timed if each.tokens == tokens]
        known = msgspec.structs.replace(known, op_s=find_op(attention, threads, tokens))
        found[tokens] = _fit_place(here, known, _find_unknown(here, tokens, most=tokens == counts[-1]))
        known = _learn(known, found[tokens], tokens)
        link |= {name: figure for name, figure in found[tokens].items() if name in {"crossing", "crossed"}}
    step = found[counts[0]].get("step", Figure(value=0.0))
    return Fit(
        formats=tuple(
            FormatCeiling(
                device=device, format=name.removeprefix(_BYTE), threads=threads, tokens=tokens, seconds_per_byte=figure
            )
            for tokens, figures in sorted(found.items())
            for name, figure in figures.items()
            if name.startswith(_BYTE)
        ),
        attention=(),
        fixed=tuple(
            FixedCeiling(
                device=device,
                threads=threads,
                tokens=tokens,
                step_s=step,
                layer_s=figures["layer"],
                width=known.width,
            )
            for tokens, figures in sorted(found.items())
        ),
        links=_form_link(device, link),
    )


_BYTE: Final = "byte "
_NARROW: Final = "narrow layer"
"""What a layer costs that does nearly nothing: the least that any layer costs, and what tells a step apart from layers."""


def _take_turns(counts: Sequence[int]) -> list[int]:
    """On a device one token and the most take turns first: what a crossing costs, and what a byte does that crosses."""
    return [*3 * [counts[0], counts[-1]], *counts[1:-1]]


def _find_unknown(here: Sequence[Timed], tokens: int, *, most: bool) -> frozenset[str]:
    """What is looked for at this number of tokens beside bytes and layers.

    A step is told by one token; with more it is lost in their noise, and costs the same.
    """
    device = here[0].device
    names = {"layer"}
    if tokens == 1:
        names.add("step")
    if tokens == 1 and any(each.cache_stays for each in here):
        names.add("crossing")
    if most and device != HOST and len({each.shape.n_embd for each in here}) > 1:
        names.add("crossed")
    return frozenset(names)


def _learn(known: _Known, found: dict[str, Figure], tokens: int) -> _Known:
    values = {name: figure.value for name, figure in found.items()}
    if tokens == 1:
        ones = {name.removeprefix(_BYTE): value for name, value in values.items() if name.startswith(_BYTE)}
        known = msgspec.structs.replace(known, ones=ones, layer=values["layer"], crossing=values.get("crossing", 0.0))
    return msgspec.structs.replace(known, step=values.get("step", known.step), crossed=values.get("crossed", known.crossed))


def _fit_place(here: Sequence[Timed], known: _Known, unknown: frozenset[str]) -> dict[str, Figure]:
    """Figures by name; their spread is that of fits to each round by itself."""
    middle = _solve(here, [statistics.median_low(each.seconds) for each in here], known, unknown)
    rounds = range(min(len(each.seconds) for each in here))
    each_round = [_solve(here, [each.seconds[i] for each in here], known, unknown) for i in rounds]
    marks: dict[str, str] = {}
    for each in here:
        marks[each.shape.format] = marks.get(each.shape.format) or each.marked
    several = statistics.mode(each.shape.format for each in here)
    figures = {
        name: Figure(
            value=value,
            spread=find_spread([fit[name] for fit in each_round], value),
            marked=marks[name.removeprefix(_BYTE) if name.startswith(_BYTE) else several],
        )
        for name, value in middle.items()
    }
    least = figures.pop(_NARROW, figures["layer"])
    return figures | {"layer": max(figures["layer"], least, key=lambda each: each.value)}


def _solve(here: Sequence[Timed], seconds: Sequence[float], known: _Known, unknown: frozenset[str]) -> dict[str, float]:
    rows, targets = [], []
    for each, took in zip(here, seconds, strict=True):
        terms, told = _take_apart(each, known, unknown)
        rows.append(terms)
        targets.append(took - told)
    return solve(rows, targets, seconds)


def _take_apart(each: Timed, known: _Known, unknown: frozenset[str]) -> tuple[dict[str, float], float]:
    """How much of each unknown is in a batch, and the time of what is known already, s."""
    form, layers = each.shape.format, each.shape.n_layer
    told = each.operations * known.op_s
    apart = each.tokens > 1 and form in known.ones
    told += each.late_bytes * known.ones[form] if apart else 0.0
    terms = {_BYTE + form: float(each.whole_bytes + (0 if apart else each.late_bytes))}
    wider = each.shape.n_embd / known.width if each.tokens > 1 else 1.0
    terms["layer" if each.shape.n_embd >= known.width else _NARROW] = layers * wider
    told += layers * known.layer * (1 - wider)
    for name, amount, value in (
        ("step", 1.0, known.step),
        ("crossing", float(each.crossings), known.crossing),
        ("crossed", float(each.crossed_bytes), known.crossed),
    ):
        if name in unknown:
            terms[name] = amount
        else:
            told += amount * value
    return terms, told


def _form_link(device: str, found: dict[str, Figure]) -> tuple[LinkCeiling, ...]:
    if device == HOST or "crossing" not in found:
        return ()
    crossed = found.get("crossed", Figure(value=0.0))
    per_byte = max(SMALLEST_CROSSING, crossed.value)
    latency = msgspec.structs.replace(found["crossing"], value=max(SMALLEST_CROSSING, found["crossing"].value))
    speed = msgspec.structs.replace(crossed, value=1 / per_byte)
    return (LinkCeiling(device=device, bytes_per_s=speed, latency_s=latency),)
