"""Real children that hold memory and die: what they held is back before the next one starts, or the user is told.

Only memory of the children at hand is counted, since the machine is shared with who knows whom.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator, Mapping

import psutil
import pytest

from tests.faults.engines import FAULTY, SOUND
from tuner.measure.record import Outcome, Plan
from tuner.measure.recovery import MAIN, Recovery
from tuner.measure.runner import ChildMeasurer
from tuner.measure.validity import ANYTHING
from tuner.workload import PRESETS

MIB = 2**20
WHOLE = 4096 * MIB
QUICK, ONE = PRESETS["quick"], Plan(samples=1)
MARK = "ROOFTUNE_TEST_FAMILY"


class Family:
    """A machine whose memory is taken by the processes of one test only; sleeping is counted, not done."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.slept_s = 0.0
        self.holder_dies_after_s = float("inf")

    def read(self) -> Mapping[str, int]:
        return {MAIN: WHOLE - sum(held_bytes(process) for process in self.list_members())}

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        if self.slept_s >= self.holder_dies_after_s:
            self.end_members()

    def list_members(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if read_mark(process) == self.name]

    def end_members(self) -> None:
        for member in self.list_members():
            with contextlib.suppress(psutil.Error):
                member.kill()
                member.wait(10)

    def open_measurer(self, engine: str) -> ChildMeasurer:
        recovery = Recovery(self.read, clock=lambda: self.slept_s, sleep=self.sleep)
        return ChildMeasurer(
            f"tests.faults.engines:{engine}",
            time_limit_s=20,
            memory_ceiling_bytes=1024 * MIB,
            tolerance=ANYTHING,
            environ={MARK: self.name},
            recovery=recovery,
        )


def read_mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None


def held_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.end_members()


def run_two(measurer: ChildMeasurer) -> tuple[Outcome, Outcome]:
    """The point that kills the child, and one after it."""
    with measurer:
        return measurer.measure(FAULTY, QUICK, ONE), measurer.measure(SOUND, QUICK, ONE)


def end_child(measurer: ChildMeasurer) -> None:
    """As the system does, between two points."""
    assert measurer.child_pid is not None
    os.kill(measurer.child_pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while measurer.child_pid is not None and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("engine", ["HoldsMemoryToTheEnd", "EatsMemory", "EatsMemoryInChild", "LacksMemory", "Aborts"])
def test_a_dead_childs_memory_is_back_before_the_next_one_starts(family: Family, engine: str) -> None:
    """By itself or by our kill, alone or with processes of its own: at the next start nothing is missing or waited for."""
    failed, after = run_two(family.open_measurer(engine))
    assert failed.measurement is None
    assert (after.state, after.notes, family.slept_s) == ("complete", (), 0.0)


def test_memory_of_a_process_that_got_away_is_waited_for(family: Family) -> None:
    """It ends a second later, and the next child starts then, without a word."""
    family.holder_dies_after_s = 1.0
    failed, after = run_two(family.open_measurer("LeavesAHolder"))
    assert failed.state == "crash"
    assert (after.state, after.notes) == ("complete", ())
    assert 0.95 < family.slept_s < 1.15


def test_memory_of_a_process_that_stays_is_told_once_with_the_next_point(family: Family) -> None:
    """The point is measured all the same, and those after it say nothing more, whatever child they get."""
    with family.open_measurer("LeavesAHolder") as measurer:
        failed = measurer.measure(FAULTY, QUICK, ONE)
        after = measurer.measure(SOUND, QUICK, ONE)
        assert failed.notes == ()
        end_child(measurer)
        later = measurer.measure(SOUND, QUICK, ONE)
    assert (failed.state, after.state, later.state) == ("crash", "complete", "complete")
    (note,) = after.notes
    found = re.match(r"(\d+) MiB of main memory \(.* free, 4 GiB before\) did not come back within 5.0s", note)
    assert found is not None
    assert int(found[1]) == pytest.approx(200, abs=20)
    assert later.notes == ()


def test_the_next_child_may_hold_less_by_what_stays_away(family: Family) -> None:
    """A ceiling of 1 GiB, less what the process that got away holds."""
    with family.open_measurer("LeavesAHolder") as measurer:
        measurer.measure(FAULTY, QUICK, ONE)
        measurer.measure(SOUND, QUICK, ONE)
        assert measurer._child is not None
        assert measurer._child._ceiling is not None
        assert measurer._child._ceiling / MIB == pytest.approx(824, abs=20)


def test_a_loss_found_while_memory_is_projected_is_told_with_the_next_point(family: Family) -> None:
    """A projection has no place for notes; the child that it starts may be the one that finds the loss."""
    with family.open_measurer("LeavesAHolder") as measurer:
        assert measurer.project_memory(FAULTY, front_end="llama-server") is None
        assert measurer.project_memory(SOUND, front_end="llama-server") is not None
        notes = measurer.measure(SOUND, QUICK, ONE).notes
    assert len(notes) == 1
    assert "did not come back" in notes[0]
