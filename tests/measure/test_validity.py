"""What disturbs a sample, and what does not."""

from __future__ import annotations

import msgspec
import pytest

from tuner.measure.activity import Activity
from tuner.measure.validity import (
    ANYTHING,
    STRICT,
    Effort,
    describe_busy_machine,
    find_slow_start,
    judge_sample,
)

QUIET = Activity(wall_s=1.0, others_cores=0.02, steal_cores=0.0, swapped_pages=0, throttled_share=0.0, throttle_count=0)
UNKNOWN = Activity(
    wall_s=1.0, others_cores=None, steal_cores=None, swapped_pages=None, throttled_share=None, throttle_count=None
)


def effort(threads: int = 2, share: float | None = 0.99, *, on_cpu: bool = True) -> Effort:
    return Effort(threads=threads, share=share, on_cpu=on_cpu)


def during(**changes: object) -> Activity:
    return msgspec.structs.replace(QUIET, **changes)


UNDISTURBED = [
    ("quiet", [effort()], QUIET),
    ("nothing is known", [effort(share=None)], UNKNOWN),
    ("one thread, and a neighbour on the other core", [effort(1)], during(others_cores=0.9)),
    ("a little background on top of all cores", [effort(2)], during(others_cores=0.2)),
    ("idle workers spin: more than its share", [effort(1, 1.99)], QUIET),
    ("a device works, threads wait", [effort(2, 0.3, on_cpu=False)], during(others_cores=0.2)),
    ("it waits of its own accord, nobody else is there", [effort(2, 0.5)], QUIET),
    ("more threads than cores, all cores got", [effort(4, 0.49)], during(others_cores=0.2)),
    ("a page or two", [effort()], during(swapped_pages=3)),
    ("heat, but hardly any time lost", [effort()], during(throttled_share=0.01, throttle_count=4)),
]

DISTURBED = [
    ("a neighbour takes a core", [effort(2)], during(others_cores=1.0), "other programs kept 1.0 of 2 cores busy"),
    ("both cores", [effort(1)], during(others_cores=1.6), "other programs kept 1.6"),
    ("others, prefill only needs it", [effort(2), effort(1)], during(others_cores=0.9), "this run wanted 2"),
    ("share lost to a neighbour", [effort(2, 0.8)], during(others_cores=0.2), "the engine got 80% of the processor time"),
    ("share lost, nobody can say to whom", [effort(2, 0.64)], UNKNOWN, "the engine got 64%"),
    ("decode only", [effort(1, 0.99), effort(1, 0.7)], during(others_cores=0.3), "the engine got 70%"),
    ("stolen", [effort(1)], during(steal_cores=0.4), "the hypervisor gave 0.4 cores' time to other guests"),
    ("swapping", [effort()], during(swapped_pages=5000), "the machine was swapping (5000 pages)"),
    ("hot", [effort()], during(throttled_share=0.3), "heat slowed the processor down for 30% of the time"),
    ("hot, times unknown", [effort()], during(throttled_share=None, throttle_count=2), "down 2 times"),
]


@pytest.mark.parametrize(("efforts", "activity"), [row[1:] for row in UNDISTURBED], ids=[row[0] for row in UNDISTURBED])
def test_a_sample_that_counts(efforts: list[Effort], activity: Activity) -> None:
    """On two cores."""
    assert judge_sample(efforts, activity, usable_cores=2) == ""


@pytest.mark.parametrize(("efforts", "activity", "reason"), [row[1:] for row in DISTURBED], ids=[row[0] for row in DISTURBED])
def test_a_sample_that_does_not_count_says_why(efforts: list[Effort], activity: Activity, reason: str) -> None:
    """On two cores; and whoever insists on a busy machine gets it counted."""
    assert reason in judge_sample(efforts, activity, usable_cores=2)
    assert judge_sample(efforts, activity, usable_cores=2, tolerance=ANYTHING) == ""


def test_many_cores_leave_room_for_others() -> None:
    """Eight threads and three busy neighbours fit into sixteen cores."""
    assert judge_sample([effort(8)], during(others_cores=3.0), usable_cores=16) == ""


@pytest.mark.parametrize(
    ("activity", "cores", "says"),
    [
        (QUIET, 2, ""),
        (UNKNOWN, 2, ""),
        (during(others_cores=1.2), 2, "the machine is busy: other programs use 1.2 of 2 cores"),
        (during(others_cores=1.2), 64, ""),
        (during(steal_cores=0.5), 2, "the hypervisor gave"),
    ],
)
def test_a_busy_machine_is_said_before_the_search(activity: Activity, cores: int, says: str) -> None:
    """In one sentence, or not at all."""
    told = describe_busy_machine(activity, usable_cores=cores, tolerance=STRICT)
    assert says in told
    assert bool(told) == bool(says)


@pytest.mark.parametrize(
    ("times", "factor"),
    [([21.0, 10.0, 10.0], 2.1), ([19.0, 10.0, 10.0], None), ([50.0, 10.0], None), ([10.0, 10.0, 50.0], None), ([], None)],
)
def test_a_slow_start_is_more_than_twice_the_median(times: list[float], factor: float | None) -> None:
    """And only the first sample can be one."""
    assert find_slow_start(times) == (None if factor is None else pytest.approx(factor))
