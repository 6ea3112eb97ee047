"""Owns stdout and stderr: the answer goes to the one, all talk to the other. Nothing else in rooftune prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def print_json(document: Any) -> None:
    """One JSON document on stdout; records become objects, paths text, NaN never appears."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(document, enc_hook=str, order="deterministic"), indent=2)
    sys.stdout.write(encoded.decode() + "\n")


def print_text(text: str) -> None:
    """Plain text on stdout, as it is."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_rich(*renderables: RenderableType) -> None:
    """Tables and coloured text on stdout; plain where it is no terminal or NO_COLOR is set."""
    console = open_console()
    for renderable in renderables:
        console.print(renderable)


def open_console(*, stderr: bool = False) -> Console:
    """A console that leaves the user's numbers and brackets alone; 100 columns where there is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 100
    return Console(stderr=stderr, highlight=False, soft_wrap=False, width=width, markup=False, emoji=False)


def say(text: str) -> None:
    """One line of talk on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(message: str, hint: str = "") -> None:
    """An error in one line on stderr: what is wrong, and what to do."""
    say(f"rooftune: {message}{' ' + hint if hint else ''}")
