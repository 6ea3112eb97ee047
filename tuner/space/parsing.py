"""Values from YAML and flags, checked once for all dimensions. Every refusal names the setting and what it takes.

YAML 1.1 reads on, off, yes and no as booleans; the words come back here where a setting is made of words.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.errors import BadInputError
from tuner.units import parse_count, parse_flag, parse_integer, parse_number


def read_integer(name: str, value: object, *, least: int, most: int, thousands: bool = False) -> int:
    """A whole number from `least` to `most`; with `thousands`, "8k" is 8192."""
    accepted = f"It takes a whole number from {least} to {most}."
    number = _as_integer(value, thousands=thousands)
    if number is None or not least <= number <= most:
        raise BadInputError(f"{name} cannot be {show_value(value)}.", accepted)
    return number


def read_word(name: str, value: object, accepted: Sequence[str]) -> str:
    """One of `accepted`; what YAML made of on and off is made undone."""
    word = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
    if isinstance(word, str) and word.strip().lower() in accepted:
        return word.strip().lower()
    raise BadInputError(f"{name} cannot be {show_value(value)}.", f"It takes {', '.join(accepted)}.")


def read_flag(name: str, value: object) -> bool:
    """On or off."""
    if isinstance(value, bool):
        return value
    try:
        return parse_flag(value if isinstance(value, str) else str(value) if value in (0, 1) else "")
    except BadInputError:
        raise BadInputError(f"{name} cannot be {show_value(value)}.", "It takes on or off.") from None


def read_shares(name: str, value: object) -> tuple[float, ...]:
    """Shares such as "3,1" or [3, 1]; empty, or "auto", is left to llama.cpp."""
    if value == "auto":
        return ()
    pieces = value.split(",") if isinstance(value, str) else value
    if not isinstance(pieces, list | tuple) or len(pieces) > 16:
        raise _refuse_shares(name, value)
    try:
        shares = tuple(parse_number("" if isinstance(piece, bool) else str(piece)) for piece in pieces)
    except BadInputError:
        raise _refuse_shares(name, value) from None
    if any(share < 0 for share in shares) or (shares and not any(shares)):
        raise _refuse_shares(name, value)
    return shares


def show_value(value: object) -> str:
    """A value as a message quotes it: short, on one line."""
    text = "nothing" if value is None or value == "" else f"{value!r}"
    return text if len(text) <= 60 else text[:57] + "…"


def _as_integer(value: object, *, thousands: bool) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        return None
    try:
        return parse_count(value) if thousands else parse_integer(value)
    except BadInputError:
        return None


def _refuse_shares(name: str, value: object) -> BadInputError:
    return BadInputError(
        f"{name} cannot be {show_value(value)}.", "It takes one share per device, such as 3,1, or auto; at most 16."
    )
