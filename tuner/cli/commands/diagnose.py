"""`rooftune diagnose`: the checklist. What makes this model slow here, what to change, and what that should bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli.options import (
    demo_option,
    engine_option,
    front_end_option,
    json_option,
    model_argument,
    set_option,
    verbose_option,
    with_options,
    workload_option,
)

if TYPE_CHECKING:
    from tuner.memory import FrontEnd

_SYMPTOMS = ("slow-start", "slow-output", "out-of-memory", "many-users", "long-chat")


@click.command("diagnose", help="What makes MODEL slow on this machine, what to change, and what that should bring.")
@model_argument
@click.option("--symptom", type=click.Choice(_SYMPTOMS), help="What you feel; without it the whole checklist is run.")
@click.option("--promise-ttft", default="", metavar="TIME", help="The first token is wanted within this time, such as 2s.")
@click.option(
    "--verify", "try_changes", is_flag=True, help="Try each proposed change and put the gain beside the expected one."
)
@click.option("--budget", default="110s", show_default=True, metavar="TIME", help="Wall time at most, with --verify.")
@click.option("--no-calibrate", is_flag=True, help="Do not measure the machine first; rules that need its figures stay silent.")
@click.option("--reserve", default="", metavar="SIZE", help="Memory to leave alone, such as 2GiB.")
@click.option("--rpc", default="", metavar="HOST:PORT,…", help="Remote devices that may take layers.")
@click.option("--mmproj", default="", metavar="FILE", help="A projector that is started along: its memory counts.")
@click.option("--draft", default="", metavar="FILE", help="A draft model that is started along: its memory counts.")
@with_options(front_end_option, demo_option, workload_option, set_option, engine_option, json_option, verbose_option)
def command(
    *,
    model: str | None,
    symptom: str | None,
    promise_ttft: str,
    try_changes: bool,
    budget: str,
    no_calibrate: bool,
    reserve: str,
    rpc: str,
    mmproj: str,
    draft: str,
    front_end: FrontEnd,
    demo: bool,
    workload: str,
    settings: tuple[str, ...],
    engine: str,
    as_json: bool,
    verbose: bool,
) -> None:
    from tuner.cli.commands._findings import render_diagnosis
    from tuner.cli.commands._progress import open_progress
    from tuner.cli.interrupts import hear_interrupts
    from tuner.cli.output import print_json, print_rich, say
    from tuner.hardware import HardwareProfile
    from tuner.roofline.ceilings import Ceilings
    from tuner.session.diagnosing import DiagnoseRequest, diagnose
    from tuner.session.predicting import find_stored_figures

    request = DiagnoseRequest(
        models=(model,) if model else (),
        demo=demo,
        workload=workload,
        settings=settings,
        symptom=symptom or "",
        promise_ttft=promise_ttft,
        verify=try_changes,
        budget=budget,
        engine=engine,
        reserve=reserve,
        rpc=tuple(server.strip() for server in rpc.split(",") if server.strip()),
        mmproj=mmproj,
        draft=draft,
        front_end=front_end,
    )
    progress = open_progress(goal="", verbose=verbose)
    with hear_interrupts() as stop, progress:

        def find_figures(machine: HardwareProfile) -> Ceilings:
            return find_stored_figures(
                machine, servers=request.rpc, may_calibrate=not no_calibrate, say=progress.tell, stop=stop
            )

        diagnosis = diagnose(request, tell=progress.tell, stop=stop, find_figures=find_figures)
    for note in diagnosis.notes:
        say(f"note: {note}")
    if as_json:
        print_json(list(diagnosis.findings))
    else:
        print_rich(*render_diagnosis(diagnosis))
