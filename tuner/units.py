"""The only place where numbers become text and text becomes numbers.

Everything else in rooftune holds bytes, milliseconds, seconds and tokens per second as plain numbers.
`NA` means "this machine won't say". It is never 0, and prints as "n/a".
"""

from __future__ import annotations

import math
import re
from typing import Final

from tuner.errors import BadInputError

NA: Final = None
"""The value that a probe could not learn."""

NA_TEXT: Final = "n/a"

_BINARY: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL: Final = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_TRUE: Final = frozenset({"true", "on", "yes", "1"})
_FALSE: Final = frozenset({"false", "off", "no", "0"})


def format_bytes(value: float | None) -> str:
    """Bytes as binary units: 1536 -> "1.5 KiB"."""
    if value is None:
        return NA_TEXT
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{_short(size)} {unit}"
        size /= 1024
    return f"{_short(size)} TiB"


def format_ms(value: float | None) -> str:
    """Milliseconds, in seconds from ten seconds on: 12.34 -> "12.3 ms", 12340 -> "12.3 s"."""
    if value is None:
        return NA_TEXT
    return f"{value / 1000:.1f} s" if abs(value) >= 10_000 else f"{_short(value)} ms"


def format_rate(value: float | None) -> str:
    """Tokens per second: 123.4 -> "123 tok/s"."""
    return NA_TEXT if value is None else f"{_short(value)} tok/s"


def format_duration(seconds: float | None) -> str:
    """Seconds as people say them: 75 -> "1m 15s"."""
    if seconds is None:
        return NA_TEXT
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {left:02d}s"


def format_count(value: float | None) -> str:
    """A count with a decimal suffix: 134515008 -> "135M"."""
    if value is None:
        return NA_TEXT
    size = float(value)
    for suffix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(size) >= factor:
            return f"{_short(size / factor)}{suffix}"
    return f"{size:g}"


def format_ratio(value: float | None) -> str:
    """A gain: 1.234 -> "1.23×"."""
    return NA_TEXT if value is None else f"{value:.2f}×"


def format_comparison(ratio: float | None, *, better: str = "better", worse: str = "worse") -> str:
    """How much better in words that are never below 1: 1.25 -> "1.25× better", 0.8 -> "1.25× worse", 1.001 -> "the same"."""
    if ratio is None or ratio <= 0:
        return NA_TEXT
    shown = format_ratio(max(ratio, 1 / ratio))
    return "the same" if shown == format_ratio(1.0) else f"{shown} {better if ratio > 1 else worse}"


def format_gain(
    ratio: float | None, low: float | None, high: float | None, *, better: str = "better", worse: str = "worse"
) -> str:
    """A comparison with its interval, both seen from the side that is above 1: 0.8 -> "1.25× worse [1.11, 1.43]"."""
    told = format_comparison(ratio, better=better, worse=worse)
    return f"{told} {format_turned(ratio, low, high)}" if ratio and low and high else told


def format_turned(ratio: float | None, low: float | None, high: float | None) -> str:
    """A ratio's interval, seen from the side from which the ratio is above 1: of 0.8, (0.7, 0.9) -> "[1.11, 1.43]"."""
    return format_interval(1 / high, 1 / low) if ratio and ratio < 1 and low and high else format_interval(low, high)


def format_amount(value: float | str, unit: str) -> str:
    """A value in the unit that a record names: (0.25, "share") -> "25 %", (512, "tokens") -> "512 tokens"; text as it is."""
    if isinstance(value, str):
        return value
    match unit:
        case "ms":
            return format_ms(value)
        case "bytes":
            return format_bytes(value)
        case "tok/s":
            return format_rate(value)
        case "share":
            return f"{value:.0%}".replace("%", " %")
        case "times":
            return format_ratio(value)
        case "parameters":
            return f"{format_count(value)} parameters"
        case _:
            return f"{value:,.0f} {unit}" if abs(value) >= 100 or value == int(value) else f"{_short(value)} {unit}"


def format_interval(low: float | None, high: float | None) -> str:
    """A 95 % interval of a ratio: "[1.20, 1.27]"."""
    return NA_TEXT if low is None or high is None else f"[{low:.2f}, {high:.2f}]"


def parse_bytes(text: str) -> int:
    """Text such as "8GiB", "8G", "500 MB" or "1024" as bytes (G and GiB are binary, GB is decimal).

    Raises BadInputError for anything else.
    """
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([KMGT]?)(i?B?)\s*", text, re.IGNORECASE)
    if not match:
        raise BadInputError(f"{text!r} is not an amount of memory.", "Write it like 8GiB, 500MB or 1073741824.")
    number, prefix, suffix = match.group(1), match.group(2).upper(), match.group(3).lower()
    factor = _DECIMAL[prefix] if suffix == "b" and prefix else _BINARY[prefix]
    return _finite(float(number) * factor, text)


def parse_duration(text: str) -> float:
    """Text such as "10m", "90s", "1h", "1h30m" or "250ms" as seconds.

    Raises BadInputError for anything else, for a number without a unit and for a duration of 0.
    """
    stripped = text.strip().lower().replace(" ", "")
    if re.fullmatch(_NUMBER, stripped):
        raise BadInputError(f"{text!r} has no unit.", f"Write {stripped}ms, {stripped}s or {stripped}m.")
    pieces = re.findall(rf"{_NUMBER}(ms|min|s|m|h)", stripped)
    rebuilt = "".join(number + unit for number, unit in pieces)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in pieces)
    if not pieces or rebuilt != stripped or not math.isfinite(seconds) or seconds <= 0:
        raise BadInputError(f"{text!r} is not a duration.", "Write it like 90s, 10m or 1h30m.")
    return seconds


def parse_count(text: str) -> int:
    """Text such as "4096", "4k" or "128K" (binary thousands, as contexts are told) as a whole number.

    Raises BadInputError for anything else.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([kKmM]?)\s*", text)
    if not match:
        raise BadInputError(f"{text!r} is not a whole number.", "Write it like 4096 or 4k.")
    return _finite(int(match.group(1)) * _BINARY[match.group(2).upper()], text)


def parse_integer(text: str) -> int:
    """A plain whole number, a sign allowed. Raises BadInputError."""
    if not re.fullmatch(r"\s*[-+]?\d{1,18}\s*", text):
        raise BadInputError(f"{text!r} is not a whole number.", "Write it in digits, like 4.")
    return int(text)


def parse_number(text: str) -> float:
    """A plain finite number. Raises BadInputError."""
    if not re.fullmatch(r"\s*[-+]?(\d{1,300}(\.\d*)?|\.\d+)(e[-+]?\d{1,2})?\s*", text, re.IGNORECASE):
        raise BadInputError(f"{text!r} is not a number.", "Write it in digits, like 0.5.")
    return float(text)


def parse_flag(text: str) -> bool:
    """on/off, true/false, yes/no, 1/0. Raises BadInputError."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise BadInputError(f"{text!r} is neither on nor off.", "Write on or off.")


def _short(value: float) -> str:
    """Three significant digits without an exponent."""
    if not math.isfinite(value):
        return NA_TEXT
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _finite(value: float, text: str) -> int:
    if not math.isfinite(value) or value >= 2**62:
        raise BadInputError(f"{text!r} is too large.", "Give a smaller number.")
    return int(value)
