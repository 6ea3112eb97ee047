"""`rooftune explain`: the manual of a setting, or of a rule of the checklist; without a name, the list of both."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_text, spell

if TYPE_CHECKING:
    from tuner.rules.base import Rule
    from tuner.space import Dimension


_SETTINGS: Final = "settings"


@click.command(
    "explain",
    help="The manual of a setting (which phase it moves, when it hurts) or of a rule that `diagnose` names by code; "
    "without a name, all there are.",
)
@click.argument("name", metavar="[CODE|DIMENSION]", required=False)
@with_options(json_option, verbose_option)
def command(*, name: str | None, as_json: bool, verbose: bool) -> None:
    """Raises UsageError for a name that has no manual."""
    from tuner.errors import UsageError
    from tuner.rules.catalogue import find_rule, list_rules
    from tuner.space import find_dimension, suggest_dimension

    del verbose
    if name is None:
        _print_list(as_json=as_json)
        return
    if (rule := find_rule(name)) is not None:
        _print_rule(rule, as_json=as_json)
        return
    dimension = find_dimension(name.strip().removeprefix("--").replace("-", "_"))
    if dimension is None:
        shown = name if len(name) <= 60 else name[:57] + "…"
        raise UsageError(f"There is no manual of {shown!r}.", suggest_dimension(name, *(each.code for each in list_rules())))
    _print_dimension(dimension, as_json=as_json)


def _print_list(*, as_json: bool) -> None:
    entries = list(_list_entries())
    if as_json:
        print_json([{"area": area, "name": name, "title": title} for area, name, title in entries])
        return
    width = max(len(name) for _, name, _ in entries)
    for area, members in groupby(entries, key=lambda entry: entry[0]):
        print_text("\n".join((f"{area}:", *(f"  {name:<{width}}  {title}" for _, name, title in members))))
    print_text(spell("The manual of one: rooftune explain NAME"))


def _list_entries() -> Iterator[tuple[str, str, str]]:
    """Area, name and title of everything with a manual: the settings, then the rules by the symptom they are filed under."""
    from tuner.rules.catalogue import list_rules
    from tuner.space import list_dimensions

    yield from ((_SETTINGS, dimension.name, dimension.title) for dimension in list_dimensions())
    for rule in list_rules():
        yield type(rule).__module__.split(".")[-2].replace("_", "-"), rule.code, rule.title


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
