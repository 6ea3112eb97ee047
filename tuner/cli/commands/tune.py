"""`rooftune tune`: search, prove, and write the result; all talk on stderr, the answer on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tuner.cli.interrupts import hear_interrupts
from tuner.cli.options import (
    demo_option,
    engine_option,
    json_option,
    models_argument,
    no_memory_check_option,
    reserve_option,
    set_option,
    verbose_option,
    with_options,
    workload_option,
)
from tuner.cli.output import print_json, print_rich, print_text, say, spell
from tuner.cli.program import find_tool

if TYPE_CHECKING:
    from tuner.session import Saved

_SAVING: Final = "Finishing this sample, then saving; once more stops at once."
_SERVER: Final = "llama-server"
_BENCH: Final = "llama-bench"


@click.command("tune", help="Search the settings that make MODEL (a file, or all formats of one) fastest here.")
@models_argument
@click.option(
    "--objective",
    default="latency",
    show_default=True,
    metavar="GOAL[,GOAL…]",
    help="ttft, tpot, latency, throughput or context; several give the best compromises.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="A promise to keep, such as 'tpot<=50ms', on ttft, tpot, latency, throughput, memory or ctx_size; repeatable.",
)
@click.option(
    "--space",
    default="",
    metavar="NAME|FILE.yaml",
    help="What to search: quick, cpu, gpu, long_context, server or a file; by default chosen by machine and goal.",
)
@click.option(
    "--budget", default="10m", show_default=True, metavar="TIME", help="Wall time for everything, such as 90s, 10m or 1h30m."
)
@click.option("--trials", type=click.IntRange(min=1), help="Most points to run.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the search.")
@click.option("--storage", default="", metavar="URL", help="Optuna storage; by default results/studies.db here.")
@click.option("--study", default="", metavar="NAME", help="Name in the storage.")
@click.option("--resume", default="", metavar="NAME", help="Go on with this study; nothing else need be given.")
@click.option(
    "-o", "--output", default="", metavar="FILE.yaml", help="Where the result goes; results/<study>.yaml if not given."
)
@click.option(
    "--strategy",
    type=click.Choice(["physics", "tpe", "random"]),
    default="physics",
    show_default=True,
    help="Who proposes the points; physics screens with short runs first, tpe and random are Optuna's own.",
)
@click.option("--allow-quality-loss", is_flag=True, help="A less precise file or cache type may win.")
@click.option("--rpc", default="", metavar="HOST:PORT,…", help="Remote devices that may take layers.")
@with_options(reserve_option, no_memory_check_option)
@with_options(demo_option, workload_option, set_option, engine_option, json_option, verbose_option)
def command(*, rpc: str, as_json: bool, verbose: bool, storage: str, **options: Any) -> None:
    from tuner.cli.commands._progress import open_progress
    from tuner.report.summary import render_summary
    from tuner.session import DEFAULT_STORAGE, TuneRequest, restore_request, save_report, tune

    servers = tuple(server.strip() for server in rpc.split(",") if server.strip())
    request = restore_request(TuneRequest(**options, storage=storage or DEFAULT_STORAGE, rpc=servers))
    progress = open_progress(goal=request.objective.split(",")[0].strip(), verbose=verbose)
    with hear_interrupts(answer=_SAVING) as stop, progress:
        report = tune(request, emit=progress.show, stop=stop)
    if as_json:
        print_json(report)
    else:
        print_rich(*render_summary(report))
    saved = save_report(report, request)
    if as_json:
        say(f"Written: {saved.path}")
    else:
        print_text("\n".join(list_commands(saved)))


def list_commands(saved: Saved) -> list[str]:
    """What can be done with the result, each as a command that works when it is pasted here, or with what it lacks."""
    from tuner.hardware.build import find_tools

    tools = find_tools()
    server, bench = (find_tool(name, tools) for name in (_SERVER, _BENCH))
    serve = saved.serve_command if server is None else saved.serve_command.replace(_SERVER, server, 1)
    reproduce = saved.reproduce_command
    if bench not in {None, _BENCH}:
        reproduce = reproduce.replace("| sh", f'| PATH="{Path(tools[_BENCH]).parent}:$PATH" sh')
    again = [f"measure it again: {saved.measure_command}"] if saved.measure_command else []
    lines = [
        f"written: {saved.path}",
        f"verify it: {saved.verify_command}",
        f"serve it{_tell_missing(_SERVER, server)}: {serve}",
        *again,
        f"reproduce it with llama-bench{_tell_missing(_BENCH, bench)}: {reproduce}",
        f"other formats: {saved.export_command}",
    ]
    return [spell(line) for line in lines]


def _tell_missing(tool: str, found: str | None) -> str:
    return "" if found else f" ({tool} of llama.cpp was not found here; it must be installed and on PATH)"
