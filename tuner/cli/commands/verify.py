"""`rooftune verify`: does a tuned configuration still hold its gain here and now?"""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli.options import json_option, no_memory_check_option, reserve_option, verbose_option, with_options


@click.command("verify", help="Measure a tuned configuration again against the default; exit 5 if the gain is gone.")
@click.argument("file", metavar="FILE.yaml")
@click.option("--budget", default="5m", show_default=True, metavar="TIME", help="Wall time at most.")
@with_options(reserve_option, no_memory_check_option, json_option, verbose_option)
def command(*, file: str, budget: str, reserve: str, no_memory_check: bool, as_json: bool, verbose: bool) -> int:
    from tuner.cli.commands._progress import open_progress
    from tuner.cli.interrupts import hear_interrupts
    from tuner.cli.output import complain, print_json, print_rich
    from tuner.errors import ExitCode
    from tuner.session import verify

    progress = open_progress(goal="", verbose=verbose)
    with hear_interrupts() as stop, progress:
        verification = verify(
            Path(file),
            budget=budget,
            reserve=reserve,
            no_memory_check=no_memory_check,
            tell=progress.tell,
            stop=stop,
        )
    if as_json:
        print_json(verification)
    else:
        from rich.text import Text

        print_rich(*(Text(line) for line in verification.describe()))
    if verification.holds:
        return ExitCode.DONE
    complain(verification.verdict, "Run `rooftune tune` again.")
    return ExitCode.VERIFICATION_FAILED
