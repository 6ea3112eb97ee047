"""Every command found by its file keeps the promises of the command line."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import tuner
from search_spaces import preset_names
from tuner.cli import commands
from tuner.cli.main import program
from tuner.discover import discover_modules
from tuner.objective import GOALS, LIMITED
from tuner.workload import PRESETS

MODULES = discover_modules(commands)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_a_file_is_a_command(module: object) -> None:
    """Its `command` is a click command of the file's name with a help text, and the program lists it."""
    command = module.command
    name = module.__name__.rsplit(".", 1)[-1]
    assert isinstance(command, click.Command)
    assert command.name == name
    assert len((command.help or "").split()) >= 3
    assert name in program.list_commands(click.Context(program))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_every_command_takes_the_common_options(module: object) -> None:
    """For a script and for a person who wonders, whatever the command."""
    flags = {flag for option in module.command.params for flag in option.opts}
    assert {"--json", "-v", "--verbose"} <= flags


NAMED = {
    "--objective": GOALS,
    "--limit": LIMITED,
    "--space": preset_names(),
    "--workload": tuple(PRESETS),
}


@pytest.mark.parametrize("flag", NAMED)
def test_help_names_what_a_flag_takes(flag: str) -> None:
    """All of it, so that nobody has to guess a name."""
    (option,) = (each for each in find_command("tune").params if flag in each.opts)
    assert [name for name in NAMED[flag] if name not in (option.help or "")] == []


def find_command(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found is not None
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_every_option_says_what_it_does(module: object) -> None:
    """`--help` is a manual."""
    silent = [p.name for p in module.command.params if isinstance(p, click.Option) and not p.help]
    assert silent == []


CODE = re.compile(r"`[^`\n]*`")
PROPOSED = re.compile(r"\brooftune ([a-z]+)\b")


def test_only_commands_that_exist_are_proposed() -> None:
    """Wherever the source or the README puts one between backticks or before an argument."""
    root = Path(tuner.__file__).parent
    texts = [*root.rglob("*.py"), root.parent / "README.md"]
    spans = [span for path in texts if path.exists() for span in CODE.findall(path.read_text(encoding="utf-8"))]
    proposed = {word for span in spans for word in PROPOSED.findall(span)}
    assert proposed
    assert proposed <= set(program.list_commands(click.Context(program)))
