"""What `tune` says while it works, on stderr only: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Self

from tuner.cli.output import open_console, say, spell
from tuner.objective import GOALS
from tuner.units import format_bytes, format_comparison, format_duration, format_gain, format_ms, format_rate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from tuner.runconfig import RunConfig
    from tuner.study.events import StudyEvent
    from tuner.trial import Trial

_MOST_SETTINGS: Final = 6


class Progress:
    """Turns the events of a study into talk. Holds only what the next line needs."""

    def __init__(self, *, goal: str, console: Console | None = None, verbose: bool = False) -> None:
        self._goal = goal
        self._console = console
        self._verbose = verbose
        self._stage = ""
        self._best = ""
        self._left: float | None = None
        self._changes: dict[int, dict[str, object]] = {}
        self._default: RunConfig | None = None
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console is not None:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def tell(self, text: str) -> None:
        """One line that stays."""
        if self._console is not None:
            self._console.print(spell(text))
        else:
            say(text)

    def show(self, event: StudyEvent) -> None:
        """React to one event."""
        from tuner.study import events

        match event:
            case events.StageStarted():
                self._stage = event.stage
                self.tell(f"{event.stage}: {event.title}{self._describe_left()}")
            case events.TrialStarted():
                self._changes[event.number] = event.changes
                self._refresh(f"trial {event.number}: {describe_settings(event.changes)}")
            case events.TrialFinished():
                self._tell_trial(event.trial)
            case events.BestChanged():
                self._best = self._describe_best(event.trial, event.ratio)
            case events.RoundFinished():
                self.tell(_describe_round(event) + self._describe_left())
            case events.Progress():
                self._left = event.left_s
                self._refresh(f"{event.done} trials")
            case events.Note():
                self.tell(f"note: {event.text}")
            case _:
                return

    def _tell_trial(self, trial: Trial) -> None:
        settings = self._describe_settings(trial)
        is_routine = trial.state in {"duplicate", "invalid", "does_not_fit"} or trial.stage == "confirm"
        if is_routine and not self._verbose:
            return
        outcome = describe_outcome(trial, self._goal)
        best = f"; best so far {self._best}" if self._best else ""
        self.tell(f"{self._stage or trial.stage} {trial.number}: {settings}: {outcome}{best}{self._describe_left()}")

    def _describe_settings(self, trial: Trial) -> str:
        """What a trial changes; for one that was not announced, seen against the default."""
        changes = self._changes.pop(trial.number, None)
        if trial.stage == "baseline":
            self._default = trial.config
        if changes is None and self._default is not None:
            default = self._default.as_dict()
            changes = {name: value for name, value in trial.config.as_dict().items() if value != default[name]}
        return describe_settings(changes or {})

    def _describe_best(self, trial: Trial, ratio: float | None) -> str:
        gain = f" ({format_comparison(ratio)})" if ratio is not None else ""
        return f"{describe_outcome(trial, self._goal)}{gain}"

    def _describe_left(self) -> str:
        if self._left is None:
            return ""
        return f"; {format_duration(self._left)} left" if self._left > 0 else "; budget used"

    def _refresh(self, text: str) -> None:
        if self._status is None:
            return
        best = f"; best so far {self._best}" if self._best else ""
        self._status.update(f"{self._stage} · {text}{best}{self._describe_left()}")


def open_progress(*, goal: str, verbose: bool) -> Progress:
    """Talk that suits where stderr goes."""
    console = open_console(stderr=True) if sys.stderr.isatty() else None
    return Progress(goal=goal, console=console, verbose=verbose)


def describe_settings(changes: dict[str, object]) -> str:
    """What differs from the default, short."""
    if not changes:
        return "the default"
    named = [f"{name} {_write(value)}" for name, value in changes.items()]
    rest = len(named) - _MOST_SETTINGS
    return ", ".join(named[:_MOST_SETTINGS]) + (f" and {rest} more" if rest > 0 else "")


def describe_outcome(trial: Trial, goal: str) -> str:
    """The figure of the goal, or why there is none."""
    measurement = trial.outcome.measurement if trial.outcome else None
    if trial.state not in {"complete", "noisy"} or measurement is None:
        return f"{trial.state.replace('_', ' ')}{': ' + trial.reason if trial.reason else ''}"
    figure: dict[str, Any] = {
        "ttft": format_ms(measurement.ttft_ms),
        "tpot": format_ms(measurement.tpot_ms),
        "latency": format_ms(measurement.latency_ms),
        "throughput": format_rate(measurement.throughput_tps),
        "context": f"{measurement.config.ctx_size} tokens in {format_bytes(measurement.memory_bytes)}",
    }
    return f"{goal if goal in GOALS else 'latency'} {figure.get(goal, figure['latency'])}" + (
        " (noisy)" if trial.state == "noisy" else ""
    )


def _describe_round(event: Any) -> str:
    if event.ratio is None:
        return f"confirm: round {event.number}, choosing the finalist"
    return f"confirm: round {event.number}, {format_gain(event.ratio, event.low, event.high)} so far"


def _write(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
