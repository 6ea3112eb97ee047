"""How predictions are told: a JSON object like those of measurements, and for people what binds, by how much, and what follows.

Every figure is marked predicted (or assumed, from a data sheet), with its interval and what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuner.units import NA_TEXT, format_amount, format_bytes, format_count, format_ms, format_rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tuner.roofline.ceilings import Ceilings, DeviceCeiling
    from tuner.roofline.record import Estimate, PhasePrediction, Resource
    from tuner.session.predicting import Forecast, Forecasts

INTERVAL: Final = 0.8
"""Share of cases that an interval should hold."""

_METRICS: Final = {
    "ttft_ms": "ttft",
    "tpot_ms": "tpot",
    "latency_ms": "latency",
    "throughput_tps": "throughput",
    "throughput_total_tps": "throughput_total",
}

_MEANINGS: Final[dict[Resource, str]] = {
    "compute": "computing, the processor's arithmetic",
    "memory bandwidth": "memory, from which weights and history come in no faster",
    "link": "the way between main memory and the device",
    "fixed overhead": "what each layer and step costs however small the model",
}

_LIMITS: Final = {"compute": "the processor's arithmetic", "memory bandwidth": "memory"}

FAR_BELOW: Final = 0.3
"""Share of the binding roof below which the roof cannot be what holds a phase up."""

_REMEDIES: Final[dict[Resource, str]] = {
    "compute": "fewer prompt tokens, a faster processor or a smaller model help; faster memory does not",
    "memory bandwidth": "a smaller format, a smaller model or faster memory help; more computing power does not",
    "link": "all layers on one side help; a faster processor does not",
    "fixed overhead": "more slots at once or another number of threads help; a smaller format hardly does",
}


def describe_forecast(item: Forecast, ceilings: Ceilings) -> dict[str, Any]:
    """Plain values for JSON: shaped like `best` of tune, with where each figure comes from."""
    import msgspec

    from tuner.report.build import note_model

    prediction, plain = item.prediction, msgspec.to_builtins
    estimates: dict[str, Estimate] = {key: getattr(prediction, name) for key, name in _METRICS.items()}
    return {
        "source": "predicted",
        "basis": prediction.ttft.basis,
        "model": plain(note_model(item.model)),
        "workload": plain(prediction.workload),
        "config": prediction.config.as_dict(),
        **{key: each.value for key, each in estimates.items()},
        "memory_bytes": prediction.memory_bytes,
        "quality": None,
        "samples": {},
        "interval": INTERVAL,
        "intervals": {key: [each.low, each.high] for key, each in estimates.items()},
        "bound": {"prefill": prediction.prefill.bound, "decode": prediction.decode.bound},
        "prefill": plain(prediction.prefill),
        "decode": plain(prediction.decode),
        "method": _describe_method(ceilings),
        "fits": item.misfit is None,
        "misfit": item.misfit,
        "largest_context": item.largest_context,
        "batch_knee": item.batch_knee,
        "depths": [
            {
                "depth_tokens": each.depth_tokens,
                "tpot_ms": each.tpot.value,
                "interval_ms": [each.tpot.low, each.tpot.high],
                "history_share": each.history_share,
            }
            for each in item.depths
        ],
        "slots": [
            {
                "slots": each.slots,
                "tpot_ms": each.tpot.value,
                "throughput_tps": each.throughput.value,
                "interval_tps": [each.throughput.low, each.throughput.high],
                "bound": each.bound,
            }
            for each in item.slots
        ],
        "notes": list(dict.fromkeys((*prediction.notes, *item.footprint.notes))),
    }


def _describe_method(ceilings: Ceilings) -> dict[str, Any]:
    return {
        "source": ceilings.source,
        "machine": ceilings.machine,
        "summary": ceilings.summary,
        "llama_cpp": ceilings.llama_cpp,
        "made": ceilings.made,
        "devices": [
            {
                "device": each.device,
                "bandwidth_bytes_per_s": each.bandwidth.value,
                "compute_ops_per_s": each.compute.value,
                "ridge_ops_per_byte": each.compute.value / each.bandwidth.value,
            }
            for each in ceilings.devices
        ],
    }


def render_forecast(item: Forecast, ceilings: Ceilings, *, verbose: bool) -> Iterator[RenderableType]:
    """One model: figures, what binds, the history, the slots, memory."""
    prediction, basis = item.prediction, item.prediction.ttft.basis
    yield _draw_figures(item, ceilings)
    yield tell_phase("Reading the prompt (prefill)", prediction.prefill, basis)
    yield tell_phase("Writing the answer (decode)", prediction.decode, basis)
    yield _draw_depths(item)
    yield _draw_slots(item)
    yield _tell_knee(item)
    yield from _tell_memory(item)
    yield from (_tell_roofs(each, ceilings) for each in ceilings.devices)
    notes = (*prediction.notes, *(item.footprint.notes if verbose else ()))
    yield from (f"· {note}" for note in dict.fromkeys(notes))


def render_table(forecasts: Forecasts) -> Iterator[RenderableType]:
    """Many models, best first."""
    from rich.table import Table

    first = forecasts.items[0].prediction
    source, workload = _name_source(forecasts.ceilings), _name_workload(forecasts.items[0])
    title = f"{first.ttft.basis} for {workload}, best {forecasts.goal} first; {source}"
    table = Table(
        "model", "format", "TTFT", "TPOT", "latency", "throughput", "memory", "fits", title=title, title_justify="left"
    )
    for item in forecasts.items:
        each = item.prediction
        table.add_row(
            Path(item.model.path).name,
            item.model.quant,
            _span(each.ttft, format_ms),
            _span(each.tpot, format_ms),
            _span(each.latency, format_ms),
            _span(each.throughput, format_rate),
            format_bytes(each.memory_bytes),
            "yes" if item.misfit is None else "no",
        )
    yield table
    yield "In brackets: the 80 % interval. One file alone gives what binds, the history and the slots."
    yield from (f"· {Path(item.model.path).name} does not fit: {item.misfit}" for item in forecasts.items if item.misfit)


def _draw_figures(item: Forecast, ceilings: Ceilings) -> Table:
    from rich.table import Table

    prediction, workload = item.prediction, item.prediction.workload
    depth, basis = workload.depth_tokens, item.prediction.ttft.basis
    title = f"{item.model.name} ({item.model.quant}), {_name_workload(item)}; {_name_source(ceilings)}"
    table = Table(basis, "most likely", "80 % interval", title=title, title_justify="left")
    rows: tuple[tuple[str, Estimate, Callable[[float | None], str]], ...] = (
        (f"TTFT, {workload.prompt_tokens} tokens @ depth {depth}", prediction.ttft, format_ms),
        (f"TPOT, {workload.output_tokens} tokens @ depth {depth + workload.prompt_tokens}", prediction.tpot, format_ms),
        (f"latency of {workload.output_tokens} tokens", prediction.latency, format_ms),
        (f"decode throughput, {max(1, prediction.config.parallel)} slot(s)", prediction.throughput, format_rate),
        ("throughput with prefill", prediction.throughput_total, format_rate),
    )
    for name, each, show in rows:
        table.add_row(name, show(each.value), f"{show(each.low)} to {show(each.high)}")
    return table


def tell_phase(title: str, phase: PhasePrediction, basis: str) -> str:
    """What binds a phase and by how much, for somebody who never heard of a roofline."""
    share, reached, history = (
        format_amount(each, "share") for each in (phase.shares[phase.bound], phase.reached, phase.attention_share)
    )
    side = "below" if phase.intensity < phase.ridge else "above"
    intensity, ridge = (format_amount(each, "operations") for each in (phase.intensity, phase.ridge))
    return (
        f"{_tell_bound(title, phase, share, basis)} "
        f"It does {intensity} for each byte read, {side} this machine's balance of {ridge}, "
        f"and reaches {reached} of the limit; {history} of the time goes to the history."
    )


def _tell_bound(title: str, phase: PhasePrediction, share: str, basis: str) -> str:
    if phase.bound in {"compute", "memory bandwidth"} and phase.reached < FAR_BELOW:
        lost = "the history" if phase.attention_share > 0.5 else "the weights"
        return (
            f"{title} could go no faster than {_LIMITS[phase.bound]} allows, but stays far below that: most is lost in how "
            f"llama.cpp works through {lost} here ({basis}). So other settings or another format may help more than other "
            "hardware; `rooftune diagnose` says which."
        )
    return f"{title} mostly waits for {_MEANINGS[phase.bound]} ({share} of the time, {basis}). So {_REMEDIES[phase.bound]}."


def _draw_depths(item: Forecast) -> Table:
    from rich.table import Table

    basis = item.prediction.tpot.basis
    title = f"Time per token over the history, {basis}"
    table = Table("history", "per token", "80 % interval", "of it history", title=title, title_justify="left")
    for each in item.depths:
        interval = f"{format_ms(each.tpot.low)} to {format_ms(each.tpot.high)}"
        table.add_row(
            f"{each.depth_tokens} tokens", format_ms(each.tpot.value), interval, format_amount(each.history_share, "share")
        )
    return table


def _draw_slots(item: Forecast) -> Table:
    from rich.table import Table

    basis = item.prediction.tpot.basis
    title = f"Users served at once, each with this workload's history, {basis}"
    table = Table("slots", "together", "80 % interval", "each waits per token", "waits for", title=title, title_justify="left")
    for each in item.slots:
        interval = f"{format_rate(each.throughput.low)} to {format_rate(each.throughput.high)}"
        table.add_row(str(each.slots), format_rate(each.throughput.value), interval, format_ms(each.tpot.value), each.bound)
    return table


def _tell_knee(item: Forecast) -> str:
    if item.batch_knee is None:
        return "More slots share the reading of the weights at every number tried: each further user costs the others little."
    if item.batch_knee == 1:
        return "Computing binds already with one slot, so further slots share hardly anything: together they gain little."
    basis = item.prediction.tpot.basis
    return (
        f"Up to {item.batch_knee - 1} slot(s) share the reading of the weights nearly for free; from {item.batch_knee} on "
        f"computing binds ({basis}), and each further user slows the others down."
    )


def _tell_memory(item: Forecast) -> Iterator[str]:
    size, context = format_bytes(item.prediction.memory_bytes), item.prediction.config.ctx_size
    yield f"Memory: {size} ({item.footprint.basis}) at {context} tokens of context."
    if item.misfit:
        yield f"Does not fit: {item.misfit}"
    if item.largest_context is not None:
        yield f"Largest context that fits: {item.largest_context or 'none'} tokens."


def _tell_roofs(each: DeviceCeiling, ceilings: Ceilings) -> str:
    source = "assumed" if ceilings.source == "data sheet" else "measured"
    reading, computing = format_bytes(each.bandwidth.value), format_count(each.compute.value)
    return f"{each.device}: reads {reading} and computes {computing} operations a second at best ({source})."


def _name_workload(item: Forecast) -> str:
    return f"workload {item.prediction.workload.name}"


def _name_source(ceilings: Ceilings) -> str:
    if ceilings.source == "data sheet":
        return f"assumed from the data sheet of {ceilings.summary}"
    return f"from the calibration of this machine ({ceilings.made or NA_TEXT})"


def _span(each: Estimate, show: Callable[[float | None], str]) -> str:
    return f"{show(each.value)} [{show(each.low)}, {show(each.high)}]"
