"""`rooftune models`: the GGUF files on this machine, each with what its header says, unreadable ones with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_rich

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tuner.model import FoundModel


@click.command("models", help="GGUF files found here, or in the given folders, with size, quantisation and architecture.")
@click.argument("folders", nargs=-1, metavar="[FOLDER]...")
@with_options(json_option, verbose_option)
def command(*, folders: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    from tuner.model import search_models

    del verbose
    found = search_models(folders)
    rows = [_describe(model) for model in found.models]
    if as_json:
        print_json({"models": rows, "notes": list(found.notes)})
    else:
        print_rich(*_render(rows, found.notes))


def _describe(found: FoundModel) -> dict[str, Any]:
    from tuner.errors import BadInputError
    from tuner.model import read_model

    row: dict[str, Any] = {"path": str(found.path), "name": found.name, "place": found.place, "bytes": found.n_bytes}
    try:
        spec = read_model(found.path)
    except BadInputError as error:
        return row | {"quant": None, "architecture": None, "parameters": None, "problem": error.message}
    return row | {"quant": spec.quant, "architecture": spec.architecture, "parameters": spec.parameters, "problem": None}


def _render(rows: list[dict[str, Any]], notes: tuple[str, ...]) -> list[RenderableType]:
    from rich.table import Table

    from tuner.units import NA_TEXT, format_bytes, format_count

    if not rows:
        hint = "Give a folder: rooftune models FOLDER. (--demo in place of MODEL takes the demo model.)"
        return [f"No GGUF files were found here. {hint}", *notes]
    table = Table("model", "size", "quant", "architecture", "parameters", "path")
    for row in rows:
        texts = (
            format_bytes(row["bytes"]),
            row["quant"] or NA_TEXT,
            row["architecture"] or NA_TEXT,
            format_count(row["parameters"]),
        )
        table.add_row(row["name"], *texts, row["path"])
    problems = [f"{row['path']}: {row['problem']}" for row in rows if row["problem"]]
    return [table, *problems, *notes]
