"""How reading depends on the size of a model: some of a small one stays in a cache that all cores share, from step to step.

The reference is timed at several sizes; every other format at the smallest and the usual one, and in between and beyond it is
taken to follow the reference, as far as its own gain goes: what computes much for each byte gains little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from tuner.calibration.attention import find_op, find_spread
from tuner.calibration.plan import LARGE_BYTES, REFERENCE
from tuner.calibration.timed import Timed
from tuner.roofline.ceilings import AttentionCeiling, Figure, FixedCeiling, FormatCeiling, ReadingCeiling

LEAST_FACTOR: Final = 0.1
"""No cache is taken to be more than ten times as fast as memory."""

SHARING: Final = 0.25
"""Added to a factor's spread for each e-fold that it gains or loses: a cache that others use as well serves one better at one
hour than at another. Between 0.38 and 0.63 was seen for the same model within an hour.
"""

FLAT: Final = 0.05
"""A reference that gains less than this says nothing of how another format gains."""


def fit_readings(
    timed: Sequence[Timed],
    formats: Sequence[FormatCeiling],
    fixed: Sequence[FixedCeiling],
    attention: Sequence[AttentionCeiling],
) -> tuple[ReadingCeiling, ...]:
    """What a byte takes in models of other sizes, relative to that of the usual one (whose factor is 1).

    Where computing binds the size means nothing: 1 from the first number of tokens that no size was timed at.
    """
    bytes_ = {(each.format, each.threads, each.tokens): each.seconds_per_byte.value for each in formats}
    places = {(each.threads, each.tokens): each for each in fixed}
    found = []
    for each in timed:
        place = places.get((each.threads, each.tokens))
        usual = bytes_.get((each.shape.format, each.threads, each.tokens), 0.0)
        if place is None or usual <= 0:
            continue
        rest = place.step_s.value + each.shape.n_layer * place.layer_s.value
        rest += each.operations * find_op(attention, each.threads, each.tokens)
        n_bytes = each.whole_bytes + each.late_bytes
        factors = [max(LEAST_FACTOR, (took - rest) / n_bytes / usual) for took in each.seconds]
        found.append(_form(each, n_bytes, factors))
    followed = [row for each in found if each.format != REFERENCE for row in _follow(each, found)]
    return (*found, *followed, *_list_usual(found, formats))


def _form(each: Timed, n_bytes: int, factors: Sequence[float]) -> ReadingCeiling:
    middle = statistics.median(factors)
    spread = math.hypot(find_spread(factors, middle), SHARING * abs(math.log(middle)))
    return ReadingCeiling(
        device=each.device,
        format=each.shape.format,
        threads=each.threads,
        tokens=each.tokens,
        n_bytes=n_bytes,
        factor=Figure(value=middle, spread=spread, marked=each.marked),
    )


def _follow(small: ReadingCeiling, found: Sequence[ReadingCeiling]) -> Iterator[ReadingCeiling]:
    """A format's factors at the other sizes of the reference: as far along as the reference is there."""
    mine = (small.device, small.threads, small.tokens)
    guide = sorted(
        (each for each in found if each.format == REFERENCE and (each.device, each.threads, each.tokens) == mine),
        key=lambda each: each.n_bytes,
    )
    for each in guide[1:]:
        gain = math.log(guide[0].factor.value)
        value = each.factor.value
        if abs(gain) >= FLAT:
            value = math.exp(math.log(small.factor.value) * math.log(value) / gain)
        yield ReadingCeiling(
            device=small.device,
            format=small.format,
            threads=small.threads,
            tokens=small.tokens,
            n_bytes=each.n_bytes,
            factor=Figure(value=value, spread=math.hypot(small.factor.spread, each.factor.spread), marked=small.factor.marked),
        )


def _list_usual(found: Sequence[ReadingCeiling], formats: Sequence[FormatCeiling]) -> Iterator[ReadingCeiling]:
    """The usual size at the same numbers of tokens, and at the first one that no size was timed at."""
    timed = {(each.threads, each.tokens) for each in formats}
    for device, form, threads in sorted({(each.device, each.format, each.threads) for each in found}):
        mine = {each.tokens for each in found if (each.device, each.format, each.threads) == (device, form, threads)}
        computing = min((n for count, n in timed if count == threads and n > max(mine)), default=2 * max(mine))
        for tokens in sorted({*mine, computing}):
            yield ReadingCeiling(
                device=device, format=form, threads=threads, tokens=tokens, n_bytes=LARGE_BYTES, factor=Figure(value=1.0)
            )
