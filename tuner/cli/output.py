"""Owns stdout and stderr: the answer goes to the one, all talk to the other. Nothing else in rooftune prints.

Sentences are wrapped with their commands whole, and commands are spelled so that they can be pasted.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

from tuner.cli import commands
from tuner.cli.layout import lay_out
from tuner.cli.program import spell_commands

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_WIDTH: Final = 100
"""Columns where nobody says how many there are."""
LEAST_WIDTH: Final = 40
MOST_WIDTH: Final = 1000


def print_json(document: Any) -> None:
    """One JSON document on stdout; records become objects, paths text, NaN never appears."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(document, enc_hook=str, order="deterministic"), indent=2)
    sys.stdout.write(encoded.decode() + "\n")


def print_text(text: str) -> None:
    """Plain text on stdout, as it is."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_rich(*renderables: RenderableType) -> None:
    """Tables and sentences on stdout; plain where it is no terminal or NO_COLOR is set."""
    from rich.table import Table
    from rich.text import Text

    console = open_console()
    for renderable in renderables:
        match renderable:
            case str():
                console.print(_lay_out(renderable, console.width), soft_wrap=True)
            case Text() if not renderable.spans:
                console.print(Text(_lay_out(renderable.plain, console.width), style=renderable.style), soft_wrap=True)
            case Table():
                for column in renderable.columns:
                    column.overflow = "fold"  # half a name or number is worse than another line
                console.print(renderable)
            case _:
                console.print(renderable)


def _lay_out(text: str, width: int) -> str:
    return lay_out(spell(text), width=width)


def open_console(*, stderr: bool = False) -> Console:
    """A console that leaves the user's numbers and brackets alone."""
    from rich.console import Console

    width = choose_width(sys.stderr if stderr else sys.stdout)
    return Console(stderr=stderr, highlight=False, soft_wrap=False, width=width, markup=False, emoji=False)


def choose_width(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int | None:
    """Columns to write: COLUMNS where it is set and sane, else the terminal's own (None), else 100."""
    asked = environ.get("COLUMNS", "").strip()
    if asked.isascii() and asked.isdigit() and len(asked) < 10 and int(asked) > 0:
        return min(max(int(asked), LEAST_WIDTH), MOST_WIDTH)
    return None if stream.isatty() else PLAIN_WIDTH


def spell(text: str) -> str:
    """The text with rooftune's commands in it as this shell finds them."""
    known = frozenset(entry.name for entry in pkgutil.iter_modules(commands.__path__))
    return spell_commands(text, known)


def say(text: str) -> None:
    """One line of talk on stderr."""
    sys.stderr.write(spell(text) + "\n")
    sys.stderr.flush()


def complain(message: str, hint: str = "") -> None:
    """An error in one line on stderr: what is wrong, and what to do."""
    say(f"rooftune: {message}{' ' + hint if hint else ''}")
