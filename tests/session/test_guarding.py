"""What the measuring child may hold, by the machine and by what the user said."""

from __future__ import annotations

import pytest

from tuner.errors import UsageError
from tuner.hardware import HardwareProfile, LimitFacts, MemoryFacts
from tuner.session.guarding import MemoryRules, find_ceiling, read_rules

GIB = 2**30
USUAL, OVERRULED = MemoryRules(), MemoryRules(checked=False)


@pytest.mark.parametrize(
    ("total", "limit", "available", "rules", "expected"),
    [
        (100, None, 40, USUAL, 38.0),
        (100, None, 40, MemoryRules(reserve_bytes=0), 38.0),
        (100, None, 40, MemoryRules(reserve_bytes=10 * GIB), 30.0),
        (100, None, 40, MemoryRules(reserve_bytes=50 * GIB), 0.25),
        (100, None, None, USUAL, None),
        (100, None, 40, OVERRULED, 95.0),
        (100, 60, 40, OVERRULED, 57.0),
        (None, 60, 40, OVERRULED, 57.0),
        (None, None, 40, OVERRULED, None),
    ],
)
def test_the_childs_ceiling(
    total: int | None, limit: int | None, available: int | None, rules: MemoryRules, expected: float | None
) -> None:
    """Of what is available less the reserve; where the check is overruled, of all that is there. Never the whole machine."""

    def scale(gib: int | None) -> int | None:
        return None if gib is None else gib * GIB

    machine = HardwareProfile(
        memory=MemoryFacts(total_bytes=scale(total)),
        limits=LimitFacts(memory_limit_bytes=scale(limit), memory_available_bytes=scale(available)),
    )
    found = find_ceiling(machine, rules)
    assert (None if found is None else found / GIB) == (None if expected is None else pytest.approx(expected))


def test_rules_are_read_from_text() -> None:
    """No text means the usual reserve, 0 means none."""
    assert read_rules("", no_memory_check=False) == USUAL
    assert read_rules("0", no_memory_check=True) == MemoryRules(reserve_bytes=0, checked=False)
    with pytest.raises(UsageError, match="--reserve: 'a lot' is not an amount of memory"):
        read_rules("a lot", no_memory_check=False)
