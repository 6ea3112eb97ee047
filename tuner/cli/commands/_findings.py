"""How findings look in a terminal: what is wrong, the numbers behind it, what to do, what it should bring and what it did."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from tuner.units import format_amount, format_bytes, format_gain, format_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from tuner.rules.base import Expected, Finding
    from tuner.session.diagnosing import Diagnosis

NOTHING: Final = "Nothing to fix."
_WORDS: Final = {"stops": "does not work", "slows": "worth changing", "hint": "worth knowing"}
_STYLES: Final = {"stops": "bold red", "slows": "bold yellow", "hint": "bold"}
_GOALS: Final = {
    "ttft": "time to first token",
    "tpot": "time per token",
    "latency": "time of a whole turn",
    "throughput": "tokens per second over all users",
    "memory": "memory",
}


def render_diagnosis(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The situation in a line, then each finding, then how to learn more."""
    from rich.text import Text

    yield Text(_describe(diagnosis))
    if not diagnosis.findings:
        yield Text(NOTHING)
        return
    for finding in diagnosis.findings:
        yield from render_finding(finding)
    codes = " ".join(dict.fromkeys(finding.code for finding in diagnosis.findings))
    yield Text(f"\nThe manual of a finding: rooftune explain CODE (here {codes})")


def render_finding(finding: Finding) -> Iterator[RenderableType]:
    """One finding."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    yield Text()
    yield Text.assemble((finding.title, _STYLES[finding.severity]), f"  ({finding.code}, {_WORDS[finding.severity]})")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for each in finding.evidence:
        table.add_row(Text(each.what), Text(format_amount(each.value, each.unit)), Text(each.basis))
    yield Padding(table, (0, 0, 0, 2))
    for label, text in _list_lines(finding):
        yield f"  {label}: {text}"


def _list_lines(finding: Finding) -> Iterator[tuple[str, str]]:
    from tuner.session.trying import judge_promise

    yield "do", finding.remedy
    if finding.change:
        yield "settings", " ".join(f"--set {shlex.quote(f'{name}={value}')}" for name, value in finding.change.items())
        yield "in llama-server", _write_flags(finding.change)
    if finding.expected:
        yield "should bring", _tell_gain(finding.expected)
    if finding.costs:
        yield "costs", finding.costs
    if finding.measured:
        yield "brought", f"{_tell_gain(finding.measured)}: {judge_promise(finding)}"


def _write_flags(change: dict[str, Any]) -> str:
    """The same for llama-server, whose long flags carry the same names; a switch that is off is left out there."""
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in change.items()]
    return " ".join(
        f"no {flag}" if value is False else flag if value is True else f"{flag} {shlex.quote(str(value))}"
        for flag, value in flags
    )


def _tell_gain(gain: Expected) -> str:
    width = "95" if gain.basis == "measured" else "80"
    brings = format_gain(gain.ratio, gain.low, gain.high)
    return f"{_GOALS.get(gain.metric, gain.metric)} {brings}, {gain.basis}, {width} % interval"


def _describe(diagnosis: Diagnosis) -> str:
    model, workload, config = diagnosis.model, diagnosis.workload, diagnosis.config
    line = (
        f"{model.name} {model.quant}, {format_bytes(model.file_bytes)}; {workload.name}: {workload.prompt_tokens} tokens to "
        f"read, {workload.output_tokens} to write @ depth {workload.depth_tokens}, {workload.users} user(s); "
        f"threads {config.threads}, threads_batch {config.threads_batch}, ubatch_size {config.ubatch_size}, "
        f"ctx_size {config.ctx_size}, flash_attn {config.flash_attn}"
    )
    if diagnosis.prediction is None:
        return line
    ttft, tpot = diagnosis.prediction.ttft, diagnosis.prediction.tpot
    return f"{line}\n{ttft.basis}: first token {format_ms(ttft.value)}, each further token {format_ms(tpot.value)}"
