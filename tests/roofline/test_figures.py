"""Looking figures up between and beyond what was calibrated."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.ceilings import BYTE_S, OP_S, figure, make_ceilings
from tuner.errors import BadInputError
from tuner.roofline.ceilings import Figure, FixedCeiling, ReadingCeiling
from tuner.roofline.figures import Figures, interpolate, look_up
from tuner.runconfig import RunConfig

POINTS = ((1, figure(1.0, 0.01)), (100, figure(10.0, 0.05)))


@pytest.mark.parametrize(("at", "value"), [(1, 1.0), (10, 10**0.5), (100, 10.0)])
def test_between_two_points_a_power_law_holds(at: float, value: float) -> None:
    """A straight line on logarithmic axes; the larger spread counts."""
    found = interpolate(POINTS, at, beyond="line")
    assert found.value == pytest.approx(value)
    assert found.spread == (0.01 if at == 1 else 0.05)


@pytest.mark.parametrize(("beyond", "value"), [("line", 10 + 9 / 99 * 100), ("origin", 10 + 9 / 99 * 100), ("level", 10.0)])
def test_above_the_largest_count_the_line_goes_on(beyond: str, value: float) -> None:
    assert interpolate(POINTS, 200, beyond=beyond).value == pytest.approx(value)


@pytest.mark.parametrize(("beyond", "value"), [("line", 1.0), ("origin", 200.0), ("level", 1.0)])
def test_one_point_alone_stays_or_grows_with_the_tokens(beyond: str, value: float) -> None:
    assert interpolate(POINTS[:1], 200, beyond=beyond).value == pytest.approx(value)


def test_where_a_value_is_0_the_line_is_straight() -> None:
    assert interpolate(((1, figure(0.0)), (3, figure(4.0))), 2, beyond="line").value == pytest.approx(2.0)


def test_a_line_that_would_fall_stays_level() -> None:
    """More tokens are never cheaper beyond what was seen."""
    assert interpolate(((1, figure(5.0)), (2, figure(4.0))), 10, beyond="line").value == 4.0


@pytest.mark.parametrize(
    ("threads", "factor", "noted"),
    [(1, 1.0, False), (2, 0.5, False), (3, 0.5 ** (0.585 * 1 + 1), False), (4, 0.25, False), (8, 0.5, True), (0, 0.25, False)],
)
def test_threads_between_calibrated_counts_and_beyond(threads: int, factor: float, noted: bool) -> None:
    """Between 2 and 4 a power law; 8 threads on what was worth 4 take twice as long; 0 is the most that was calibrated."""
    found = Figures(make_ceilings()).weight("CPU", "Q8_0", threads, 1)
    assert found.value == pytest.approx(BYTE_S * factor, rel=1e-3)
    assert bool(found.marked) == noted
    assert (found.spread > 0) == noted


def test_fewer_threads_than_calibrated_are_taken_as_slower_in_proportion() -> None:
    found = Figures(make_ceilings(threads=(4,))).weight("CPU", "Q8_0", 1, 1)
    assert found.value == pytest.approx(BYTE_S)
    assert "1 threads are outside what was calibrated" in found.marked


def test_threads_mean_nothing_on_a_device() -> None:
    found = Figures(make_ceilings(devices=("CPU", "CUDA0"))).weight("CUDA0", "Q8_0", 7, 1)
    assert (found.value, found.marked) == (pytest.approx(BYTE_S / 10), "")


@pytest.mark.parametrize(
    ("form", "stand_in"),
    [("Q5_K", "Q6_K"), ("BF16", "F16"), ("Q4_1", "Q4_0"), ("IQ4_XS", "Q4_0"), ("Q5_1", "Q4_0"), ("Q3_K", "Q4_K")],
)
def test_a_format_that_was_not_calibrated_has_a_stand_in_of_its_kind_and_size(form: str, stand_in: str) -> None:
    """With a note and a wider spread: never in silence."""
    found = Figures(make_ceilings(spread=0.03)).weight("CPU", form, 4, 1)
    assert found.marked == f"{form} was not calibrated: {stand_in} stands in for it."
    assert found.spread > 0.2


@pytest.mark.parametrize(
    ("k", "v", "flash", "said"),
    [
        ("f16", "f16", True, ""),
        ("q8_0", "q8_0", True, ""),
        ("q4_0", "q4_0", True, "a q8_0/q8_0 cache with flash attention stands in"),
        ("bf16", "bf16", False, "a f16/f16 cache without flash attention stands in"),
        ("q8_0", "f16", False, "a f16/f16 cache without flash attention stands in"),
    ],
)
def test_a_cache_type_that_was_not_calibrated_has_a_stand_in(k: str, v: str, flash: bool, said: str) -> None:
    config = RunConfig(cache_type_k=k, cache_type_v=v)
    found = Figures(make_ceilings()).attention("CPU", config, flash_attn=flash, threads=4, tokens=7)
    assert found.value == pytest.approx(OP_S / 4)
    assert said in found.marked
    assert bool(said) == bool(found.marked)


@pytest.mark.parametrize(
    ("k", "v", "tokens", "like", "at"),
    [
        ("f16", "q8_0", 256, "q8_0", 16),
        ("q8_0", "f16", 256, "f16", 16),
        ("q4_0", "f16", 256, "f16", 16),
        ("q4_0", "q8_0", 256, "q8_0", 16),
        ("q8_0", "f16", 1, "f16", 1),
        ("f16", "f16", 256, "f16", 256),
    ],
)
def test_a_pair_of_two_cache_types_goes_by_v_and_never_in_tiles(k: str, v: str, tokens: int, like: str, at: int) -> None:
    """Seen on a Xeon at 128 tokens: 145 ms for f16/f16, 254 for q8_0/q8_0, 264 for f16/q8_0, 490 for q8_0/f16."""
    seconds = {("f16", 1): 5.0, ("f16", 16): 4.0, ("f16", 256): 1.0, ("q8_0", 1): 3.0, ("q8_0", 16): 2.0, ("q8_0", 256): 2.0}
    usual = make_ceilings()
    model = usual.attention[0]
    attention = tuple(
        msgspec.structs.replace(
            model, device="CPU", cache_type_k=name, cache_type_v=name, flash_attn=True, tokens=n, threads=4,
            seconds_per_op=Figure(value=value),
        )
        for (name, n), value in seconds.items()
    )  # fmt: skip
    figures = Figures(msgspec.structs.replace(usual, attention=attention))
    found = figures.attention("CPU", RunConfig(cache_type_k=k, cache_type_v=v), flash_attn=True, threads=4, tokens=tokens)
    assert found.value == seconds[(like, at)]


def test_a_device_without_figures_is_refused_and_not_guessed() -> None:
    with pytest.raises(BadInputError, match="no figures for the device CUDA0"):
        Figures(make_ceilings()).weight("CUDA0", "Q8_0", 0, 1)


def test_what_grows_with_the_tokens_in_a_layer_grows_with_its_width() -> None:
    """1 ms at one token and 3 ms at 100, at width 256; twice the width: 1 ms and 5 ms."""
    import msgspec

    points = tuple(
        FixedCeiling(device="CPU", threads=1, tokens=n, step_s=figure(0.0), layer_s=figure(s), width=256)
        for n, s in ((1, 1e-3), (100, 3e-3))
    )
    figures = Figures(msgspec.structs.replace(make_ceilings(), fixed=points))
    assert figures.layer("CPU", 1, 1, 512).value == pytest.approx(1e-3)
    assert figures.layer("CPU", 1, 100, 512).value == pytest.approx(5e-3)


@given(st.floats(1, 5000), st.floats(1, 5000), st.sampled_from([1, 2, 3, 4, 6]))
def test_more_tokens_never_take_less(a: float, b: float, threads: int) -> None:
    """Where the calibrated points rise, so does everything between and beyond them."""
    figures = Figures(make_ceilings())
    low, high = (figures.weight("CPU", "Q4_0", threads, each).value for each in sorted((a, b)))
    assert low <= high * (1 + 1e-12)


def test_a_busy_machine_s_mark_is_handed_on() -> None:
    from tuner.roofline.ceilings import Figure

    family = {1: ((1, Figure(value=1.0, marked="The machine was busy.")),)}
    assert look_up(family, 1, 1, beyond="line").marked == "The machine was busy."


def test_reading_depends_on_the_size_where_that_was_calibrated() -> None:
    """Half the time up to 50 MB, the usual one at 140 MB; between them a power law; where computing binds, no difference."""
    import msgspec

    rows = [(1, 50, 0.5), (1, 140, 1.0), (16, 140, 1.0)]
    readings = tuple(
        ReadingCeiling(device="CPU", format="Q8_0", threads=2, tokens=n, n_bytes=size, factor=figure(value))
        for n, size, value in rows
    )
    figures = Figures(msgspec.structs.replace(make_ceilings(), readings=readings))
    for tokens, size, value in [
        (1, 10, 0.5),
        (1, 50, 0.5),
        (1, 84, 0.71),
        (1, 140, 1.0),
        (1, 999, 1.0),
        (16, 10, 1.0),
        (64, 10, 1.0),
    ]:
        assert figures.reading("CPU", "Q8_0", 2, tokens, size).value == pytest.approx(value, abs=0.01)
    assert 0.5 < figures.reading("CPU", "Q8_0", 2, 4, 10).value < 1.0
    assert figures.reading("CUDA0", "Q8_0", 0, 1, 10).value == 1.0
