"""What the measuring child may hold, by the machine and by what the user said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.gguf_files import write_llama
from tuner.errors import UsageError
from tuner.hardware import DeviceFacts, HardwareProfile, LimitFacts, MemoryFacts
from tuner.model import ModelSpec, read_model
from tuner.runconfig import RunConfig
from tuner.session.guarding import MemoryRules, add_remote, find_ceiling, guard_memory, read_rules

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


MIB = 2**20


class Asked:
    """llama.cpp's answer, and which points it was asked for."""

    def __init__(self, compute: int | None) -> None:
        self.compute, self.configs = compute, list[RunConfig]()

    def __call__(self, config: RunConfig) -> dict[str, int] | None:
        self.configs.append(config)
        return None if self.compute is None else {"weights CPU": 4 * MIB, "kv CPU": 8 * MIB, "compute CPU": self.compute}


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    """2 blocks of heads for 8 MiB of cache at 4096 tokens."""
    return read_model(write_llama(tmp_path / "m.gguf"))


def give(mebibytes: int) -> HardwareProfile:
    return HardwareProfile(limits=LimitFacts(memory_available_bytes=mebibytes * MIB))


@pytest.mark.parametrize(
    ("available", "compute", "refused", "asked"),
    [
        (1000, 900 * MIB, False, 0),
        (20, 9 * MIB, True, 1),
        (20, 2 * MIB, False, 1),
        (20, None, False, 1),
        (8, 1 * MIB, True, 0),
    ],
    ids=["room enough", "llama.cpp needs more", "llama.cpp needs little more", "llama.cpp cannot say", "arithmetic suffices"],
)
def test_llama_cpp_is_asked_where_arithmetic_comes_close(
    model: ModelSpec, available: int, compute: int | None, refused: bool, asked: int
) -> None:
    """Arithmetic only bounds compute buffers; llama.cpp tells them before the point is run, once for each point."""
    project = Asked(compute)
    misfit = guard_memory((model,), give(available), MemoryRules(reserve_bytes=0), project=project)
    config = RunConfig(ctx_size=4096)
    said = [misfit(config), misfit(config)]
    assert [reason is not None for reason in said] == [refused, refused]
    assert [each.model for each in project.configs] == [model.path] * asked
    if refused and asked:
        assert "compute buffers 9 MiB" in (said[0] or "")
        assert "at least" not in (said[0] or "")


def test_nobody_is_asked_where_the_check_is_overruled(model: ModelSpec) -> None:
    project = Asked(900 * MIB)
    assert guard_memory((model,), give(20), OVERRULED, project=project)(RunConfig(ctx_size=4096)) is None
    assert not project.configs


def test_what_lies_on_remote_devices_takes_no_main_memory(model: ModelSpec) -> None:
    """Nobody knows how much they have, so only what stays at home can be refused."""
    machine = HardwareProfile(
        limits=LimitFacts(memory_available_bytes=8 * MIB), devices=(DeviceFacts(name="CUDA0", free_bytes=1 * MIB),)
    )
    lent = add_remote(machine, ("127.0.0.1:50052", "127.0.0.1:50053"))
    assert [device.name for device in lent.devices] == ["RPC0", "RPC1", "CUDA0"]
    misfit = guard_memory((model,), lent, MemoryRules(reserve_bytes=0))
    assert misfit(RunConfig(ctx_size=4096)) is None
    assert "main memory" in (misfit(RunConfig(ctx_size=4096, n_gpu_layers=0)) or "")
    assert add_remote(machine, ()) == machine
