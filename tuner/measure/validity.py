"""Does a sample count? Only what plausibly changed its times disturbs it, and the reason is told in plain words.

Pure functions over figures. An unknown figure (None) never disturbs a sample, and never clears one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from tuner.measure.activity import Activity

SLOW_START_FACTOR: Final = 2.0
"""A first sample this many times the median is a slow start (pages read in, kernels chosen), not the point's speed."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """From where on a sample is disturbed."""

    least_share: float = 0.9
    """Processor time got / wanted. Waiting threads of OpenMP spin, so an undisturbed run shows 0.97 to 1; at 0.85 a token
    was seen to take a quarter longer."""
    spare_cores: float = 0.25
    """Cores that ours and others may together take beyond those there are, before they are in each other's way."""
    most_others: float = 0.1
    """Cores busy with others below which they explain nothing."""
    most_steal: float = 0.1
    """Cores taken by the hypervisor."""
    most_swapped: int = 64
    """Pages swapped in or out."""
    most_throttled: float = 0.05
    """Share of the time slowed down by heat."""


STRICT: Final = Tolerance()
"""For figures that are to be ranked."""

ANYTHING: Final = Tolerance(
    least_share=0.0, spare_cores=1e9, most_others=1e9, most_steal=1e9, most_swapped=2**62, most_throttled=1.0
)
"""Lets every sample count: for simulated engines, and for a user who insists on a busy machine."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine wanted of the processor in one phase, and what it got."""

    threads: int
    """Threads asked for."""
    share: float | None
    """Processor time / (wall × threads); None when unknown."""
    on_cpu: bool
    """All the work is done by these threads; with a device at work a low share is normal."""


def judge_sample(efforts: Sequence[Effort], activity: Activity, *, usable_cores: float, tolerance: Tolerance = STRICT) -> str:
    """Why the sample does not count; "" when it does."""
    wanted = min(max((effort.threads for effort in efforts), default=0), usable_cores)
    checks = (
        _judge_others(wanted, activity, usable_cores, tolerance),
        _judge_share(efforts, activity, usable_cores, tolerance),
        _judge_steal(activity, tolerance),
        _judge_swapping(activity, tolerance),
        _judge_throttling(activity, tolerance),
    )
    return next((reason for reason in checks if reason), "")


def describe_busy_machine(activity: Activity, *, usable_cores: float, tolerance: Tolerance = STRICT) -> str:
    """What to tell a user before the search begins; "" on a quiet machine."""
    others = activity.others_cores
    if others is not None and others > max(tolerance.most_others, 0.1 * usable_cores):
        return (
            f"the machine is busy: other programs use {others:.1f} of {usable_cores:g} cores, "
            "so measurements will be slower, fewer and less sure"
        )
    return _judge_steal(activity, tolerance) or _judge_swapping(activity, tolerance)


def find_slow_start(times_ms: Sequence[float]) -> float | None:
    """How many times the median of all the first sample took, when that makes it a slow start; needs three samples."""
    if len(times_ms) < 3:
        return None
    median = statistics.median(times_ms)
    factor = times_ms[0] / median if median > 0 else 1.0
    return factor if factor > SLOW_START_FACTOR else None


def _judge_others(wanted: float, activity: Activity, usable_cores: float, tolerance: Tolerance) -> str:
    others = activity.others_cores
    if others is None or others <= tolerance.most_others or wanted + others <= usable_cores + tolerance.spare_cores:
        return ""
    return f"other programs kept {others:.1f} of {usable_cores:g} cores busy, and this run wanted {wanted:g}"


def _judge_share(efforts: Sequence[Effort], activity: Activity, usable_cores: float, tolerance: Tolerance) -> str:
    """A low share alone may be the engine's own waiting; it disturbs where somebody else can have had the rest."""
    known = [value for value in (activity.others_cores, activity.steal_cores) if value is not None]
    somebody = not known or sum(known) > tolerance.most_others
    for effort in efforts:
        if effort.share is None or not effort.on_cpu or not somebody:
            continue
        got = effort.share * effort.threads / min(effort.threads, usable_cores)
        if got < tolerance.least_share:
            return f"the engine got {got:.0%} of the processor time that its threads wanted"
    return ""


def _judge_steal(activity: Activity, tolerance: Tolerance) -> str:
    stolen = activity.steal_cores
    if stolen is None or stolen <= tolerance.most_steal:
        return ""
    return f"the hypervisor gave {stolen:.1f} cores' time to other guests"


def _judge_swapping(activity: Activity, tolerance: Tolerance) -> str:
    pages = activity.swapped_pages
    return f"the machine was swapping ({pages} pages)" if pages is not None and pages > tolerance.most_swapped else ""


def _judge_throttling(activity: Activity, tolerance: Tolerance) -> str:
    """By time where the kernel tells it; a mere count disturbs only when there is nothing better."""
    share = activity.throttled_share
    if share is not None:
        return f"heat slowed the processor down for {share:.0%} of the time" if share > tolerance.most_throttled else ""
    count = activity.throttle_count
    if count and tolerance.most_throttled < 1.0:
        return f"heat slowed the processor down {count} times"
    return ""
