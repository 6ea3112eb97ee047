"""How predictions are told: a JSON object like those of measurements, and for people what binds, by how much, and what follows.

Every figure is marked predicted (or assumed, from a data sheet), with its interval and what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuner.units import NA_TEXT, format_amount, format_bytes, format_count, format_ms, format_rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tuner.roofline.ceilings import Ceilings, DeviceCeiling
    from tuner.roofline.curves import SlotPoint
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

_LIMITS: Final[dict[Resource, str]] = {"compute": "the processor's arithmetic", "memory bandwidth": "memory"}

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
        "worthwhile_slots": pick_worthwhile(item.slots).slots,
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
                "reached": each.reached,
                "history_share": each.history_share,
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
    yield tell_users(item.slots, item.batch_knee)
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
        table.add_row(name, show(each.value), _write_range(each, show))
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
    if is_far_below(phase.bound, phase.reached):
        held = name_delay(phase.bound, phase.reached, phase.attention_share)
        return (
            f"{title} could go no faster than {_LIMITS[phase.bound]} allows, but stays far below that: most is lost in "
            f"llama.cpp's {held} ({basis}). So other settings or another format may help more than other hardware; "
            "`rooftune diagnose` says which."
        )
    return f"{title} mostly waits for {_MEANINGS[phase.bound]} ({share} of the time, {basis}). So {_REMEDIES[phase.bound]}."


def is_far_below(bound: Resource, reached: float) -> bool:
    """The limit is so far off that it cannot be what is waited for; what layers cost by themselves has no limit."""
    return bound in _LIMITS and reached < FAR_BELOW


def name_delay(bound: Resource, reached: float, history_share: float) -> str:
    """What holds a phase or a step up, in the same words for sentence and table."""
    if not is_far_below(bound, reached):
        return bound
    return f"work on the {'history' if history_share > 0.5 else 'weights'}"


def _draw_depths(item: Forecast) -> Table:
    from rich.table import Table

    basis = item.prediction.tpot.basis
    title = f"Time per token over the history, {basis}"
    table = Table("history", "per token", "80 % interval", "of it history", title=title, title_justify="left")
    for each in item.depths:
        interval = _write_range(each.tpot, format_ms)
        table.add_row(
            f"{each.depth_tokens} tokens", format_ms(each.tpot.value), interval, format_amount(each.history_share, "share")
        )
    return table


def _draw_slots(item: Forecast) -> Table:
    from rich.table import Table

    basis = item.prediction.tpot.basis
    title = f"Users served at once, each with this workload's history, {basis}"
    heads = ("slots", "together", "80 % interval", "each waits per token", "held up by")
    table = Table(*heads, title=title, title_justify="left")
    for each in item.slots:
        interval = _write_range(each.throughput, format_rate)
        delay = name_delay(each.bound, each.reached, each.history_share)
        table.add_row(str(each.slots), format_rate(each.throughput.value), interval, format_ms(each.tpot.value), delay)
    return table


def pick_worthwhile(slots: Sequence[SlotPoint]) -> SlotPoint:
    """The last row of the table before more slots bring hardly more tokens together."""
    from tuner.roofline.curves import find_worthwhile

    return slots[find_worthwhile([(each.slots, each.throughput.value) for each in slots])]


def tell_users(slots: Sequence[SlotPoint], knee: int | None) -> str:
    """What the table of slots says, and why where reading the weights alone (up to `knee` slots) would let more share."""
    first, worth, last = slots[0], pick_worthwhile(slots), slots[-1]
    beyond = f"{format_rate(last.throughput.value)} with {last.slots}, where each waits {format_ms(last.tpot.value)} per token"
    found = f"{format_rate(worth.throughput.value)} together, each waits {format_ms(worth.tpot.value)} per token"
    if worth is last:
        return f"Twice the users bring more tokens together at every number shown, up to {worth.slots} slots ({found})."
    if worth is first:
        alone = format_rate(first.throughput.value)
        told = f"More users at once bring hardly more tokens together: {alone} with {first.slots} slot, {beyond}."
    else:
        told = f"Up to {worth.slots} slots more users bring more tokens together ({found}); beyond that hardly more: {beyond}."
    if worth.history_share > 0.5 and (knee is None or knee > worth.slots):
        share = format_amount(worth.history_share, "share")
        told += f" The weights are read once for all, but each slot has its own history, and that takes {share} of the time."
    return told


def _tell_memory(item: Forecast) -> Iterator[str]:
    size, context = format_bytes(item.prediction.memory_bytes), item.prediction.config.ctx_size
    yield f"Memory: {size} ({item.footprint.basis}) at {context} tokens of context."
    if item.misfit:
        yield f"Does not fit: {item.misfit}"
    if item.largest_context is not None:
        yield _tell_largest(item.largest_context, item.model.context_length, max(1, item.prediction.config.parallel))


def _tell_largest(largest: int, trained: int | None, slots: int) -> str:
    if not largest:
        return "Largest context that fits: none."
    limit = "what the model was trained for; memory has room for it" if trained and largest >= trained * slots else "by memory"
    return f"Largest context that fits: {largest} tokens ({limit})."


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


def _write_range(each: Estimate, show: Callable[[float | None], str]) -> str:
    """From low to high, a unit that both have told once."""
    low, high = show(each.low), show(each.high)
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"
