"""Long sentences for a terminal: prose wrapped with a hanging indent, each command in it whole and on a line of its own."""

from __future__ import annotations

import re
import textwrap
from typing import Final

_CODE: Final = re.compile(r"`([^`]+)`")
_LONG: Final = 40
"""Letters from which a command gets a line of its own; shorter ones stay in the sentence, unbroken."""
_HANG: Final = 2
_GLUE: Final = "\N{NO-BREAK SPACE}"


def lay_out(text: str, *, width: int) -> str:
    """The text in lines of at most `width`, but for commands (what stands in backticks), which are never broken.

    A line's own indent is kept; what follows it hangs two columns further in, and a long command two more.
    """
    return "\n".join(_lay_out_line(line, width) for line in text.split("\n"))


def _lay_out_line(line: str, width: int) -> str:
    indent = len(line) - len(line.lstrip(" "))
    hang = " " * (indent + _HANG)
    lines: list[str] = []
    prose = ""
    for place, piece in enumerate(_CODE.split(line.strip(" "))):
        is_code = place % 2 == 1
        if is_code and len(piece) >= _LONG:
            lines += _wrap(prose, width, hang if lines else " " * indent, hang)
            lines.append(f"{hang}  {piece}")
            prose = ""
        elif is_code:
            prose += f"`{piece.replace(' ', _GLUE)}`"
        else:
            prose += piece if prose or not lines else piece.lstrip(" .,;")
    lines += _wrap(prose, width, hang if lines else " " * indent, hang)
    return "\n".join(lines)


def _wrap(prose: str, width: int, first: str, rest: str) -> list[str]:
    wrapped = textwrap.wrap(
        prose, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_GLUE, " ") for line in wrapped]
