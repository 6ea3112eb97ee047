"""The entry point `rooftune`: finds the command, runs it, and turns every error into one line and an exit code.

Must never show a traceback for what a user can cause, and never import what the named command does not use.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence

import click

from tuner.cli import commands
from tuner.cli.interrupts import ignore_interrupts
from tuner.cli.output import complain
from tuner.errors import ExitCode, RooftuneError, suggest_name

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
USAGE = "usage: rooftune COMMAND [OPTIONS]; `rooftune --help` lists the commands."


class CommandsByFile(click.Group):
    """A group whose commands are the files of `tuner.cli.commands`, imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(entry.name for entry in pkgutil.iter_modules(commands.__path__) if entry.name[0] != "_")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{commands.__name__}.{cmd_name}")
        found = module.command
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its whole sentence, wrapped rather than cut."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in found if command is not None])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            hint = suggest_name(args[0], self.list_commands(ctx))
            raise click.UsageError(f"There is no command {args[0][:60]!r}. {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=CommandsByFile, invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(package_name="rooftune", message="%(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Find the llama.cpp settings that make a model fastest on this machine, and prove it by measurement."""
    if ctx.invoked_subcommand is None:
        if sys.stdin.isatty() and sys.stdout.isatty():
            complain("The full-screen interface is not part of this version. Use `rooftune tune MODEL`.", USAGE)
        else:
            complain(USAGE)
        ctx.exit(ExitCode.USAGE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without our letters gets question marks, not a fault
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    ignore_interrupts()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line; the exit code."""
    stdout = sys.stdout
    try:
        return _settle(program.main(arguments, prog_name="rooftune", standalone_mode=False))
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        complain(_one_line(error.format_message()))
        return ExitCode.USAGE
    except RooftuneError as error:
        complain(_one_line(error.message), _one_line(error.hint))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        complain("Interrupted.")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return ExitCode.DONE
    except SystemExit as stop:
        if sys.stdout is stdout and not isinstance(stop.__context__, BrokenPipeError):
            raise
        _silence_stdout()  # Rich, and Click after putting another stream there, leave with 1: that is for faults of ours
        return ExitCode.DONE
    except OSError as error:
        return _report_system(error)
    except Exception as fault:  # noqa: BLE001 - the last stop before a user would see a traceback
        return _report_fault(fault, verbose="-v" in arguments or "--verbose" in arguments)


def _settle(result: object) -> int:
    sys.stdout.flush()
    return result if isinstance(result, int) and not isinstance(result, bool) else ExitCode.DONE


def _report_system(error: OSError) -> int:
    """What the operating system refused: a name too long, a folder without permission, a full disk."""
    place = _one_line(str(error.filename or "a file"))
    shown = place if len(place) <= 120 else place[:117] + "..."
    complain(f"Cannot use {shown}: {_one_line(error.strerror or type(error).__name__)}.", "Check path, permissions and disk.")
    return ExitCode.BAD_INPUT


def _report_fault(fault: Exception, *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(fault)
    name = type(fault).__name__
    complain(f"A fault of rooftune's own: {name}: {_one_line(str(fault))[:300]}.", "Run it again with -v and report it.")
    return ExitCode.FAULT


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _silence_stdout() -> None:
    """Whoever read us has gone: what is still buffered must not raise at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
