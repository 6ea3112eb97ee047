"""Looks figures up: between calibrated token counts and threads, and beyond them with a note and a wider spread.

A figure that stands in for one that was not calibrated says so in `marked`; nothing here guesses in silence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, TypeVar

import msgspec

from tuner.errors import BadInputError
from tuner.memory.record import HOST
from tuner.roofline.ceilings import Ceilings, DeviceCeiling, Figure, LinkCeiling
from tuner.roofline.work import TILE, bits_of
from tuner.runconfig import RunConfig

T = TypeVar("T")
Beyond = Literal["level", "line", "origin"]
"""What comes after the largest calibrated token count: no change, or the line through the last two; where there is one only,
that stays as it is (line) or grows with the tokens (origin)."""

STAND_IN_SPREAD: Final = 0.25
"""Added where another format's or cache type's figure stands in: kernels of like formats differ by about that. Assumed; Q4_0
and Q4_1 on a CPU that repacks one of them differ by more."""

THREADS_SPREAD: Final = 0.3
"""Added outside the calibrated threads: each thread above the cores may halve the speed or do no harm."""

BY_ROWS: Final = TILE // 4
"""Tokens at once that no kernel works through in tiles."""

_CACHE_BITS: Final = {
    "f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5,
}  # fmt: skip

Points = tuple[tuple[int, Figure], ...]
"""Figures by token count, ascending."""
Family = dict[int, Points]
"""Points by threads."""
CacheKey = tuple[str, str, bool]
"""Type of K, type of V, flash attention."""


class Figures:
    """All figures of one machine, ready to be asked. Holds nothing that changes but what it has answered already."""

    def __init__(self, ceilings: Ceilings) -> None:
        self._formats: dict[str, dict[str, Family]] = {}
        self._routed: dict[str, dict[str, Family]] = {}
        self._attention: dict[str, dict[CacheKey, dict[int, Family]]] = {}
        self._steps: dict[str, Family] = {}
        self._layers: dict[str, Family] = {}
        self._devices = {each.device: each for each in ceilings.devices}
        self._readings: dict[str, dict[str, dict[int, Family]]] = {}
        self._links = {each.device: each for each in ceilings.links}
        self._widths = {each.device: each.width for each in ceilings.fixed}
        self._answers: dict[tuple[object, ...], Figure] = {}
        self._collect(ceilings)

    def _collect(self, ceilings: Ceilings) -> None:
        for f in ceilings.formats:
            kept = self._routed if f.routed else self._formats
            _add(kept.setdefault(f.device, {}).setdefault(f.format, {}), f.threads, f.tokens, f.seconds_per_byte)
        for a in ceilings.attention:
            key = (a.cache_type_k, a.cache_type_v, a.flash_attn)
            heads = self._attention.setdefault(a.device, {}).setdefault(key, {})
            _add(heads.setdefault(a.head_size, {}), a.threads, a.tokens, a.seconds_per_op)
        for r in ceilings.readings:
            counts = self._readings.setdefault(r.device, {}).setdefault(r.format, {})
            _add(counts.setdefault(r.threads, {}), r.tokens, r.n_bytes, r.factor)
        for x in ceilings.fixed:
            _add(self._steps.setdefault(x.device, {}), x.threads, x.tokens, x.step_s)
            _add(self._layers.setdefault(x.device, {}), x.threads, x.tokens, x.layer_s)

    def device(self, name: str) -> DeviceCeiling | None:
        """The device's two roofs; None: unknown."""
        return self._devices.get(name)

    def link(self, name: str) -> LinkCeiling | None:
        """The way to the device; None: unknown."""
        return self._links.get(name)

    def weight(self, device: str, form: str, threads: int, tokens: float, *, routed: bool = False) -> Figure:
        """Seconds per byte of weights for all `tokens` together; `routed`: of experts that a router chose, where these have
        figures of their own. Raises BadInputError without any figure for the device.
        """
        key = ("weight", device, form, threads, tokens, routed)
        if key not in self._answers:
            own = self._routed.get(device) if routed else None
            known = own or _require(self._formats.get(device), device)
            nearest = form if form in known else min(known, key=lambda each: _format_distance(each, form))
            figure = look_up(known[nearest], threads, tokens, beyond="origin")
            note = f"{form} was not calibrated: {nearest} stands in for it."
            self._answers[key] = figure if nearest == form else widen(figure, STAND_IN_SPREAD, note)
        return self._answers[key]

    def reading(self, device: str, form: str, threads: int, tokens: float, n_bytes: float) -> Figure:
        """What a model of `n_bytes` there takes for each byte, relative to `weight`; 1 where nothing is known of that.

        Of the nearest format and thread count; beyond the calibrated sizes as at the last one.
        """
        key = ("reading", device, form, threads, tokens, n_bytes)
        if key not in self._answers:
            known = self._readings.get(device) or {form: {0: {}}}
            counts = known[form if form in known else min(known, key=lambda each: _format_distance(each, form))]
            sizes = counts[min(counts, key=lambda each: abs(each - threads))]
            points = tuple((n, interpolate(each, n_bytes, beyond="level")) for n, each in sorted(sizes.items()))
            self._answers[key] = interpolate(points, tokens, beyond="level") if points else Figure(value=1.0)
        return self._answers[key]

    def attention(
        self, device: str, config: RunConfig, *, flash_attn: bool, threads: int, tokens: float, head_size: int = 0
    ) -> Figure:
        """Seconds per operation of attention. Raises BadInputError without any figure for the device.

        Between calibrated head sizes the smaller one counts: what does not fill a vector unit is computed one by one. Where the
        processor's flash attention meets K and V of two types, it works row by row whatever the batch
        (ggml-cpu/ops.cpp, ggml_compute_forward_flash_attn_ext_f16), and adding rows of V up is what takes the time: such a
        pair goes by V's type alone, of which a large batch of unquantised rows would be computed in tiles.
        """
        wanted: CacheKey = (config.cache_type_k, config.cache_type_v, flash_attn)
        key = ("attention", device, wanted, threads, tokens, head_size)
        if key not in self._answers:
            known = _require(self._attention.get(device), device)
            by_rows = wanted not in known and flash_attn and device == HOST and config.cache_type_k != config.cache_type_v
            like: CacheKey = (config.cache_type_v, config.cache_type_v, True) if by_rows else wanted
            nearest = wanted if wanted in known else min(known, key=lambda each: _cache_distance(each, like))
            heads = known[nearest]
            head = max((each for each in heads if each <= head_size), default=min(heads))
            figure = look_up(heads[head], threads, min(tokens, BY_ROWS) if by_rows else tokens, beyond="level")
            note = f"{_name_cache(wanted)} was not calibrated: {_name_cache(nearest)} stands in for it."
            self._answers[key] = figure if nearest == wanted else widen(figure, STAND_IN_SPREAD, note)
        return self._answers[key]

    def step(self, device: str, threads: int, tokens: float) -> Figure:
        """Seconds that a step costs whatever the model. Raises BadInputError without any figure for the device."""
        return look_up(_require(self._steps.get(device), device), threads, tokens, beyond="line")

    def layer(self, device: str, threads: int, tokens: float, width: int) -> Figure:
        """Seconds that a layer of `width` elements costs beside weights and history; what grows with the tokens grows with the
        width too. Raises BadInputError without any figure for the device.
        """
        family = _require(self._layers.get(device), device)
        first, whole = (look_up(family, threads, n, beyond="line") for n in (1, tokens))
        growth = (whole.value - first.value) * width / max(1, self._widths[device])
        return msgspec.structs.replace(whole, value=max(0.0, first.value + growth))


def look_up(family: Family, threads: int, tokens: float, *, beyond: Beyond) -> Figure:
    """The figure at these threads and tokens.

    Outside the calibrated threads, slower by the ratio of the two counts: fewer threads do less at once, and more threads than
    were worth calibrating wait for each other.
    """
    counts = sorted(family)
    if counts == [0]:
        return interpolate(family[0], tokens, beyond=beyond)
    counts = [count for count in counts if count]
    wanted = threads or counts[-1]
    low = max((count for count in counts if count <= wanted), default=counts[0])
    high = min((count for count in counts if count >= wanted), default=counts[-1])
    if low != high:
        both = (
            (low, interpolate(family[low], tokens, beyond=beyond)),
            (high, interpolate(family[high], tokens, beyond=beyond)),
        )
        return interpolate(both, wanted, beyond="level")
    figure = interpolate(family[low], tokens, beyond=beyond)
    if wanted == low:
        return figure
    slower = msgspec.structs.replace(figure, value=figure.value * max(wanted / low, low / wanted))
    return widen(slower, THREADS_SPREAD, f"{wanted} threads are outside what was calibrated ({counts[0]} to {counts[-1]}).")


def interpolate(points: Points, at: float, *, beyond: Beyond) -> Figure:
    """Between two points a power law (a straight line on logarithmic axes), a plain straight line where a value is 0."""
    if at <= points[0][0]:
        return points[0][1]
    for low, high in pairwise(points):
        if at <= high[0]:
            return _between(low, high, at)
    if beyond == "level" or (beyond == "line" and len(points) == 1):
        return points[-1][1]
    return _extend(points[-2:] if len(points) > 1 else ((0, Figure(value=0.0)), *points), at)


def widen(figure: Figure, spread: float, note: str) -> Figure:
    """The same figure with more doubt and the reason for it; an earlier reason stays in front."""
    marked = f"{figure.marked} {note}".strip() if note not in figure.marked else figure.marked
    return Figure(value=figure.value, spread=math.hypot(figure.spread, spread), marked=marked)


def _between(low: tuple[int, Figure], high: tuple[int, Figure], at: float) -> Figure:
    (x0, a), (x1, b) = low, high
    if a.value > 0 and b.value > 0:
        share = math.log(at / x0) / math.log(x1 / x0)
        value = math.exp(math.log(a.value) * (1 - share) + math.log(b.value) * share)
    else:
        share = (at - x0) / (x1 - x0)
        value = a.value * (1 - share) + b.value * share
    nearer = a if share < 0.5 else b
    return Figure(value=value, spread=max(a.spread, b.spread), marked=nearer.marked)


def _extend(points: Sequence[tuple[int, Figure]], at: float) -> Figure:
    """The line through two points, never falling; one point alone counts as the line through the origin."""
    (x0, a), (x1, b) = points
    slope = max(0.0, (b.value - a.value) / (x1 - x0))
    return msgspec.structs.replace(b, value=b.value + slope * (at - x1))


def _add(family: Family, threads: int, tokens: int, figure: Figure) -> None:
    family[threads] = tuple(sorted((*family.get(threads, ()), (tokens, figure)), key=lambda point: point[0]))


def _require(known: T | None, device: str) -> T:
    if not known:
        raise BadInputError(f"There are no figures for the device {device}.", "Calibrate again, or offload no layers to it.")
    return known


def _format_distance(known: str, wanted: str) -> tuple[bool, float]:
    return _kind(known) != _kind(wanted), abs(math.log(bits_of(known) / bits_of(wanted)))


def _kind(form: str) -> str:
    if form in {"F32", "F16", "BF16"}:
        return "plain"
    if form.startswith("IQ"):
        return "table"
    return "super-blocks" if form.endswith("_K") else "blocks"


def _cache_distance(known: CacheKey, wanted: CacheKey) -> tuple[bool, float]:
    apart = sum(
        abs(math.log(_CACHE_BITS.get(a, 16.0) / _CACHE_BITS.get(b, 16.0))) for a, b in zip(known[:2], wanted[:2], strict=True)
    )
    return known[2] != wanted[2], apart


def _name_cache(key: CacheKey) -> str:
    return f"a {key[0]}/{key[1]} cache {'with' if key[2] else 'without'} flash attention"
