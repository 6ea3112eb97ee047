"""Commands that are proposed work when they are pasted: rooftune, and llama.cpp's programs, as this shell can find them."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAME: Final = "rooftune"
_PROPOSED: Final = re.compile(rf"(?<![\w./-])(?:{NAME} ([a-z]+)|pip install)\b")
"""A command where it stands in a sentence: rooftune and a word that may be one of its subcommands, or pip."""


def find_program() -> str:
    """How to call rooftune from here: by its name where that is this very one, else by its path, else through Python."""
    script = Path(sysconfig.get_path("scripts")) / NAME
    found = shutil.which(NAME)
    if found and (not script.exists() or Path(found).resolve() == script.resolve()):
        return NAME
    if script.exists():
        return shlex.quote(shorten(script))
    return f"{_quote_python()} -m tuner"


def find_pip() -> str:
    """How to call the pip that installs where rooftune runs."""
    found = shutil.which("pip")
    if found and Path(found).parent.resolve() == Path(sysconfig.get_path("scripts")).resolve():
        return "pip"
    return f"{_quote_python()} -m pip"


def spell_commands(text: str, known: frozenset[str]) -> str:
    """The text with its commands (`rooftune COMMAND` for one out of `known`, and pip) as they can be pasted here."""

    def spell(match: re.Match[str]) -> str:
        subcommand = match.group(1)
        if subcommand is None:
            return f"{find_pip()} install"
        return f"{find_program()} {subcommand}" if subcommand in known else match.group()

    return _PROPOSED.sub(spell, text)


def find_tool(name: str, tools: Mapping[str, str]) -> str | None:
    """How to call one of llama.cpp's programs from here; `tools` are those beside the build. None where there is none."""
    if shutil.which(name):
        return name
    return shlex.quote(shorten(Path(tools[name]))) if name in tools else None


def shorten(path: Path) -> str:
    """Relative to this folder where it lies below it, as a person would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _quote_python() -> str:
    return shlex.quote(shorten(Path(sys.executable)))
