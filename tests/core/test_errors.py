"""What was typed wrongly is told with its flag and with what was probably meant."""

from __future__ import annotations

import pytest

from tuner.errors import BadInputError, NothingFeasibleError, UsageError, reading_flag, suggest_name
from tuner.units import parse_bytes, parse_duration

FEW = ("chat", "rag", "code")
MANY = tuple(f"setting_{letter}" for letter in "abcdefghij")


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("chta", FEW, "Did you mean chat? There are chat, rag, code."),
        ("CHAT", FEW, "Did you mean chat? There are chat, rag, code."),
        ("xyz", FEW, "There are chat, rag, code."),
        ("seting_a", MANY, "Did you mean setting_a?"),
        ("xyz", MANY, f"There are {', '.join(MANY)}."),
        ("dec1", ("DEC01", "MEM01"), "Did you mean DEC01? There are DEC01, MEM01."),
        ("x", (), "There are none yet."),
    ],
)
def test_a_slip_is_led_to_the_name_that_was_meant(name: str, known: tuple[str, ...], hint: str) -> None:
    """Few names are listed beside; many only where none is near."""
    assert suggest_name(name, known) == hint


def test_what_else_is_taken_is_named_and_long_lists_are_cut() -> None:
    assert suggest_name("xyz", FEW, others="or a YAML file").endswith("code, or a YAML file.")
    assert suggest_name("xyz", MANY, most=2) == "There are setting_i, setting_j."


def test_a_refused_value_is_a_matter_of_usage_and_names_its_flag() -> None:
    with pytest.raises(UsageError, match="--budget: 'soon' is not a duration") as caught, reading_flag("--budget"):
        parse_duration("soon")
    assert caught.value.exit_code == 2
    assert "90s" in caught.value.hint


def test_the_same_value_in_a_file_is_bad_input() -> None:
    with pytest.raises(BadInputError) as caught:
        parse_bytes("plenty")
    assert caught.value.exit_code == 3


def test_other_errors_pass_a_flag_as_they_are() -> None:
    with pytest.raises(NothingFeasibleError), reading_flag("--budget"):
        raise NothingFeasibleError("Nothing fits.")
