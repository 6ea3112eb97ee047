"""Options that several commands share, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout and nothing else there.")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Say more on stderr; show the traceback of a fault.")
demo_option = click.option("--demo", is_flag=True, help="Use the small model of the `demo` extra in place of MODEL.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Fix a setting by llama.cpp's name, as `explain` lists them; repeatable.",
)
workload_option = click.option(
    "--workload", default="chat", show_default=True, metavar="NAME|FILE.yaml", help="chat, rag, code, quick, batch or a file."
)
engine_option = click.option(
    "--engine",
    default="llama-cpp-python",
    show_default=True,
    metavar="NAME",
    help="What runs the model; simulated only pretends to.",
)
rpc_option = click.option("--rpc", default="", metavar="HOST:PORT,…", help="Remote devices that may take layers.")
front_end_option = click.option(
    "--front-end",
    type=click.Choice(["llama-server", "llama-cpp-python"]),
    default="llama-server",
    show_default=True,
    help="Whose defaults the memory is told for.",
)
reserve_option = click.option(
    "--reserve",
    default="",
    metavar="SIZE",
    help="Memory to leave free for others, such as 2GiB; by default a twentieth, 1 GiB at most.",
)
no_memory_check_option = click.option(
    "--no-memory-check",
    is_flag=True,
    help="Run even what does not fit by arithmetic; the process is ended before the machine is.",
)
models_argument = click.argument("models", nargs=-1, metavar="MODEL...")
model_argument = click.argument("model", required=False, metavar="MODEL")


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Apply several options, first one first in the help."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def read_servers(text: str) -> tuple[str, ...]:
    """The endpoints of --rpc, separated by commas."""
    return tuple(server.strip() for server in text.split(",") if server.strip())
