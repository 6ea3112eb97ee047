"""What an export is: the same configuration in the words of another runtime, with nothing dropped in silence."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar, Final

import tuner.export
from tuner.discover import discover_classes
from tuner.errors import UsageError, suggest_name
from tuner.report import Report
from tuner.units import format_bytes, format_interval, format_ms, format_rate, format_ratio

LEAST_BUILD: Final = 100
"""Lower numbers are shallow checkouts that count their commits from one."""


class Export(ABC):
    """One target. The class docstring is its manual."""

    name: ClassVar[str]
    """As --to takes it."""
    title: ClassVar[str]
    """A few words for a list."""

    @abstractmethod
    def render(self, report: Report) -> str:
        """The text for the target; what it cannot express is named in its comments."""

    @abstractmethod
    def dropped(self, report: Report) -> list[str]:
        """What the target cannot express, each in one plain sentence; [] when it says it all."""


def list_exports() -> dict[str, Export]:
    """Every export by its name."""
    found = [kind() for kind in discover_classes(tuner.export, Export)]  # type: ignore[type-abstract]
    return {export.name: export for export in sorted(found, key=lambda each: each.name)}


def find_export(name: str) -> Export:
    """The export called `name`. Raises UsageError."""
    exports = list_exports()
    if name not in exports:
        raise UsageError(f"There is no export {name!r}.", suggest_name(name, exports))
    return exports[name]


def describe_origin(report: Report) -> list[str]:
    """What a reader of an exported file wants to know first, as plain lines."""
    best = report.best
    figures = [
        f"time to first token {format_ms(best.ttft_ms)}" if best.ttft_ms is not None else "",
        f"time per token {format_ms(best.tpot_ms)}" if best.tpot_ms is not None else "",
        f"decode {format_rate(best.throughput_tps)}" if best.throughput_tps is not None else "",
        f"memory {format_bytes(best.memory_bytes)}",
    ]
    build = report.runtime.llama_cpp or "of unknown version"
    lines = [
        f"Tuned by rooftune for the objective {report.objective}: {describe_workload(report)}.",
        f"{report.basis.capitalize()} with llama.cpp {build}: {', '.join(filter(None, figures))}.",
        _describe_gain(report),
    ]
    if best.config.parallel > 1:
        lines.append(describe_slots(report))
    return [_plain(line) for line in lines]


def describe_workload(report: Report) -> str:
    """The workload with its depth: "128 tokens to read, 64 to write @ depth 0"."""
    load = report.workload
    users = f", {load.users} users" if load.users > 1 else ""
    return f"{load.prompt_tokens} tokens to read, {load.output_tokens} to write @ depth {load.depth_tokens}{users}"


def describe_slots(report: Report) -> str:
    """How the context is divided."""
    config = report.best.config
    return (
        f"The context of {config.ctx_size} tokens is divided over {config.parallel} slots: "
        f"{config.ctx_size // max(1, config.parallel)} per slot."
    )


def write_comments(lines: list[str]) -> str:
    """Lines as # comments, each kept to one line."""
    return "".join(f"# {_plain(line)}\n" for line in lines)


def read_build_number(version: str) -> int | None:
    """llama.cpp's build number out of its version text ("b6325", "build 6325"); None when it does not tell one."""
    match = re.search(r"\bb(?:uild\s+)?(\d{1,6})\b", version)
    number = int(match.group(1)) if match else 0
    return number if number >= LEAST_BUILD else None


def _describe_gain(report: Report) -> str:
    gain = report.gain
    if report.is_default_best or not gain.significant or gain.ratio is None:
        return "No setting was shown to be better than llama.cpp's own."
    interval = format_interval(*gain.ci95) if gain.ci95 else ""
    return f"Gain in {gain.metric} over llama.cpp's own settings: {format_ratio(gain.ratio)} {interval}".strip() + "."


def _plain(line: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in line)
