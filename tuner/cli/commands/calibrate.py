"""`rooftune calibrate`: what this machine can do at best, measured once through llama.cpp itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tuner.cli.interrupts import hear_interrupts
from tuner.cli.options import json_option, read_servers, rpc_option, verbose_option, with_options
from tuner.cli.output import print_json, print_rich, say
from tuner.units import format_amount, format_ms

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.roofline.ceilings import Ceilings, Figure

_STOPPING = "Stopping; nothing is kept."


@click.command("calibrate", help="Measure once what this machine can do at best; predictions are made of it.")
@click.option("--force", is_flag=True, help="Measure again, although figures are kept.")
@with_options(rpc_option, json_option, verbose_option)
def command(*, force: bool, rpc: str, as_json: bool, verbose: bool) -> None:
    from tuner.session.calibrating import calibrate_machine

    del verbose
    with hear_interrupts(answer=_STOPPING, at_once=True) as stop:
        found = calibrate_machine(force=force, servers=read_servers(rpc), tell=say, stop=stop)
    if not found.fresh:
        say(f"Kept from {found.ceilings.made}; --force measures again.")
    if as_json:
        print_json(found.ceilings)
        return
    print_rich(found.ceilings.summary, *_draw(found.ceilings), *(f"note: {doubt}" for doubt in found.ceilings.doubts))


def _draw(ceilings: Ceilings) -> Iterator[Table]:
    yield _draw_formats(ceilings)
    yield _draw_attention(ceilings)
    yield _draw_fixed(ceilings)
    if ceilings.links:
        yield _draw_links(ceilings)


def _open_table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right")
    return table


def _draw_formats(ceilings: Ceilings) -> Table:
    """Bytes a second for one token, operations a second (multiplications and additions) for the fastest batch."""
    from tuner.roofline.work import bits_of

    table = _open_table(
        "weights (Gop: a billion multiplications and additions)",
        "device",
        "format",
        "threads",
        "reading, 1 token",
        "multiplying",
        "at tokens",
    )
    groups = dict.fromkeys((each.device, each.format, each.threads) for each in ceilings.formats)
    for device, form, threads in groups:
        mine = [each for each in ceilings.formats if (each.device, each.format, each.threads) == (device, form, threads)]
        first = min(mine, key=lambda each: each.tokens)
        best = max(mine, key=lambda each: each.tokens / each.seconds_per_byte.value)
        rate = 2 * best.tokens * 8 / bits_of(form)
        table.add_row(
            device,
            form,
            _write_threads(threads),
            _write_inverse(first.seconds_per_byte, 1.0, "GB/s"),
            _write_inverse(best.seconds_per_byte, rate, "Gop/s"),
            str(best.tokens),
        )
    return table


def _draw_attention(ceilings: Ceilings) -> Table:
    table = _open_table("history", "device", "cache (K/V)", "flash attention", "head size", "threads", "tokens", "speed")
    for each in ceilings.attention:
        table.add_row(
            each.device,
            f"{each.cache_type_k}/{each.cache_type_v}",
            "on" if each.flash_attn else "off",
            str(each.head_size) if each.head_size else "any",
            _write_threads(each.threads),
            str(each.tokens),
            _write_inverse(each.seconds_per_op, 1.0, "Gop/s"),
        )
    return table


def _draw_fixed(ceilings: Ceilings) -> Table:
    table = _open_table("fixed cost", "device", "threads", "tokens", "each step", "each layer")
    for each in ceilings.fixed:
        threads, step, layer = _write_threads(each.threads), _write_time(each.step_s), _write_time(each.layer_s)
        table.add_row(each.device, threads, str(each.tokens), step, layer)
    return table


def _draw_links(ceilings: Ceilings) -> Table:
    table = _open_table("way from main memory", "device", "much data", "each crossing")
    for each in ceilings.links:
        speed = f"{format_amount(each.bytes_per_s.value / 1e9, 'GB/s')}{_write_spread(each.bytes_per_s)}"
        table.add_row(each.device, speed, _write_time(each.latency_s))
    return table


def _write_threads(threads: int) -> str:
    return str(threads) if threads else "-"


def _write_inverse(figure: Figure, amount: float, unit: str) -> str:
    """In billions: bytes, or multiplications and additions."""
    if figure.value <= 0:
        return "too fast to tell"
    return f"{format_amount(amount / figure.value / 1e9, unit)}{_write_spread(figure)}"


def _write_time(figure: Figure) -> str:
    return f"{format_ms(figure.value * 1e3)}{_write_spread(figure)}"


def _write_spread(figure: Figure) -> str:
    return f" ± {figure.spread:.0%}{' (busy)' if figure.marked else ''}"
