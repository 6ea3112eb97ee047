"""`rooftune explain`: the manual of a setting, or of a rule of the checklist."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_text

if TYPE_CHECKING:
    from tuner.rules.base import Rule
    from tuner.space import Dimension


@click.command(
    "explain", help="The manual of a setting (which phase it moves, when it hurts) or of a rule that `diagnose` names by code."
)
@click.argument("name", metavar="CODE|DIMENSION")
@with_options(json_option, verbose_option)
def command(*, name: str, as_json: bool, verbose: bool) -> None:
    """Raises UsageError for a name that has no manual."""
    from tuner.errors import UsageError
    from tuner.rules.catalogue import find_rule, list_rules
    from tuner.space import find_dimension, list_dimensions, suggest_name

    del verbose
    if (rule := find_rule(name)) is not None:
        _print_rule(rule, as_json=as_json)
        return
    dimension = find_dimension(name.strip().removeprefix("--").replace("-", "_"))
    if dimension is None:
        shown = name if len(name) <= 60 else name[:57] + "…"
        known = [*(each.name for each in list_dimensions()), *(each.code for each in list_rules())]
        meant = name.strip().upper() if any(letter.isdigit() for letter in name) else name
        raise UsageError(f"There is no manual of {shown!r}.", suggest_name(meant, known))
    _print_dimension(dimension, as_json=as_json)


def _print_dimension(dimension: Dimension, *, as_json: bool) -> None:
    manual = inspect.cleandoc(type(dimension).__doc__ or "")
    affects = sorted(dimension.affects)
    if as_json:
        document = {"name": dimension.name, "title": dimension.title, "affects": affects, "cost": dimension.cost}
        print_json({**document, "manual": manual})
        return
    print_text(f"{dimension.name}: {dimension.title}\nmoves {', '.join(affects)}; {_COSTS[dimension.cost]}\n\n{manual}")


def _print_rule(rule: Rule, *, as_json: bool) -> None:
    from tuner.rules.catalogue import read_manual

    symptoms = sorted(rule.symptoms)
    if as_json:
        print_json({"code": rule.code, "title": rule.title, "symptoms": symptoms, "manual": read_manual(rule)})
        return
    print_text(f"{rule.code}: {rule.title}\nbelongs to {', '.join(symptoms)}\n\n{read_manual(rule)}")


_COSTS = {
    "live": "changed without rebuilding anything",
    "context": "a change needs a new context",
    "model": "a change loads the model anew",
    "process": "a change needs a new process",
}
