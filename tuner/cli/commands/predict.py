"""`rooftune predict`: how fast models should be, and what holds them up, without loading them."""

from __future__ import annotations

import click

from tuner.cli.options import (
    demo_option,
    json_option,
    models_argument,
    read_servers,
    rpc_option,
    set_option,
    verbose_option,
    with_options,
    workload_option,
)
from tuner.cli.output import print_json, print_rich, say


@click.command("predict", help="How fast each MODEL should be here, and what holds it up, without loading it.")
@models_argument
@click.option(
    "--objective",
    default="latency",
    show_default=True,
    metavar="GOAL",
    help="Order by ttft, tpot, latency, throughput or context.",
)
@click.option(
    "--machine",
    default="",
    metavar="NAME|FILE.yaml",
    help="For another machine, by its data sheet; GPU+CPU where layers may stay in main memory.",
)
@click.option(
    "--no-calibrate", is_flag=True, help="Exit 4 where this machine is not calibrated, instead of measuring it first."
)
@with_options(rpc_option, demo_option, workload_option, set_option, json_option, verbose_option)
def command(
    *,
    models: tuple[str, ...],
    objective: str,
    machine: str,
    no_calibrate: bool,
    rpc: str,
    demo: bool,
    workload: str,
    settings: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> None:
    from tuner.cli.commands._forecast import describe_forecast, render_forecast, render_table
    from tuner.hardware import HardwareProfile
    from tuner.roofline.ceilings import Ceilings
    from tuner.session.predicting import PredictRequest, find_stored_figures, predict_models

    servers = read_servers(rpc)
    request = PredictRequest(
        models=models, demo=demo, workload=workload, settings=settings, objective=objective, machine=machine, rpc=servers
    )

    def find_figures(profile: HardwareProfile) -> Ceilings:
        from tuner.cli.interrupts import hear_interrupts

        with hear_interrupts(answer="Stopping; nothing is kept.", at_once=True) as stop:
            return find_stored_figures(profile, servers=servers, may_calibrate=not no_calibrate, say=say, stop=stop)

    forecasts = predict_models(request, find_figures=find_figures)
    for reason in forecasts.passed_over:
        say(f"note: passed over {reason}")
    if as_json:
        print_json([describe_forecast(item, forecasts.ceilings) for item in forecasts.items])
    elif len(forecasts.items) == 1:
        print_rich(*render_forecast(forecasts.items[0], forecasts.ceilings, verbose=verbose))
    else:
        print_rich(*render_table(forecasts))
