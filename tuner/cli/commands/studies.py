"""`rooftune studies`: what was tuned here, finished or not; `rooftune tune --resume NAME` goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli.options import json_option, verbose_option, with_options
from tuner.cli.output import print_json, print_rich, print_text, spell

if TYPE_CHECKING:
    from tuner.study.storage import StoredStudy


@click.command("studies", help="Past and interrupted studies; `rooftune tune --resume NAME` goes on with one.")
@click.option("--storage", default="", metavar="URL", help="Optuna storage URL; the one in results/ when not given.")
@with_options(json_option, verbose_option)
def command(*, storage: str, as_json: bool, verbose: bool) -> None:
    """List the studies of a storage."""
    from tuner.study.request import DEFAULT_STORAGE
    from tuner.study.storage import read_studies

    del verbose
    url = storage or DEFAULT_STORAGE
    found = read_studies(url)
    if as_json:
        print_json(found)
    elif not found:
        print_text(spell(f"No studies in {url} yet; `rooftune tune MODEL` makes one."))
    else:
        _print_table(found)


def _print_table(found: tuple[StoredStudy, ...]) -> None:
    from rich.table import Table

    from tuner.units import NA_TEXT, format_comparison, format_duration

    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold", min_width=max(len(study.name) for study in found))
    for title in ("state", "trials", "complete", "time", "gain", "started"):
        table.add_column(title, overflow="fold")
    for study in found:
        table.add_row(
            study.name,
            study.state,
            str(study.trials),
            str(study.complete),
            format_duration(study.elapsed_s),
            format_comparison(study.gain),
            study.started or NA_TEXT,
        )
    print_rich(table)
