"""Memory of an ended child: back at once, back after a while, or not, and then told once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from tuner.measure.recovery import ENGINE_ALONE, Recovery, find_missing, lower_ceiling, read_free

GIB, MIB = 2**30, 2**20
MAIN, GPU = "main memory", "the memory of GPU 0"


class Machine:
    """Says what is free, one reading after the other and the last one for ever, on a clock that only sleeping moves."""

    def __init__(self, readings: Iterable[Mapping[str, float]]) -> None:
        self.readings = [{name: int(gib * GIB) for name, gib in each.items()} for each in readings]
        self.now_s = 0.0
        self.looks = 0

    def read(self) -> Mapping[str, int]:
        self.looks += 1
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def open(self) -> Recovery:
        return Recovery(self.read, clock=lambda: self.now_s, sleep=self.sleep, longest_s=5.0)


def ask(machine: Machine, times: int) -> list[str]:
    recovery = machine.open()
    return [recovery.await_memory() for _ in range(times)]


@pytest.mark.parametrize(
    "readings",
    [
        [{MAIN: 8.0}, {MAIN: 8.0}],
        [{MAIN: 8.0}, {MAIN: 9.0}],
        [{MAIN: 8.0}, {MAIN: 7.88}],
        [{MAIN: 100.0}, {MAIN: 98.5}],
        [{MAIN: 8.0, GPU: 40.0}, {MAIN: 8.0, GPU: 40.0}],
        [{MAIN: 8.0, GPU: 40.0}, {MAIN: 8.0}],
        [{}, {MAIN: 8.0}],
        [{}, {}],
    ],
    ids=[
        "all of it",
        "more of it",
        "but little, and no machine stands still",
        "but little of much",
        "a GPU's too",
        "a GPU that no longer says",
        "a machine that says it late",
        "a machine that never says",
    ],
)
def test_where_memory_is_back_nothing_is_waited_for(readings: list[dict[str, float]]) -> None:
    """One look before each child, no sleep, no words."""
    machine = Machine(readings)
    assert ask(machine, 2) == ["", ""]
    assert (machine.looks, machine.now_s) == (2, 0.0)


def test_memory_that_comes_back_late_is_waited_for() -> None:
    """As a driver's after a kill; the next child starts as soon as it is there."""
    machine = Machine([{GPU: 40.0}, {GPU: 3.0}, {GPU: 20.0}, {GPU: 40.0}])
    assert ask(machine, 2) == ["", ""]
    assert (machine.looks, machine.now_s) == (4, pytest.approx(0.2))


def test_memory_that_stays_away_is_told_once_and_not_waited_for_again() -> None:
    """What is missing, how long it was waited for, and who can tell where it is. From then on, less is expected."""
    machine = Machine([{MAIN: 8.0}, {MAIN: 5.0}])
    first, second, *rest = ask(machine, 4)
    assert second.startswith("3 GiB of main memory (5 GiB free, 8 GiB before) did not come back within 5.0s")
    assert "`top -o %MEM`" in second
    assert "nvidia-smi" not in second
    assert [first, *rest] == [""] * 3
    assert 5.0 <= machine.now_s < 5.2


def test_a_gpus_memory_has_its_own_words_beside_main_memorys() -> None:
    """Each with its amount."""
    _, words = ask(Machine([{MAIN: 8.0, GPU: 40.0}, {MAIN: 6.0, GPU: 10.0}]), 2)
    assert "2 GiB of main memory (6 GiB free, 8 GiB before) and 30 GiB of the memory of GPU 0 (10 GiB free" in words
    assert "`top -o %MEM` and `nvidia-smi`" in words


def test_a_neighbour_that_takes_more_and_more_costs_the_longest_wait_each_time_at_most() -> None:
    """Every second look finds another GiB gone."""
    machine = Machine([{MAIN: 8.0 - taken / 2} for taken in range(16)] + [{MAIN: 0.0}])
    recovery = machine.open()
    recovery.await_memory()
    for _ in range(3):
        began = machine.now_s
        recovery.await_memory()
        assert machine.now_s - began < 5.2


def test_a_floor_that_rises_with_each_child_is_noticed_in_the_end() -> None:
    """Each child leaves less behind than would be told; all of them together are."""
    machine = Machine([{}])
    recovery = machine.open()
    said = []
    for free in (40.0, 39.5, 39.0, 38.5):
        machine.readings = [{GPU: int(free * GIB)}]
        said.append(recovery.await_memory())
    assert [bool(each) for each in said] == [False, False, True, False]
    assert said[2].startswith("1 GiB of the memory of GPU 0 (39 GiB free, 40 GiB before)")


def test_a_wish_to_stop_ends_the_waiting_without_a_word() -> None:
    """And what was expected still is."""
    machine = Machine([{MAIN: 8.0}, {MAIN: 5.0}])
    recovery = machine.open()
    recovery.await_memory()
    assert recovery.await_memory(is_stopped=lambda: True) == ""
    assert machine.now_s == 0.0
    assert "3 GiB" in recovery.await_memory()


def test_what_is_lost_is_counted_from_the_first_child_and_may_come_back() -> None:
    """Each note tells of what went since the last one, the ceiling of the child needs all of it."""
    machine = Machine([{MAIN: 8.0}])
    recovery = machine.open()
    lost = []
    for free in (8.0, 5.0, 3.0, 7.9):
        machine.readings = [{MAIN: int(free * GIB)}]
        recovery.await_memory()
        lost.append(recovery.lost_bytes / GIB)
    assert lost == [0, 3, 5, 0]


@pytest.mark.parametrize(
    ("before", "now", "missing"),
    [
        ({MAIN: 10 * GIB}, {MAIN: 9 * GIB}, {MAIN: GIB}),
        ({MAIN: 512 * MIB}, {MAIN: 400 * MIB}, {}),
        ({MAIN: 512 * MIB}, {MAIN: 300 * MIB}, {MAIN: 212 * MIB}),
        ({MAIN: 100 * GIB}, {MAIN: 98 * GIB}, {}),
        ({MAIN: 100 * GIB}, {MAIN: 97 * GIB}, {MAIN: 3 * GIB}),
        ({GPU: GIB}, {}, {}),
        ({}, {GPU: GIB}, {}),
    ],
)
def test_what_counts_as_missing(before: dict[str, int], now: dict[str, int], missing: dict[str, int]) -> None:
    """More than a fiftieth, and more than 128 MiB. A memory that does not say is not missing."""
    assert find_missing(before, now) == missing


@pytest.mark.parametrize(
    ("ceiling", "lost", "lowered"),
    [(8 * GIB, 0, 8 * GIB), (8 * GIB, 3 * GIB, 5 * GIB), (8 * GIB, 9 * GIB, ENGINE_ALONE), (100 * MIB, 9 * GIB, 100 * MIB)],
)
def test_the_next_child_may_hold_less_by_what_is_lost(ceiling: int, lost: int, lowered: int) -> None:
    """An engine without a model always fits, unless the ceiling was lower from the start."""
    assert lower_ceiling(ceiling, lost) == lowered


@pytest.fixture
def root(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """A machine made of files."""

    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


MEMINFO = {"/proc/meminfo": f"MemTotal: {16 * MIB} kB\nMemAvailable: {12 * MIB} kB\n"}
LIMITED = {
    "/proc/self/cgroup": "0::/\n",
    "/sys/fs/cgroup/cgroup.controllers": "memory\n",
    "/sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
    "/sys/fs/cgroup/memory.current": f"{7 * GIB}\n",
    "/sys/fs/cgroup/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {4 * GIB}\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [({}, None), (MEMINFO, 12 * GIB), (MEMINFO | LIMITED, 7 * GIB), (LIMITED, 7 * GIB)],
    ids=["nothing told", "the machine", "a tighter cgroup", "a cgroup alone"],
)
def test_main_memory_is_read_where_it_is_tightest(
    files: dict[str, str], free: int | None, root: Callable[[Mapping[str, str]], Path]
) -> None:
    """In a cgroup, the model file that the ended child has read often is no loss: its pages go when they are needed."""
    assert read_free(root=root(files), environ={}).get(MAIN) == free


def test_this_machine_says_what_is_free() -> None:
    """The real files, between nothing and all."""
    import psutil

    assert 0 < read_free()[MAIN] <= psutil.virtual_memory().total
