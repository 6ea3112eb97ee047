"""`rooftune inspect`: what a model file is, and what it takes of memory, without loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli.options import (
    demo_option,
    front_end_option,
    json_option,
    model_argument,
    reserve_option,
    set_option,
    verbose_option,
    with_options,
)
from tuner.cli.output import print_json, print_rich

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tuner.cli.commands._inspection import Inspection
    from tuner.memory import FrontEnd
    from tuner.model import ModelSpec
    from tuner.runconfig import RunConfig


@click.command("inspect", help="A model's facts and its memory: bytes by tensor type, KV cache by context and type, what fits.")
@model_argument
@click.option("--ctx", "ctx_size", metavar="N", help="Context to show, tokens; short for --set ctx_size=N.")
@reserve_option
@click.option("--mmproj", metavar="FILE", help="Count this projector too.")
@click.option("--draft", metavar="FILE", help="Count this draft model too.")
@with_options(front_end_option, set_option, demo_option, json_option, verbose_option)
def command(
    *,
    model: str | None,
    ctx_size: str | None,
    reserve: str,
    mmproj: str | None,
    draft: str | None,
    front_end: FrontEnd,
    settings: tuple[str, ...],
    demo: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    from tuner.memory import read_projector
    from tuner.model import read_model
    from tuner.session.guarding import read_rules

    del verbose
    reserve_bytes = read_rules(reserve, no_memory_check=False).reserve_bytes
    spec = _read_named(model, demo=demo)
    config = _choose_config(spec, front_end, settings, ctx_size)
    projector = None if mmproj is None else read_projector(mmproj)
    beside = None if draft is None else read_model(draft)
    from tuner.cli.commands._inspection import inspect_model
    from tuner.hardware import profile_machine

    inspection = inspect_model(
        spec,
        config,
        front_end,
        profile_machine(),
        reserve_bytes=reserve_bytes,
        projector=projector,
        draft=beside,
    )
    if as_json:
        print_json(inspection.as_dict())
    else:
        print_rich(*render_inspection(inspection))


def _read_named(model: str | None, *, demo: bool) -> ModelSpec:
    from tuner.errors import UsageError
    from tuner.model import demo_model_path, read_model

    if demo == bool(model):
        raise UsageError("inspect takes one MODEL, or --demo in its place.", "Give the path of a GGUF file.")
    return read_model(demo_model_path() if model is None else model)


def _choose_config(spec: ModelSpec, front_end: FrontEnd, settings: tuple[str, ...], ctx_size: str | None) -> RunConfig:
    """The front end's defaults at a chosen context, changed by what the user set; --ctx wins."""
    from tuner.errors import UsageError, reading_flag
    from tuner.memory import default_config
    from tuner.space import parse_settings
    from tuner.units import parse_count

    changes = parse_settings(settings)
    if ctx_size is not None:
        with reading_flag("--ctx"):
            changes["ctx_size"] = parse_count(ctx_size)
    changes.pop("model", None)
    if not 0 <= changes.get("ctx_size", 0) < 2**31:
        raise UsageError(f"A context of {changes['ctx_size']} tokens cannot be meant.", "Give a number below 2147483648.")
    return default_config(front_end, spec).replace(**changes)


def render_inspection(inspection: Inspection) -> list[RenderableType]:
    """Tables for a terminal."""
    found: list[RenderableType] = [_draw_facts(inspection), _draw_types(inspection), _draw_footprint(inspection)]
    if inspection.model.has_kv:
        found.append(_draw_kv(inspection))
    found += [f"Does not fit: {inspection.misfit}"] if inspection.misfit else []
    if inspection.largest_context:
        found.append(_draw_largest(inspection))
    return [*found, *(f"· {note}" for note in inspection.notes)]


def _draw_facts(inspection: Inspection) -> RenderableType:
    from rich.table import Table

    from tuner.units import NA_TEXT, format_bytes, format_count

    model = inspection.model
    kinds: dict[str, int] = {}
    for layer in model.layers:
        kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
    table = Table(title=model.name, show_header=False, title_justify="left")
    rows = (
        ("architecture", model.architecture),
        ("quantisation", f"{model.quant}, {model.bits_per_weight:.2f} bits per weight"),
        ("parameters", format_count(model.parameters)),
        ("file", f"{format_bytes(model.file_bytes)}, {len(model.shards)} shard(s)"),
        ("blocks", ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or NA_TEXT),
        (
            "embedding",
            f"{model.n_embd or NA_TEXT} wide, {model.n_vocab or NA_TEXT} tokens, tied: {_yes(model.tied_embeddings)}",
        ),
        ("trained context", f"{model.context_length or NA_TEXT}"),
        ("sliding window", f"{model.n_swa or 'none'}"),
        ("experts", f"{model.n_expert} ({model.n_expert_used} used)" if model.is_moe else "none"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _draw_types(inspection: Inspection) -> RenderableType:
    from rich.table import Table

    from tuner.units import format_bytes

    table = Table("tensor type", "bytes", title="Weights by type", title_justify="left")
    for name, size in inspection.model.bytes_by_type:
        table.add_row(name, format_bytes(size))
    return table


def _draw_footprint(inspection: Inspection) -> RenderableType:
    from rich.table import Table

    from tuner.units import format_bytes

    config, footprint = inspection.config, inspection.footprint
    title = f"Memory under {inspection.front_end} at {config.ctx_size or 'full'} tokens of context, {config.parallel} slot(s)"
    table = Table("for", "on", "bytes", "known as", title=title, title_justify="left")
    for part in footprint.parts:
        table.add_row(part.cause, part.device, format_bytes(part.n_bytes), part.basis)
    table.add_row("total", "", format_bytes(footprint.total_bytes), footprint.basis)
    return table


def _draw_kv(inspection: Inspection) -> RenderableType:
    from rich.table import Table

    from tuner.units import format_bytes

    kinds = list(dict.fromkeys(row.cache_type for row in inspection.kv_table))
    table = Table("context", *kinds, title="KV cache", title_justify="left")
    sizes = {(row.ctx_size, row.cache_type): row.kv_bytes for row in inspection.kv_table}
    for ctx in dict.fromkeys(row.ctx_size for row in inspection.kv_table):
        table.add_row(str(ctx), *(format_bytes(sizes[ctx, kind]) for kind in kinds))
    if inspection.kv_at_full_context is not None:
        table.caption = f"at full context ({inspection.model.context_length}): {format_bytes(inspection.kv_at_full_context)}"
    return table


def _draw_largest(inspection: Inspection) -> RenderableType:
    from rich.table import Table

    table = Table("cache type", "context", title="Largest context that fits here now", title_justify="left")
    for kind, ctx in inspection.largest_context.items():
        table.add_row(kind, str(ctx) if ctx else "none")
    return table
