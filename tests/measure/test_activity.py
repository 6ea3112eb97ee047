"""What the kernel's counters say, read from small trees and from this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.measure.activity import Activity, Snapshot, compare_snapshots, survey_load, take_snapshot

TICK = os.sysconf("SC_CLK_TCK")
CORES = frozenset({0, 1})
TWO_OF_FOUR = """cpu  9 9 9 9 9 9 9 9 9 9
cpu0 100 10 20 1000 500 3 2 7 0 0
cpu1 200 0 30 2000 0 0 0 1 50 0
cpu2 900000 0 0 0 0 0 0 900 0 0
cpu3 900000 0 0 0 0 0 0 900 0 0
intr 12345
"""


def build_tree(
    root: Path, *, stat: str = TWO_OF_FOUR, vmstat: str = "", throttled: dict[int, tuple[int, int]] | None = None
) -> Path:
    (root / "proc").mkdir(parents=True)
    (root / "proc/stat").write_text(stat)
    (root / "proc/vmstat").write_text(vmstat)
    for core, (count, ms) in (throttled or {}).items():
        folder = root / f"sys/devices/system/cpu/cpu{core}/thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
        (folder / "core_throttle_total_time_ms").write_text(f"{ms}\n")
    return root


def read(root: Path, own_s: float | None = 0.0, at_s: float = 5.0) -> Snapshot:
    return take_snapshot(own_s=own_s, root=root, cores=CORES, clock=lambda: at_s)


def test_only_the_cores_that_we_may_use_are_counted(tmp_path: Path) -> None:
    """Busy is user, nice, system and interrupts; waiting for a disk is idle, guests are in user already."""
    seen = read(build_tree(tmp_path))
    assert seen.busy_s == pytest.approx((135 + 230) / TICK)
    assert seen.steal_s == pytest.approx(8 / TICK)
    assert (seen.at_s, seen.own_s) == (5.0, 0.0)


def test_swapping_and_throttling_are_read(tmp_path: Path) -> None:
    """Pages both ways; the longest throttled time of a core, all events of the watched cores."""
    vmstat = "pgpgin 77\npswpin 30\npswpout 12\nnr_free_pages 9\n"
    seen = read(build_tree(tmp_path, vmstat=vmstat, throttled={0: (3, 40), 1: (5, 90), 2: (1000, 9999)}))
    assert (seen.swapped_pages, seen.throttle_ms, seen.throttle_count) == (42, 90, 8)


@pytest.mark.parametrize("stat", ["", "cpu 1 2\n", "rubbish \xff", "cpu0 1 2 3\n", "cpu9 1 2 3 4 5 6 7 8\n"])
def test_what_a_machine_does_not_say_is_none(tmp_path: Path, stat: str) -> None:
    """Never 0, never an error."""
    seen = read(build_tree(tmp_path, stat=stat))
    assert (seen.busy_s, seen.steal_s, seen.swapped_pages, seen.throttle_ms, seen.throttle_count) == (None,) * 5


def test_a_machine_without_such_files(tmp_path: Path) -> None:
    """Another system altogether."""
    activity = compare_snapshots(read(tmp_path / "none", None), read(tmp_path / "none", None, at_s=6.0))
    assert activity == Activity(
        wall_s=1.0,
        others_cores=None,
        steal_cores=None,
        swapped_pages=None,
        throttled_share=None,
        throttle_count=None,
    )


def snapshot(**changes: object) -> Snapshot:
    facts: dict[str, object] = {
        "at_s": 10.0, "busy_s": 100.0, "steal_s": 1.0, "own_s": 50.0, "swapped_pages": 10, "throttle_ms": 100, "throttle_count": 2,
    }  # fmt: skip
    return Snapshot(**(facts | changes))  # type: ignore[arg-type]


def test_the_difference_of_two_snapshots() -> None:
    """In two seconds: 3 s of processor time, 2 s of it ours, so half a core for others."""
    after = snapshot(at_s=12.0, busy_s=103.0, steal_s=1.5, own_s=52.0, swapped_pages=14, throttle_ms=600, throttle_count=5)
    assert compare_snapshots(snapshot(), after) == Activity(
        wall_s=2.0, others_cores=0.5, steal_cores=0.25, swapped_pages=4, throttled_share=0.25, throttle_count=3
    )


def test_a_few_ticks_say_nothing_about_shares() -> None:
    """Over 30 ms the counters may be wrong by a third of a core."""
    seen = compare_snapshots(snapshot(), snapshot(at_s=10.03, busy_s=100.03))
    assert (seen.others_cores, seen.steal_cores, seen.swapped_pages) == (None, None, 0)


def test_rounding_never_makes_others_negative() -> None:
    """Our own time is counted more finely than the machine's."""
    assert compare_snapshots(snapshot(), snapshot(at_s=11.0, busy_s=100.9, own_s=51.0)).others_cores == 0.0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_busy_process_on_this_machine_is_seen() -> None:
    """A neighbour that spins shows up as a good part of a core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            seen = survey_load(1.0)
        finally:
            neighbour.kill()
    assert seen.others_cores is not None
    assert seen.others_cores > 0.3
