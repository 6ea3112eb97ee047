"""Does a tuned configuration still hold its gain?

Default and best are measured again, in turns on fresh contexts, and the verdict is the interval of their paired ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tuner.errors import BadInputError, NothingFeasibleError
from tuner.measure.record import Measurement, Measurer, Outcome, Plan
from tuner.measure.statistics import median_or_none, paired_ratio
from tuner.objective import LARGER_IS_BETTER, Goal, needed_phases, parse_goals, parse_limit
from tuner.report import Gain, Report, Side
from tuner.report.build import build_side
from tuner.report.summary import find_missed_limits
from tuner.runconfig import RunConfig
from tuner.units import format_gain
from tuner.workload import Workload

LEAST_ROUNDS = 5
MOST_ROUNDS = 15
NARROW = 0.02
"""Half the width of the interval, as a share of the ratio, at which another round would tell nothing new."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What measuring again said."""

    holds: bool
    """The recommendation stands."""
    verdict: str
    """In one sentence."""
    gain: Gain | None
    """Best against default now; None where there was nothing to compare."""
    recorded: Gain
    """Best against default as the file tells it."""
    baseline: Side | None
    """The default now; None where it was not measured."""
    best: Side | None
    """The best now; None where it was not measured."""
    changed: tuple[str, ...] = ()
    """What is not as it was when the file was written."""
    notes: tuple[str, ...] = ()
    """What a reader should know, such as a busy machine."""

    def describe(self) -> list[str]:
        """In words, the verdict first."""
        changed = [f"changed since: {each}" for each in self.changed] or ["nothing that matters has changed since"]
        return [self.verdict, *changed, *(f"note: {note}" for note in self.notes)]


class Pairs:
    """Interleaved rounds of two configurations, each with its figures."""

    def __init__(self, metric: Goal) -> None:
        self.metric = metric
        self.before: list[Measurement] = []
        self.after: list[Measurement] = []

    def add(self, before: Measurement, after: Measurement) -> None:
        self.before.append(before)
        self.after.append(after)

    def summarise(self) -> Gain:
        """Ratio and interval over the rounds so far; above 1 is better whatever the goal's direction."""
        old = [_figure(each, self.metric) for each in self.before]
        new = [_figure(each, self.metric) for each in self.after]
        ratio, low, high = paired_ratio(new, old) if self.metric in LARGER_IS_BETTER else paired_ratio(old, new)
        rounds = len(old)
        return Gain(
            metric=self.metric, ratio=ratio, ci95=(low, high) if rounds > 1 else None, significant=low > 1, rounds=rounds
        )

    @property
    def is_settled(self) -> bool:
        """Enough rounds to tell."""
        if len(self.before) < LEAST_ROUNDS:
            return False
        gain = self.summarise()
        assert gain.ci95 is not None
        assert gain.ratio is not None
        low, high = gain.ci95
        return len(self.before) >= MOST_ROUNDS or (high - low) / 2 <= NARROW * gain.ratio


def compare_again(
    report: Report,
    *,
    measurer: Measurer,
    model: str,
    budget_s: float,
    tell: Callable[[str], None],
    changed: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Verification:
    """Measure default and best in turns until the ratio is settled or the budget has no room for a round, three at least.

    Raises NothingFeasibleError where the default no longer runs, InterruptedRunError after a stop.
    """
    goals = parse_goals(report.objective)
    limits = tuple(parse_limit(text) for text in report.limits)
    prefill, decode = needed_phases(goals, limits)
    plan = Plan(samples=1, prefill=prefill, decode_tokens=report.workload.output_tokens if decode else 0, fresh=True)
    default, best = (side.config.replace(model=model) for side in (report.baseline, report.best))
    pairs, started = Pairs(_comparable(goals, prefill=prefill, decode=decode)), clock()
    longest_s = 0.0
    while not pairs.is_settled and (len(pairs.before) < 3 or clock() - started + longest_s <= budget_s):
        began = clock()
        before, after = _run_round(measurer, report.workload, plan, default, best, flipped=len(pairs.before) % 2 == 1)
        notes += before.notes + after.notes
        if after.measurement is None:
            return _fail(report, f"The tuned configuration no longer runs: {after.reason or after.state}.", changed, notes)
        assert before.measurement is not None
        pairs.add(before.measurement, after.measurement)
        longest_s = max(longest_s, clock() - began)
        tell(f"round {len(pairs.before)}: {_describe(pairs.summarise())}")
    return judge_pairs(report, pairs, changed=changed, notes=notes)


def check_fit(report: Report, model: str, find_misfit: Callable[[RunConfig], str | None]) -> None:
    """A machine that got smaller, or a llama.cpp that takes more, must not be driven into swapping.

    `find_misfit` says why a point does not fit, None where it does. Raises BadInputError with its words.
    """
    for side in (report.baseline, report.best):
        reason = find_misfit(side.config.replace(model=model))
        if reason is not None:
            raise BadInputError(f"A configuration of the file does not fit here: {reason}.", "Run `rooftune tune` again.")


def judge_pairs(report: Report, pairs: Pairs, *, changed: tuple[str, ...], notes: tuple[str, ...]) -> Verification:
    """The verdict over finished rounds."""
    gain = pairs.summarise()
    baseline, best = (build_side(_merge(each)) for each in (pairs.before, pairs.after))
    missed = find_missed_limits(best, report.limits)
    needs_gain = report.gain.significant and report.gain.metric != "context"
    match (bool(missed), needs_gain, gain.significant):
        case (True, _, _):
            holds, verdict = False, f"The tuned configuration no longer keeps {', '.join(missed)}."
        case (_, True, False):
            holds, verdict = False, f"The gain is gone: {_describe(gain)}, it was {_describe(report.gain)}."
        case (_, True, True):
            holds, verdict = True, f"The gain holds: {_describe(gain)}, it was {_describe(report.gain)}."
        case _:
            holds, verdict = True, f"The tuned configuration still runs and keeps its limits; {_describe(gain)}."
    return Verification(
        holds=holds,
        verdict=verdict,
        gain=gain,
        recorded=report.gain,
        baseline=baseline,
        best=best,
        changed=changed,
        notes=notes,
    )


def confirm_default(report: Report, *, changed: tuple[str, ...] = ()) -> Verification:
    """The answer for a file that recommends the default: there is nothing to compare."""
    return Verification(
        holds=True,
        verdict="The file recommends llama.cpp's own settings; there is no gain that could be gone.",
        gain=None,
        recorded=report.gain,
        baseline=None,
        best=None,
        changed=changed,
    )


def _run_round(
    measurer: Measurer, workload: Workload, plan: Plan, default: RunConfig, best: RunConfig, *, flipped: bool
) -> tuple[Outcome, Outcome]:
    """One run of each, the default's with figures; the order turns from round to round, so that drift hits both alike."""
    order = (best, default) if flipped else (default, best)
    outcomes = {config: measurer.measure(config, workload, plan) for config in order}
    if outcomes[default].measurement is None:
        reason = outcomes[default].reason or outcomes[default].state
        raise NothingFeasibleError(
            f"The default configuration no longer runs: {reason}.",
            "See what this machine and its llama.cpp can do now: `rooftune profile`.",
        )
    return outcomes[default], outcomes[best]


def _fail(report: Report, verdict: str, changed: tuple[str, ...], notes: tuple[str, ...]) -> Verification:
    return Verification(
        holds=False,
        verdict=verdict,
        gain=None,
        recorded=report.gain,
        baseline=None,
        best=None,
        changed=changed,
        notes=notes,
    )


def _comparable(goals: Sequence[Goal], *, prefill: bool, decode: bool) -> Goal:
    """The goal that is compared: the first that time tells; for a context alone, what was measured beside it."""
    timed = [goal for goal in goals if goal != "context"]
    if timed:
        return timed[0]
    return "latency" if prefill and decode else "ttft" if prefill else "tpot"


def _figure(measurement: Measurement, metric: Goal) -> float:
    value = measurement.throughput_tps if metric == "throughput" else getattr(measurement, f"{metric}_ms")
    if not value or value <= 0:
        raise NothingFeasibleError(f"The measurement came without {metric}.", "Run it again with -v.")
    return float(value)


def _merge(rounds: Sequence[Measurement]) -> Measurement:
    """One measurement with the samples of all rounds and medians over them."""
    names = ("ttft_ms", "tpot_ms", "latency_ms", "throughput_tps", "throughput_total_tps")
    figures = {name: median_or_none([getattr(each, name) for each in rounds]) for name in names}
    samples = tuple(sample for each in rounds for sample in each.samples)
    return msgspec.structs.replace(rounds[0], **figures, samples=samples)


def _describe(gain: Gain) -> str:
    return f"{gain.metric} {format_gain(gain.ratio, *(gain.ci95 or (None, None)))}"
