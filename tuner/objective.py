"""Goals and limits: a measurement becomes a score. Feasible first, then the goal, ties to the simpler configuration."""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

import msgspec

from tuner.errors import UsageError, suggest_name
from tuner.measure.record import Measurement
from tuner.units import parse_bytes, parse_count, parse_duration, parse_number

Goal = Literal["ttft", "tpot", "latency", "throughput", "context"]
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)
LARGER_IS_BETTER: Final = frozenset({"throughput", "context"})
LIMITED: Final = ("ttft", "tpot", "latency", "throughput", "memory", "ctx_size")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One promise that a configuration must keep, such as tpot<=50ms."""

    metric: str
    """One of LIMITED."""
    at_most: bool
    """True for <=, False for >=."""
    value: float
    """In the metric's own unit: ms, tok/s, bytes or tokens."""
    text: str
    """As the user wrote it."""

    def excess(self, measured: float) -> float:
        """How far `measured` misses the limit, as a share of it; 0 or less when it keeps it."""
        miss = measured - self.value if self.at_most else self.value - measured
        return miss / max(abs(self.value), 1e-12)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement seen with the user's goals."""

    values: tuple[float, ...]
    """One per goal, in the goal's own unit."""
    violations: tuple[float, ...]
    """Per limit, how far it is missed as a share of the limit; all 0 or less means feasible."""

    @property
    def is_feasible(self) -> bool:
        return all(excess <= 0 for excess in self.violations)


def parse_goals(text: str) -> tuple[Goal, ...]:
    """Comma-separated goals. Raises UsageError for an unknown or repeated one."""
    names = [name.strip() for name in text.split(",")]
    goals = tuple(goal for name in names for goal in GOALS if goal == name)
    unknown = next((name for name in names if name not in GOALS), None)
    if unknown is not None:
        raise UsageError(f"{unknown!r} is no objective.", suggest_name(unknown, GOALS))
    if len(set(goals)) != len(goals):
        raise UsageError(f"{text!r} names an objective twice.", f"Name each of {', '.join(GOALS)} once.")
    return goals


def parse_limit(text: str) -> Limit:
    """A limit such as 'tpot<=50ms' or 'ctx_size>=8192'. Raises UsageError, or BadInputError for an amount that is none."""
    match = re.fullmatch(r"\s*([A-Za-z_0-9]+)\s*(<=|>=)\s*(.+?)\s*", text)
    if not match:
        raise UsageError(f"{text!r} is no limit.", f"Write it like 'tpot<=50ms'; it can be set on {', '.join(LIMITED)}.")
    metric, comparison, amount = match.groups()
    if metric not in LIMITED:
        raise UsageError(f"There is no limit on {metric!r}.", suggest_name(metric, LIMITED))
    _check_direction(metric, comparison, text)
    return Limit(metric=metric, at_most=comparison == "<=", value=_parse_amount(metric, amount), text=text.strip())


def metric_of(measurement: Measurement, metric: str) -> float | None:
    """The figure that a goal or limit speaks of, in its own unit; None when it was not measured."""
    match metric:
        case "ttft":
            return measurement.ttft_ms
        case "tpot":
            return measurement.tpot_ms
        case "latency":
            return measurement.latency_ms
        case "throughput":
            return measurement.throughput_tps
        case "memory":
            return float(measurement.memory_bytes)
        case _:
            return float(measurement.config.ctx_size)


def score_measurement(measurement: Measurement, goals: tuple[Goal, ...], limits: tuple[Limit, ...]) -> Score | None:
    """The score, or None when a figure that a goal or limit needs was not measured."""
    values = [metric_of(measurement, goal) for goal in goals]
    limited = [metric_of(measurement, limit.metric) for limit in limits]
    known = [value for value in values if value is not None]
    kept = [limit.excess(value) for limit, value in zip(limits, limited, strict=True) if value is not None]
    if len(known) != len(values) or len(kept) != len(limits):
        return None
    return Score(values=tuple(known), violations=tuple(kept))


def needed_phases(goals: tuple[Goal, ...], limits: tuple[Limit, ...]) -> tuple[bool, bool]:
    """Whether prefill and whether decode must be measured for these goals and limits."""
    wanted = {*goals, *(limit.metric for limit in limits)}
    prefill = bool(wanted & {"ttft", "latency"})
    decode = bool(wanted & {"tpot", "latency", "throughput"})
    return (prefill, decode) if prefill or decode else (False, True)


def speed_ratio(goal: Goal, *, better: float, worse: float) -> float:
    """How many times better `better` is than `worse`; above 1 is a gain whatever the goal's direction."""
    return better / worse if goal in LARGER_IS_BETTER else worse / better


def _check_direction(metric: str, comparison: str, text: str) -> None:
    wants_least = metric in {"throughput", "ctx_size"}
    if (comparison == ">=") != wants_least:
        proper = ">=" if wants_least else "<="
        raise UsageError(f"The limit {text!r} points the wrong way.", f"{metric} takes {proper}.")


def _parse_amount(metric: str, amount: str) -> float:
    match metric:
        case "ttft" | "tpot" | "latency":
            return parse_duration(amount) * 1000
        case "memory":
            return float(parse_bytes(amount))
        case "ctx_size":
            return float(parse_count(amount))
        case _:
            return parse_number(re.sub(r"\s*(tok/s|t/s|tps)$", "", amount))
