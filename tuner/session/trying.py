"""Tries the changes that findings propose: in turns with the settings in question, until each ratio is settled or time is up.

A round runs the settings in question once and each change once; their order turns from round to round, so that drift of the
machine meets all alike. Changes that there is no time for are left untried, the least promising first: how many, the first run
of the settings in question tells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tuner.measure.record import Measurement, Measurer, Plan
from tuner.measure.statistics import paired_ratio
from tuner.objective import LARGER_IS_BETTER
from tuner.rules.base import Expected, Finding, Situation
from tuner.rules.points import change_point
from tuner.runconfig import RunConfig
from tuner.units import format_duration, format_interval, format_ratio

LEAST_ROUNDS: Final = 3
MOST_ROUNDS: Final = 10
NARROW: Final = 0.02
"""Half the width of the interval, as a share of the ratio, at which another round tells nothing new."""
_CLEAR: Final = 3.0
"""Half widths from 1 at which the sign of a gain is beyond doubt."""
_DECODE_TOKENS: Final = 32
"""Enough steps for a mean time per token; the history grows too little meanwhile to matter."""
_SHORTEST_S: Final = 0.05
_MARGIN: Final = 1.2
_METRICS: Final = {"slow-start": "ttft", "slow-output": "tpot", "many-users": "throughput", "long-chat": "latency"}


class Attempt:
    """One finding's change with its rounds."""

    def __init__(self, finding: Finding, config: RunConfig, metric: str) -> None:
        self.finding, self.config, self.metric = finding, config, metric
        self.before: list[float] = []
        self.after: list[float] = []
        self.failed = ""
        self.longest_s = 0.0

    @property
    def is_settled(self) -> bool:
        """Enough rounds to tell, or it does not run."""
        if self.failed or len(self.before) >= MOST_ROUNDS:
            return True
        if len(self.before) < LEAST_ROUNDS:
            return False
        found = self.summarise()
        assert found is not None
        half = (found.high - found.low) / 2
        return half <= NARROW * found.ratio or abs(found.ratio - 1) > _CLEAR * half

    def summarise(self) -> Expected | None:
        """Ratio and 95 % interval over the rounds so far; None with fewer than two."""
        if len(self.before) < 2:
            return None
        pair = (self.after, self.before) if self.metric in LARGER_IS_BETTER else (self.before, self.after)
        ratio, low, high = paired_ratio(*pair)
        return Expected(metric=self.metric, ratio=ratio, low=low, high=high, basis="measured")


class Trier:
    """Runs the rounds."""

    def __init__(
        self,
        situation: Situation,
        measurer: Measurer,
        *,
        budget_s: float,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._situation, self._measurer, self._tell, self._clock = situation, measurer, tell, clock
        self._ends = clock() + budget_s
        self._baseline_s = 0.0
        self._run_s = 0.0
        self.baseline: Measurement | None = None
        self._asides: list[str] = []
        self.notes: list[str] = []

    def try_findings(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings with what their changes brought. Raises InterruptedRunError after a stop."""
        attempts = [self._open(finding) for finding in findings if finding.change]
        number = 0
        while open_now := [each for each in attempts if not each.is_settled]:
            chosen = open_now if number == 0 else self._choose(open_now)
            if not chosen or not self._run_round(chosen, number):
                break
            number += 1
        self._note_failures(attempts)
        self.notes += self._asides
        brought = {id(each.finding): each.summarise() for each in attempts if not each.failed}
        return tuple(msgspec.structs.replace(each, measured=brought.get(id(each))) for each in findings)

    def _open(self, finding: Finding) -> Attempt:
        metric = finding.expected.metric if finding.expected else _METRICS.get(self._situation.symptom or "", "latency")
        return Attempt(finding, change_point(self._situation, finding.change), metric)

    def _choose(self, attempts: list[Attempt]) -> list[Attempt]:
        """The most promising ones whose missing rounds fit into the time that is left."""
        left = self._ends - self._clock()
        for count in range(len(attempts), 0, -1):
            chosen = attempts[:count]
            missing = max(1, *(LEAST_ROUNDS - len(each.before) for each in chosen))
            if missing * (self._baseline_s + sum(each.longest_s for each in chosen)) <= left:
                return chosen
        return []

    def _run_round(self, attempts: list[Attempt], number: int) -> bool:
        """One run of each; False where the settings in question do not run."""
        runners: list[Attempt | None] = [None, *attempts]
        shift = number % len(runners)
        figures: dict[int, Measurement | None] = {}
        chosen = attempts
        for runner in runners[shift:] + runners[:shift]:
            if runner is not None and runner not in chosen:
                continue
            figures[id(runner)] = self._run(runner, chosen)
            if runner is None and figures[id(None)] is None:
                return False
            if runner is None and number == 0:
                chosen = attempts[: self._count_affordable()]
        before = figures[id(None)]
        assert before is not None
        for attempt in chosen:
            self._add(attempt, before, figures[id(attempt)])
        if chosen:
            self._tell(f"round {number + 1}: " + ", ".join(_describe(each) for each in chosen))
        return bool(chosen)

    def _count_affordable(self) -> int:
        """Changes that can be tried in all rounds, if each takes what the first run took without loading the model. That run
        also started the engine, so one change is begun even where the time seems a little short.
        """
        runs = (self._ends - self._clock()) / self._run_s
        return max(1 if runs >= LEAST_ROUNDS else 0, int((runs - (LEAST_ROUNDS - 1)) / LEAST_ROUNDS))

    def _run(self, runner: Attempt | None, attempts: list[Attempt]) -> Measurement | None:
        began = self._clock()
        config = self._situation.config if runner is None else runner.config
        metrics = {each.metric for each in attempts} if runner is None else {runner.metric}
        outcome = self._measurer.measure(config, self._situation.workload, self._plan(metrics))
        spent = self._clock() - began
        self._asides += outcome.notes
        if runner is None:
            if not self._run_s:
                spent = self._run_s = max(_SHORTEST_S, spent - _find_load_s(outcome.measurement))
            self._baseline_s = max(self._baseline_s, spent)
            self.baseline = outcome.measurement or self.baseline
        else:
            runner.longest_s = max(runner.longest_s, spent)
        if outcome.measurement is None:
            reason = outcome.reason or outcome.state
            if runner is None:
                self.notes.append(f"nothing could be tried, since the settings in question do not run: {reason}")
            else:
                runner.failed = reason
        return outcome.measurement

    def _plan(self, metrics: set[str]) -> Plan:
        tokens = max(2, min(_DECODE_TOKENS, self._situation.workload.output_tokens))
        decode = bool(metrics - {"ttft"})
        prefill = bool(metrics & {"ttft", "latency"}) or not decode
        return Plan(samples=1, prefill=prefill, decode_tokens=tokens if decode else 0, most_repeats=1)

    def _add(self, attempt: Attempt, before: Measurement, after: Measurement | None) -> None:
        old = read_metric(before, attempt.metric)
        new = None if after is None else read_metric(after, attempt.metric)
        if old and new:
            attempt.before.append(old)
            attempt.after.append(new)

    def _note_failures(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if attempt.failed:
                self.notes.append(f"the change of {attempt.finding.code} does not run: {attempt.failed}")
            elif len(attempt.before) < LEAST_ROUNDS and not self.notes:
                needed = _MARGIN * (2 * LEAST_ROUNDS * self._run_s + self._baseline_s)
                self.notes.append(
                    f"there was no time to try the change of {attempt.finding.code} properly: one run takes about "
                    f"{format_duration(self._run_s)}, so give it --budget {math.ceil(needed / 10) * 10}s"
                )


def _find_load_s(measurement: Measurement | None) -> float:
    return (measurement.load_ms or 0.0) / 1000 if measurement else 0.0


def read_metric(measurement: Measurement, metric: str) -> float | None:
    """The figure that a finding speaks of; None where it was not measured."""
    match metric:
        case "throughput":
            return measurement.throughput_tps
        case "memory":
            return float(measurement.memory_bytes)
        case _:
            value: float | None = getattr(measurement, f"{metric}_ms", None)
            return value


def judge_promise(finding: Finding) -> str:
    """Whether the change brought what was said, in a few words; "" where it was not tried."""
    measured, expected = finding.measured, finding.expected
    if measured is None:
        return ""
    if measured.high < 1:
        return "made it worse: do not change it"
    if measured.low <= 1:
        return "brought nothing that can be told from noise: keep what you have"
    if expected is None:
        return "brought a gain"
    if measured.high < expected.low:
        return "brought less than was said, but a gain"
    return "brought more than was said" if measured.low > expected.high else "kept its promise"


def _describe(attempt: Attempt) -> str:
    found = attempt.summarise()
    if attempt.failed or found is None:
        return f"{attempt.finding.code} {'failed' if attempt.failed else 'tried once'}"
    return f"{attempt.finding.code} {attempt.metric} {format_ratio(found.ratio)} {format_interval(found.low, found.high)}"
