"""`rooftune explain`: the manual of a setting."""

from __future__ import annotations

import inspect

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_text


@click.command("explain", help="The manual of a setting: what it is, which phase it moves, and when it hurts.")
@click.argument("name", metavar="DIMENSION")
@with_options(json_option, verbose_option)
def command(*, name: str, as_json: bool, verbose: bool) -> None:
    """Raises UsageError for a name that has no manual."""
    from tuner.errors import UsageError
    from tuner.space import find_dimension, list_dimensions, suggest_name

    del verbose
    dimension = find_dimension(name.strip().removeprefix("--").replace("-", "_"))
    if dimension is None:
        shown = name if len(name) <= 60 else name[:57] + "…"
        raise UsageError(f"There is no manual of {shown!r}.", suggest_name(name, [each.name for each in list_dimensions()]))
    manual = inspect.cleandoc(type(dimension).__doc__ or "")
    affects = sorted(dimension.affects)
    if as_json:
        document = {"name": dimension.name, "title": dimension.title, "affects": affects, "cost": dimension.cost}
        print_json({**document, "manual": manual})
        return
    print_text(f"{dimension.name}: {dimension.title}\nmoves {', '.join(affects)}; {_COSTS[dimension.cost]}\n\n{manual}")


_COSTS = {
    "live": "changed without rebuilding anything",
    "context": "a change needs a new context",
    "model": "a change loads the model anew",
    "process": "a change needs a new process",
}
