"""A report in words: one sentence first, then before and after, what changed and in which phase it counts.

Every number is measured and says so, with its unit and the depth it holds at.
"""

from __future__ import annotations

import shlex
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tuner.objective import LARGER_IS_BETTER, Limit, parse_limit
from tuner.report.record import Report, Side
from tuner.runconfig import RunConfig
from tuner.units import format_bytes, format_comparison, format_duration, format_ms, format_rate, format_ratio, format_turned
from tuner.workload import PRESETS

_WORDS: Final = {
    "ttft": ("first token {} sooner", "first token {} later"),
    "tpot": ("every further token {} faster", "every further token {} slower"),
    "latency": ("the whole answer {} sooner", "the whole answer {} later"),
    "throughput": ("{} more tokens per second", "{} fewer tokens per second"),
    "context": ("{} more context", "{} less context"),
}
_CHANGES: Final = {"context": ("more", "less"), "memory": ("less", "more"), "throughput": ("more", "less")}
"""What a ratio of a row above and below 1 is called; that of a time is faster or slower."""
_MEANINGS: Final = {
    "invalid": "settings that llama.cpp refuses",
    "does_not_fit": "need more memory than is free, not run",
    "out_of_memory": "ran out of memory",
    "crash": "llama.cpp crashed",
    "timeout": "took too long and was ended",
    "noisy": "stayed disturbed by other programs",
    "duplicate": "the same as an earlier one to llama.cpp, not run again",
}
_DECIDING_ROUNDS: Final = 3
"""Fewer paired rounds than this decide nothing."""
_WORTH_A_WORD: Final = 0.02
"""A gain below this is not worth telling unproven."""
_NOT_RUN: Final = frozenset({"invalid", "does_not_fit", "duplicate"})
_ROWS: Final = (
    ("time to first token (TTFT)", "ttft"),
    ("time per further token (TPOT)", "tpot"),
    ("latency of the whole answer", "latency"),
    ("decode throughput", "throughput"),
    ("context", "context"),
    ("memory", "memory"),
)


def describe_verdict(report: Report) -> str:
    """The answer in one sentence."""
    gain = report.gain
    words = tell_gain(gain.metric, gain.ratio)
    interval = f" {format_turned(gain.ratio, *gain.ci95)}" if gain.ci95 and gain.rounds else ""
    missed = ", ".join(find_missed_limits(report.baseline, report.limits))
    if report.is_default_best and count_tried(report) < 2:
        return "Only the default was measured: the budget left no time to try anything else."
    if is_undecided(report):
        found = f"{words} than the default in {count_rounds(gain.rounds)}"
        return f"Not decided: the best of the search was {found}, too few to prove it; resume it with a larger --budget."
    if report.is_default_best:
        return "The default is already best: nothing was shown to be better than what llama.cpp does by itself."
    if missed:
        return f"The default misses {missed}; this keeps every limit: {words} than the default{interval}."
    if not gain.significant:
        return f"No significant difference from the default: {words}{interval}, inside the noise."
    return f"{words[0].upper()}{words[1:]} than the default{interval}."


def is_undecided(report: Report) -> bool:
    """Something looked better than the default, and the budget was gone before the rounds that decide."""
    gain = report.gain
    if not report.is_default_best or gain.ratio is None or gain.metric == "context":
        return False
    return 0 < gain.rounds < _DECIDING_ROUNDS and gain.ratio > 1 + _WORTH_A_WORD


def tell_gain(metric: str, ratio: float | None) -> str:
    """A gain of this metric in words, or the loss that it is."""
    better, worse = _WORDS.get(metric, ("{} better", "{} worse"))
    if ratio is None or ratio >= 1 or ratio <= 0:
        return better.format(format_ratio(ratio))
    return worse.format(format_ratio(1 / ratio))


def count_rounds(rounds: int) -> str:
    """Rounds as people say them."""
    return "one round" if rounds == 1 else f"{rounds} rounds"


def count_tried(report: Report) -> int:
    """Points that were really run, whatever came of it."""
    return sum(count for state, count in report.trials.items() if state not in _NOT_RUN)


def find_missed_limits(side: Side, limits: tuple[str, ...]) -> list[str]:
    """Limits that the figures of `side` do not keep, as the user wrote them."""
    return [limit.text for limit in map(parse_limit, limits) if _misses(side, limit)]


def find_changes(before: RunConfig, after: RunConfig) -> dict[str, tuple[object, object]]:
    """Settings that differ, by llama.cpp's names."""
    old, new = before.as_dict(), after.as_dict()
    return {name: (old[name], new[name]) for name in old if old[name] != new[name]}


def figure_of(side: Side, metric: str) -> float | None:
    """The figure that a goal or limit speaks of, in its own unit."""
    match metric:
        case "context" | "ctx_size":
            return float(side.config.ctx_size)
        case "memory":
            return float(side.memory_bytes)
        case "throughput":
            return side.throughput_tps
        case _:
            found: float | None = getattr(side, f"{metric}_ms")
            return found


def render_summary(report: Report) -> list[RenderableType]:
    """What a person reads after a tune, top first."""
    parts: list[RenderableType] = [Text(describe_verdict(report), style="bold"), Text(_describe_setting(report))]
    parts.append(_draw_figures(report))
    if not report.is_default_best:
        parts.append(_draw_changes(report))
    if len(report.pareto) > 1:
        told = [(_list_settings(report.baseline.config, side.config), side) for side in report.pareto]
        parts.append(_draw_sides(f"Best compromises, {report.basis}", told))
    if len(report.files) > 1:
        named = [(f"{each.model.quant} ({format_bytes(each.model.bytes)})", each.best) for each in report.files]
        parts.append(_draw_sides(f"Each file's best, {report.basis}", named))
    parts.extend(Text(f"note: {note}", style="dim") for note in report.notes)
    parts.append(Text(_describe_effort(report), style="dim"))
    return parts


def build_measure_command(report: Report) -> str | None:
    """The command that measures the best configuration again; None for a workload that only a file describes."""
    if PRESETS.get(report.workload.name) != report.workload:
        return None
    config = report.best.config
    skipped = {"model"}
    settings = [f"{name}={_write_value(value)}" for name, value in config.as_dict().items() if name not in skipped]
    flags = [part for setting in settings if not setting.endswith("=") for part in ("--set", setting)]
    return shlex.join(["rooftune", "measure", report.model.path, "--workload", report.workload.name, *flags])


def _describe_setting(report: Report) -> str:
    load = report.workload
    users = f", {load.users} users" if load.users > 1 else ""
    model = f"{report.model.name or report.model.path} {report.model.quant}".strip()
    turn = f"{load.prompt_tokens} tokens to read, {load.output_tokens} to write @ depth {load.depth_tokens}{users}"
    return f"{model}, workload {load.name}: {turn}"


def _draw_figures(report: Report) -> Table:
    load = report.workload
    depths = {"ttft": load.depth_tokens, "tpot": load.depth_tokens + load.prompt_tokens}
    table = Table(title=report.basis.capitalize(), title_justify="left")
    table.add_column("")
    for name in ("default",) if report.is_default_best else ("default", "best", "best is"):
        table.add_column(name, justify="right")
    for title, metric in _ROWS:
        before, after = figure_of(report.baseline, metric), figure_of(report.best, metric)
        if before is None and after is None:
            continue
        label = f"{title} @ depth {depths[metric]}" if metric in depths else title
        others = (_write_figure(metric, after), _write_change(metric, before, after))
        table.add_row(label, _write_figure(metric, before), *(() if report.is_default_best else others))
    return table


def _draw_changes(report: Report) -> Table:
    phases = _find_phases()
    table = Table(title="What changed", title_justify="left")
    for name in ("setting", "default", "best", "counts in"):
        table.add_column(name)
    for name, (old, new) in find_changes(report.baseline.config, report.best.config).items():
        table.add_row(name, _write_value(old), _write_value(new), phases.get(name, ""))
    return table


def _draw_sides(title: str, named: list[tuple[str, Side]]) -> Table:
    metrics = [metric for _, metric in _ROWS if any(figure_of(side, metric) is not None for _, side in named)]
    table = Table(title=title, title_justify="left")
    for name in ("", *metrics):
        table.add_column(name, justify="right" if name else "left")
    for name, side in named:
        table.add_row(name, *(_write_figure(metric, figure_of(side, metric)) for metric in metrics))
    return table


def _list_settings(before: RunConfig, after: RunConfig) -> str:
    changes = find_changes(before, after).items()
    return ", ".join(f"{name} {_write_value(new)}" for name, (_, new) in changes) or "the default"


def _find_phases() -> dict[str, str]:
    from tuner.discover import discover_classes
    from tuner.space import dimensions
    from tuner.space.base import Dimension

    found = discover_classes(dimensions, Dimension)  # type: ignore[type-abstract]
    return {kind.name: ", ".join(phase for phase in ("prefill", "decode", "memory") if phase in kind.affects) for kind in found}


def _describe_effort(report: Report) -> str:
    share = 100 * report.measured_s / report.elapsed_s if report.elapsed_s > 0 else 0.0
    told = f", {share:.0f} % of it inside measured prefill and decode" if report.basis == "measured" else ""
    counts = ", ".join(_tell_count(state, count) for state, count in report.trials.items() if count)
    return f"trials: {counts}; took {format_duration(report.elapsed_s)}{told}"


def _tell_count(state: str, count: int) -> str:
    meaning = f" ({_MEANINGS[state]})" if state in _MEANINGS else ""
    return f"{count} {state.replace('_', ' ')}{meaning}"


def _misses(side: Side, limit: Limit) -> bool:
    figure = figure_of(side, limit.metric)
    return figure is not None and limit.excess(figure) > 0


def _write_figure(metric: str, value: float | None) -> str:
    match metric:
        case "memory":
            return format_bytes(value)
        case "throughput":
            return format_rate(value)
        case "context" | "ctx_size":
            return f"{value:.0f} tokens" if value is not None else format_rate(None)
        case _:
            return format_ms(value)


def _write_change(metric: str, before: float | None, after: float | None) -> str:
    if not before or not after:
        return ""
    better, worse = _CHANGES.get(metric, ("faster", "slower"))
    return format_comparison(after / before if metric in LARGER_IS_BETTER else before / after, better=better, worse=worse)


def _write_value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(f"{part:g}" for part in value)
    return str(value)
