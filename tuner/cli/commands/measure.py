"""`rooftune measure`: one configuration, measured with full turns in the child that `tune` uses as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli.options import (
    demo_option,
    engine_option,
    json_option,
    model_argument,
    no_memory_check_option,
    reserve_option,
    set_option,
    verbose_option,
    with_options,
    workload_option,
)
from tuner.cli.output import print_json, print_rich, say

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.measure.record import Measurement


@click.command("measure", help="Measure one configuration of MODEL: time to first token, time per token, memory.")
@model_argument
@click.option("--samples", type=click.IntRange(1, 1000), default=5, show_default=True, help="Undisturbed turns wanted.")
@click.option("--rpc", default="", metavar="HOST:PORT,…", help="Remote devices that may take layers.")
@with_options(reserve_option, no_memory_check_option)
@with_options(demo_option, workload_option, set_option, engine_option, json_option, verbose_option)
def command(
    *,
    model: str | None,
    samples: int,
    rpc: str,
    reserve: str,
    no_memory_check: bool,
    demo: bool,
    workload: str,
    settings: tuple[str, ...],
    engine: str,
    as_json: bool,
    verbose: bool,
) -> None:
    from tuner.cli.interrupts import hear_interrupts
    from tuner.report.build import build_side
    from tuner.session import MeasureRequest, measure_once

    request = MeasureRequest(
        models=(model,) if model else (),
        demo=demo,
        workload=workload,
        settings=settings,
        engine=engine,
        samples=samples,
        rpc=tuple(server.strip() for server in rpc.split(",") if server.strip()),
        reserve=reserve,
        no_memory_check=no_memory_check,
    )
    with hear_interrupts() as stop:
        measurement = measure_once(request, stop=stop)
    for note in measurement.notes:
        say(f"note: {note}")
    if as_json:
        print_json(build_side(measurement))
        return
    print_rich(draw_figures(measurement))
    if verbose:
        print_rich(draw_samples(measurement))


def draw_figures(measurement: Measurement) -> Table:
    """The medians, each with its spread over the samples."""
    from rich.table import Table

    from tuner.units import format_bytes, format_ms, format_rate

    workload, samples = measurement.workload, measurement.samples
    depth = workload.depth_tokens
    table = Table("measured", "median", "spread", title=describe_point(measurement), title_justify="left")
    rows = (
        (
            f"TTFT, {workload.prompt_tokens} tokens @ depth {depth}",
            format_ms(measurement.ttft_ms),
            _spread([s.ttft_ms for s in samples]),
        ),
        (
            f"TPOT, {measurement.decode_tokens} tokens @ depth {depth + workload.prompt_tokens}",
            format_ms(measurement.tpot_ms),
            _spread([s.tpot_ms for s in samples]),
        ),
        (f"latency of {workload.output_tokens} tokens", format_ms(measurement.latency_ms), ""),
        ("decode throughput", format_rate(measurement.throughput_tps), _spread([s.decode_tps for s in samples])),
        ("throughput with prefill", format_rate(measurement.throughput_total_tps), _spread([s.total_tps for s in samples])),
        ("memory", format_bytes(measurement.memory_bytes), ""),
        ("loading the model", format_ms(measurement.load_ms), ""),
    )
    for row in rows:
        table.add_row(*row)
    return table


def draw_samples(measurement: Measurement) -> Table:
    """Every turn, and why it did not count where it did not."""
    from rich.table import Table

    from tuner.units import format_ms

    table = Table("turn", "TTFT", "TPOT", "processor, prefill", "decode", "others' cores", "disturbed by", title="raw samples")
    for number, sample in enumerate((*measurement.samples, *measurement.discarded), 1):
        shares = (_percent(sample.prefill_cpu_share), _percent(sample.decode_cpu_share))
        others = "n/a" if sample.others_cores is None else f"{sample.others_cores:.1f}"
        table.add_row(str(number), format_ms(sample.ttft_ms), format_ms(sample.tpot_ms), *shares, others, sample.disturbed)
    return table


def describe_point(measurement: Measurement) -> str:
    """Workload, engine and the settings that matter on every machine."""
    config = measurement.config
    settings = (
        f"ctx_size {config.ctx_size}, batch_size {config.batch_size}, ubatch_size {config.ubatch_size}, "
        f"threads {config.threads}, threads_batch {config.threads_batch}, "
        f"flash_attn {measurement.flash_attn or config.flash_attn}, cache {config.cache_type_k}/{config.cache_type_v}"
    )
    runtime = measurement.runtime
    return f"{measurement.workload.name} on {runtime.engine} {runtime.version}, {len(measurement.samples)} samples; {settings}"


def _spread(values: list[float | None]) -> str:
    from tuner.measure.statistics import relative_spread

    known = [value for value in values if value is not None]
    return f"± {relative_spread(known):.1%}" if len(known) > 1 else ""


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.0%}"
