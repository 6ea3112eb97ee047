"""`rooftune export`: a tuned configuration in another runtime's words, tried and complete, or with its gaps named."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_text, say


@click.command("export", help="A result of `tune` in another runtime's format.")
@click.argument("file", required=False, metavar="FILE.yaml")
@click.option("--to", "target", metavar="NAME", help="The format; --list names them.")
@click.option("--list", "as_list", is_flag=True, help="The formats there are.")
@click.option("-o", "--output", "output", metavar="FILE", help="Write here instead of to stdout.")
@with_options(json_option, verbose_option)
def command(*, file: str | None, target: str | None, as_list: bool, output: str | None, as_json: bool, verbose: bool) -> None:
    del verbose
    if as_list:
        _print_list(as_json=as_json)
        return
    if not file or not target:
        raise click.UsageError("Give the YAML file of a tune and --to NAME; `rooftune export --list` names the formats.")
    from tuner.export.base import find_export
    from tuner.report import read_report

    export = find_export(target)
    report = read_report(Path(file))
    text = export.render(report)
    if output:
        _write(text, Path(output))
    if as_json:
        print_json({"name": export.name, "text": text, "dropped": export.dropped(report)})
    elif not output:
        print_text(text)


def _print_list(*, as_json: bool) -> None:
    from tuner.export.base import list_exports

    exports = list_exports()
    if as_json:
        print_json([{"name": each.name, "title": each.title} for each in exports.values()])
        return
    width = max(len(name) for name in exports)
    print_text("\n".join(f"{each.name:<{width}}  {each.title}" for each in exports.values()))


def _write(text: str, path: Path) -> None:
    from tuner.errors import BadInputError

    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"Cannot write {path}: {reason}.", "Give another place with -o.") from error
    say(f"Wrote {path}.")
