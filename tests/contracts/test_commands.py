"""Every command found by its file keeps the promises of the command line."""

from __future__ import annotations

import click
import pytest

from tuner.cli import commands
from tuner.cli.main import program
from tuner.discover import discover_modules

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
def test_every_option_says_what_it_does(module: object) -> None:
    """`--help` is a manual."""
    silent = [p.name for p in module.command.params if isinstance(p, click.Option) and not p.help]
    assert silent == []
