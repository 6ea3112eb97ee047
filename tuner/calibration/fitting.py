"""From the times of batches to ceilings: least squares with the very sum that `tuner.roofline.timing` adds up again.

    step + layers × layer + weight bytes × byte(format) + attention operations × operation

For each thread count and number of tokens by itself. Attention's figure is the difference between two lengths of the history;
with it known, the rest is linear. Errors count relative to the times, since it is relative errors that matter.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tuner.calibration.plan import CACHES, HEAD_SIZES
from tuner.calibration.synthetic import Shape, count_bytes
from tuner.memory.record import HOST
from tuner.roofline.ceilings import AttentionCeiling, DeviceCeiling, Figure, FixedCeiling, FormatCeiling
from tuner.roofline.work import bits_of, count_seen
from tuner.runconfig import pad256

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SMALLEST_OP_S: Final = 1e-15
"""An attention figure is never below this: a difference of two times may be lost in their noise."""

Cache = tuple[str, str, bool]
Place = tuple[int, int]
"""Threads and tokens."""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of batch of one model, timed."""

    shape: Shape
    """The model."""
    cache: Cache
    """Types of K and V, and flash attention."""
    history: bool
    """Timed at several lengths of the history, for attention's sake."""
    tokens: int
    """Tokens computed at once; only the last gave logits."""
    depth: int
    """Tokens in the cache before it."""
    threads: int
    """Threads at work."""
    seconds: tuple[float, ...]
    """Time of one batch, for each round, s."""
    marked: str = ""
    """Why these times are doubtful."""

    @property
    def operations(self) -> float:
        """Of attention, as `tuner.roofline.work` counts them."""
        end = self.depth + self.tokens
        looks = count_seen(self.tokens, end, alone=self.tokens == 1) if self.cache[2] else self.tokens * pad256(end)
        return 4.0 * self.shape.n_head * self.shape.head_size * self.shape.n_layer * looks

    @property
    def layer_bytes(self) -> int:
        """Weights that meet every token."""
        return count_bytes(self.shape.format, self.shape.layer_elements) * self.shape.n_layer

    @property
    def output_bytes(self) -> int:
        """Weights that meet only the token with logits."""
        return count_bytes(self.shape.format, self.shape.output_elements)


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of the processor."""

    formats: tuple[FormatCeiling, ...]
    """By format, threads and tokens."""
    attention: tuple[AttentionCeiling, ...]
    """By cache types, flash attention, threads and tokens."""
    fixed: tuple[FixedCeiling, ...]
    """By threads and tokens."""


class _Solution(msgspec.Struct, frozen=True, kw_only=True):
    step: float
    layer: float
    bytes_: dict[str, float]


def fit_ceilings(timed: Sequence[Timed]) -> Fit:
    """The figures that explain the times best. Needs one format in three shapes at each number of tokens."""
    attention = fit_attention(timed)
    by_place: dict[Place, list[Timed]] = defaultdict(list)
    for each in timed:
        if not each.history:
            by_place[each.threads, each.tokens].append(each)
    formats: list[FormatCeiling] = []
    fixed: list[FixedCeiling] = []
    ones: dict[int, dict[str, Figure]] = {}
    for (threads, tokens), here in sorted(by_place.items()):
        weights, step, layer = _fit_place(here, _find_op(attention, threads, tokens), ones.get(threads, {}))
        if tokens == 1:
            ones[threads] = weights
        width = here[0].shape.n_embd
        fixed.append(FixedCeiling(device=HOST, threads=threads, tokens=tokens, step_s=step, layer_s=layer, width=width))
        formats += [
            FormatCeiling(device=HOST, format=form, threads=threads, tokens=tokens, seconds_per_byte=figure)
            for form, figure in weights.items()
        ]
    return Fit(formats=tuple(formats), attention=attention, fixed=tuple(fixed))


def fit_attention(timed: Sequence[Timed]) -> tuple[AttentionCeiling, ...]:
    """Seconds per operation, from batches of one model that differ in the length of their history only."""
    pairs: dict[tuple[Cache, int, int, int], list[Timed]] = defaultdict(list)
    for each in timed:
        if each.history:
            pairs[each.cache, each.shape.head_size, each.threads, each.tokens].append(each)
    return tuple(
        AttentionCeiling(
            device=HOST,
            cache_type_k=cache[0],
            cache_type_v=cache[1],
            flash_attn=cache[2],
            threads=threads,
            tokens=tokens,
            head_size=head_size,
            seconds_per_op=_find_slope(sorted(pair, key=lambda each: each.depth)),
        )
        for (cache, head_size, threads, tokens), pair in sorted(pairs.items())
        if len(pair) > 1
    )


def fit_device(formats: Iterable[FormatCeiling]) -> DeviceCeiling:
    """The processor's two roofs: the fastest reading and the fastest multiplying that any format reached."""
    known = [each for each in formats if each.seconds_per_byte.value > 0]
    reading = min((each for each in known if each.tokens == 1), key=lambda each: each.seconds_per_byte.value)
    computing = max(known, key=_rate)
    return DeviceCeiling(
        device=HOST,
        bandwidth=msgspec.structs.replace(reading.seconds_per_byte, value=1 / reading.seconds_per_byte.value),
        compute=msgspec.structs.replace(computing.seconds_per_byte, value=_rate(computing)),
    )


def _rate(ceiling: FormatCeiling) -> float:
    """Operations a second: two for each element and token."""
    return 2 * ceiling.tokens * 8 / bits_of(ceiling.format) / ceiling.seconds_per_byte.value


def _find_slope(pair: Sequence[Timed]) -> Figure:
    low, high = pair[0], pair[-1]
    operations = high.operations - low.operations
    slopes = [(b - a) / operations for a, b in zip(low.seconds, high.seconds, strict=False)]
    value = (statistics.median_low(high.seconds) - statistics.median_low(low.seconds)) / operations
    value = max(SMALLEST_OP_S, value)
    return Figure(value=value, spread=_spread(slopes, value), marked=high.marked or low.marked)


def _find_op(attention: Sequence[AttentionCeiling], threads: int, tokens: int) -> float:
    """The nearest calibrated number of tokens will do: this share of the time is small."""
    known = [
        each
        for each in attention
        if each.threads == threads and _cache_of(each) == CACHES[0] and each.head_size == HEAD_SIZES[0]
    ]
    if not known:
        return 0.0
    return min(known, key=lambda each: abs(each.tokens - tokens)).seconds_per_op.value


def _cache_of(each: AttentionCeiling) -> Cache:
    return each.cache_type_k, each.cache_type_v, each.flash_attn


def _fit_place(here: Sequence[Timed], op_s: float, ones: dict[str, Figure]) -> tuple[dict[str, Figure], Figure, Figure]:
    """Figures at one thread count and number of tokens; their spread is that of fits to each round by itself."""
    known = {form: figure.value for form, figure in ones.items()}
    middle = _solve(here, [statistics.median_low(each.seconds) for each in here], op_s, known)
    rounds = range(min(len(each.seconds) for each in here))
    each_round = [_solve(here, [each.seconds[i] for each in here], op_s, known) for i in rounds]
    marks: dict[str, str] = {}
    for each in here:
        marks[each.shape.format] = marks.get(each.shape.format) or each.marked
    weights = {
        form: Figure(value=value, spread=_spread([fit.bytes_[form] for fit in each_round], value), marked=marks[form])
        for form, value in middle.bytes_.items()
    }
    several = _find_several(here)
    step = Figure(value=middle.step, spread=_spread([fit.step for fit in each_round], middle.step), marked=marks[several])
    layer = Figure(value=middle.layer, spread=_spread([fit.layer for fit in each_round], middle.layer), marked=marks[several])
    return weights, step, layer


def _find_several(here: Sequence[Timed]) -> str:
    """The format that most shapes were timed in."""
    return statistics.mode(each.shape.format for each in here)


def _solve(here: Sequence[Timed], seconds: Sequence[float], op_s: float, ones: dict[str, float]) -> _Solution:
    """`ones`: seconds per byte of one token, which the output matrix costs whatever the batch."""
    import numpy as np

    forms = sorted({each.shape.format for each in here})
    rows, targets = [], []
    for each, took in zip(here, seconds, strict=True):
        form = each.shape.format
        apart = each.tokens > 1 and form in ones
        rest = took - each.operations * op_s - (each.output_bytes * ones[form] if apart else 0.0)
        n_bytes = each.layer_bytes + (0 if apart else each.output_bytes)
        row = [1.0, float(each.shape.n_layer), *(float(n_bytes) if form == other else 0.0 for other in forms)]
        rows.append([value / took for value in row])
        targets.append(rest / took)
    found = _least_squares(np.array(rows), np.array(targets))
    return _Solution(step=float(found[0]), layer=float(found[1]), bytes_=dict(zip(forms, map(float, found[2:]), strict=True)))


def _least_squares(rows: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """With no unknown below 0: the most negative one is set to 0 until none is left."""
    import numpy as np

    free = list(range(rows.shape[1]))
    while True:
        scale = np.abs(rows[:, free]).max(axis=0)
        part = np.linalg.lstsq(rows[:, free] / scale, targets, rcond=None)[0] / scale
        worst = int(np.argmin(part * scale))
        if part[worst] >= 0 or len(free) == 1:
            break
        del free[worst]
    found = np.zeros(rows.shape[1])
    found[free] = np.maximum(part, 0.0)
    return found


def _spread(values: Sequence[float], middle: float) -> float:
    """Relative standard deviation of the middle of such values."""
    if len(values) < 2 or middle <= 0:
        return 0.0
    return float(statistics.stdev(values) / middle / len(values) ** 0.5)
