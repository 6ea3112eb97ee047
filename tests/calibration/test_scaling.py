"""Thread counts that only the reference was timed at: the others bend where it bends."""

from __future__ import annotations

import pytest

from tests.builders.ceilings import figure
from tuner.calibration.fitting import Fit
from tuner.calibration.plan import choose_threads
from tuner.calibration.scaling import CURVE_SPREAD, fill_threads, follow_curve
from tuner.roofline.ceilings import AttentionCeiling, FormatCeiling


@pytest.mark.parametrize(
    ("usable", "physical", "main", "between"),
    [
        (1, 1, (1,), ()),
        (2, 2, (1, 2), ()),
        (2, 1, (1, 2), ()),
        (4, 4, (1, 4), (2,)),
        (12, 6, (1, 6), (2, 4, 12)),
        (3, 8, (1, 3), (2,)),
        (64, 32, (1, 32), (2, 4, 8, 16, 64)),
    ],
)
def test_thread_counts(usable: int, physical: int, main: tuple[int, ...], between: tuple[int, ...]) -> None:
    """One and all cores for everything; powers of two and all hardware threads for the reference; never above the limit."""
    assert choose_threads(usable, physical) == (main, between)


BENT = {1: 8.0, 2: 4.0, 4: 2.0, 8: 2.0, 16: 2.2}
"""Memory is busy with 4 threads, and more than 8 are in each other's way."""


@pytest.mark.parametrize(("threads", "value"), [(1, 80.0), (2, 40.0), (4, 20.0), (8, 20.0), (16, 22.0)])
def test_the_same_curve_at_another_height(threads: int, value: float) -> None:
    assert follow_curve(BENT, {1: 80.0, 8: 20.0}, threads) == pytest.approx(value)


def test_a_format_that_gains_less_bends_at_the_same_place() -> None:
    """It gains the square root of what the reference gains: 8 → 4 from one thread to eight, reached at four."""
    assert follow_curve(BENT, {1: 8.0, 8: 4.0}, 4) == pytest.approx(4.0)
    assert follow_curve(BENT, {1: 8.0, 8: 4.0}, 2) == pytest.approx(8.0 / 2**0.5)


def test_a_reference_without_a_gain_says_nothing_and_a_power_law_holds() -> None:
    assert follow_curve({1: 1.0, 2: 1.0, 4: 1.0}, {1: 16.0, 4: 4.0}, 2) == pytest.approx(8.0)


def weight(form: str, threads: int, value: float, tokens: int = 1) -> FormatCeiling:
    return FormatCeiling(device="CPU", format=form, threads=threads, tokens=tokens, seconds_per_byte=figure(value, 0.03))


def look(threads: int, value: float, *, flash: bool = True) -> AttentionCeiling:
    return AttentionCeiling(
        device="CPU", cache_type_k="f16", cache_type_v="f16", flash_attn=flash, threads=threads, tokens=1, head_size=64,
        seconds_per_op=figure(value),
    )  # fmt: skip


def test_what_is_missing_is_filled_with_a_wider_spread_and_what_is_there_stays() -> None:
    reference = [weight("Q8_0", count, value) for count, value in BENT.items()]
    timed = [weight("Q4_K", 1, 80.0), weight("Q4_K", 8, 20.0)]
    fit = fill_threads(Fit(formats=(*reference, *timed), attention=(), fixed=()), (2, 4, 16))
    assert fit.formats[:7] == (*reference, *timed)
    added = {each.threads: each.seconds_per_byte for each in fit.formats[7:]}
    assert {count: round(each.value, 6) for count, each in added.items()} == {2: 40.0, 4: 20.0, 16: 22.0}
    assert all(each.spread > CURVE_SPREAD for each in added.values())


def test_attention_follows_that_of_the_usual_cache() -> None:
    rows = (*(look(count, value) for count, value in BENT.items()), look(1, 80.0, flash=False), look(8, 20.0, flash=False))
    fit = fill_threads(Fit(formats=(), attention=rows, fixed=()), (2, 4, 16))
    assert len(fit.attention) == len(rows) + 3


def test_numbers_of_tokens_that_the_reference_was_not_timed_at_stay_unfilled() -> None:
    rows = (
        *(weight("Q8_0", count, value) for count, value in BENT.items()),
        *(weight("F16", n, 1.0, tokens=64) for n in (1, 8)),
    )
    assert fill_threads(Fit(formats=rows, attention=(), fixed=()), (2, 4, 16)).formats == rows
