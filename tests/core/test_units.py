"""Numbers to text and back, the only place where that happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import units
from tuner.errors import BadInputError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**30, "1 GiB"),
        (28311552, "27 MiB"),
        (5 * 2**40, "5 TiB"),
    ],
)
def test_bytes_are_told_in_binary_units(value: int | None, text: str) -> None:
    """NA is n/a and never 0."""
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1024", 1024),
        ("8GiB", 8 * 2**30),
        ("8G", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("500 MB", 500_000_000),
        ("1.5k", 1536),
        ("7B", 7),
    ],
)
def test_amounts_of_memory_are_read(text: str, value: int) -> None:
    """GiB and G are binary, GB is decimal."""
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    ("ratio", "interval", "text"),
    [
        (1.25, (1.1, 1.4), "1.25× faster [1.10, 1.40]"),
        (0.8, (0.5, 0.9), "1.25× slower [1.11, 2.00]"),
        (0.66, (None, None), "1.52× slower"),
        (1.001, (0.99, 1.01), "the same [0.99, 1.01]"),
        (0.999, (None, None), "the same"),
        (None, (None, None), "n/a"),
    ],
)
def test_a_comparison_is_never_told_by_a_ratio_below_one(
    ratio: float | None, interval: tuple[float | None, float | None], text: str
) -> None:
    """Slower is called slower, and its interval is turned as well."""
    assert units.format_gain(ratio, *interval, better="faster", worse="slower") == text


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "8 cows", "1e9", "nan", "inf", "9" * 40 + "T", "8GiBs"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    """Each with a sentence and a hint."""
    with pytest.raises(BadInputError) as caught:
        units.parse_bytes(text)
    assert caught.value.hint


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400)])
def test_durations_are_read(text: str, seconds: float) -> None:
    """Units may be joined."""
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "m", "10 cows", "-5m", "5m-", "nan", "1e5", "m10"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Zero is no duration either."""
    with pytest.raises(BadInputError):
        units.parse_duration(text)


@pytest.mark.parametrize(("text", "value"), [("4096", 4096), ("4k", 4096), ("128K", 131072), ("1m", 1048576)])
def test_counts_are_read_in_binary_thousands(text: str, value: int) -> None:
    """As contexts are told."""
    assert units.parse_count(text) == value


@pytest.mark.parametrize(("text", "value"), [("on", True), ("OFF", False), ("yes", True), ("0", False)])
def test_flags_are_read(text: str, *, value: bool) -> None:
    """The words people use."""
    assert units.parse_flag(text) is value


@pytest.mark.parametrize(
    "parse", [units.parse_count, units.parse_integer, units.parse_number, units.parse_flag, units.parse_duration]
)
@given(text=st.text(max_size=30))
def test_any_text_is_read_or_refused(parse: object, text: str) -> None:
    """Nothing but a value or a BadInputError comes out."""
    try:
        found = parse(text)
    except BadInputError as error:
        found = error.message
    assert found is not None
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (5, "5.0s"), (59, "59s"), (75, "1m 15s"), (3600, "1h 00m"), (7384, "2h 03m")]
)
def test_durations_are_told(value: float | None, text: str) -> None:
    """As people say them."""
    assert units.format_duration(value) == text


def test_figures_are_told_with_their_unit() -> None:
    """Three significant digits, no exponent."""
    assert units.format_ms(12.345) == "12.3 ms"
    assert units.format_ms(12_345) == "12.3 s"
    assert units.format_rate(123.4) == "123 tok/s"
    assert units.format_count(134_515_008) == "135M"
    assert units.format_ratio(1.2345) == "1.23×"
    assert units.format_interval(1.2, 1.27) == "[1.20, 1.27]"
    assert units.format_ms(None) == units.format_rate(None) == units.format_ratio(None) == "n/a"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12.345, "ms", "12.3 ms"),
        (2**30, "bytes", "1 GiB"),
        (0.256, "share", "26 %"),
        (2.5, "times", "2.50×"),
        (50.0, "tok/s", "50 tok/s"),
        (16_000, "tokens", "16,000 tokens"),
        (0.125, "CPUs", "0.125 CPUs"),
        (1e9, "parameters", "1B parameters"),
        ("AVX2", "", "AVX2"),
    ],
)
def test_amounts_are_told_in_the_unit_they_name(value: float | str, unit: str, text: str) -> None:
    """Text is told as it is."""
    assert units.format_amount(value, unit) == text
