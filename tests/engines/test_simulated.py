"""The pretended machine obeys physics in its direction, repeats itself, refuses what llama.cpp refuses, and says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.engines.base import EngineError, PrepareRequest, Turn, TurnRequest
from tuner.engines.simulated import Machine, SimulatedEngine
from tuner.runconfig import RunConfig
from tuner.workload import Workload

QUIET = Machine(noise=0.0)
LOAD = Workload(name="test", prompt_tokens=256, output_tokens=16, depth_tokens=512)


def run(model: Path, workload: Workload = LOAD, **settings: Any) -> Turn:
    engine = SimulatedEngine(machine=QUIET, environment={})
    config = RunConfig(**{"model": str(model), "ctx_size": 4096, "threads": 4, "threads_batch": 4, **settings})
    engine.prepare(PrepareRequest(config=config, workload=workload))
    return engine.run_turn(TurnRequest(prefill=True, decode_tokens=workload.output_tokens))


def ttft(turn: Turn) -> float:
    assert turn.ttft_ms is not None
    return turn.ttft_ms


def tpot(turn: Turn) -> float:
    assert turn.decode_ms is not None
    return turn.decode_ms / turn.decode_steps


def test_it_names_itself() -> None:
    """No figure of it can pass for a measurement."""
    facts = SimulatedEngine(environment={}).describe_runtime()
    assert (facts.engine, facts.llama_cpp) == ("simulated", "")


@pytest.mark.parametrize(
    ("better", "worse", "figure"),
    [
        ({"threads": 4}, {"threads": 1}, tpot),
        ({"threads": 4}, {"threads": 16}, tpot),
        ({"threads_batch": 4}, {"threads_batch": 2}, ttft),
        ({"ubatch_size": 256}, {"ubatch_size": 16}, ttft),
        ({"flash_attn": "on"}, {"flash_attn": "off"}, ttft),
        ({"cache_type_k": "q8_0"}, {"cache_type_k": "f32"}, tpot),
    ],
)
def test_settings_move_the_phase_they_touch(smollm2: Path, better: dict[str, Any], worse: dict[str, Any], figure: Any) -> None:
    """In the direction that bytes and operations give."""
    assert figure(run(smollm2, **better)) < figure(run(smollm2, **worse))


def test_a_longer_history_makes_both_phases_slower(smollm2: Path) -> None:
    """Attention reads what is in the cache."""
    short, long = (Workload(name="x", prompt_tokens=128, output_tokens=8, depth_tokens=d) for d in (0, 2048))
    assert ttft(run(smollm2, short)) < ttft(run(smollm2, long))
    assert tpot(run(smollm2, short)) < tpot(run(smollm2, long))


def test_the_same_seed_gives_the_same_noise(smollm2: Path) -> None:
    """And another seed another."""

    def first(seed: str) -> Turn:
        engine = SimulatedEngine(environment={"ROOFTUNE_SIMULATED_SEED": seed})
        config = RunConfig(model=str(smollm2), ctx_size=1024, threads=2, threads_batch=2)
        engine.prepare(PrepareRequest(config=config, workload=LOAD))
        return engine.run_turn(TurnRequest(decode_tokens=4))

    assert first("1") == first("1") != first("2")


def test_it_waits_only_when_told(smollm2: Path) -> None:
    """The waiting is exactly the time it claims."""
    waited: list[float] = []
    engine = SimulatedEngine(environment={"ROOFTUNE_SIMULATED_SLEEP": "1"}, sleep=waited.append)
    engine.prepare(PrepareRequest(config=RunConfig(model=str(smollm2), threads=1, threads_batch=1), workload=LOAD))
    turn = engine.run_turn(TurnRequest(decode_tokens=4))
    assert waited == [pytest.approx((ttft(turn) + (turn.decode_ms or 0)) / 1000)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "flash_attn"),
        ({"cache_type_k": "q8_1"}, "f16"),
        ({"ctx_size": 256}, "fit"),
        ({"threads": 0}, "threads"),
    ],
)
def test_what_llama_cpp_refuses_is_refused(smollm2: Path, settings: dict[str, Any], words: str) -> None:
    """With the same kind."""
    with pytest.raises(EngineError) as caught:
        run(smollm2, **settings)
    assert caught.value.kind == "invalid"
    assert words in caught.value.message


def test_a_quantised_v_cache_with_flash_attention_auto_is_fine(smollm2: Path) -> None:
    """auto becomes on."""
    assert ttft(run(smollm2, cache_type_v="q8_0", flash_attn="auto")) > 0


def test_a_missing_model_is_unreadable(tmp_path: Path) -> None:
    """Not a crash, and not a time."""
    with pytest.raises(EngineError) as caught:
        run(tmp_path / "none.gguf")
    assert caught.value.kind == "unreadable"


@pytest.mark.parametrize("request_", [TurnRequest(decode_tokens=1), TurnRequest(prefill=False)])
def test_a_turn_without_anything_to_time_is_refused(smollm2: Path, request_: TurnRequest) -> None:
    """One token has no rate."""
    engine = SimulatedEngine(environment={})
    engine.prepare(PrepareRequest(config=RunConfig(model=str(smollm2), threads=1, threads_batch=1), workload=LOAD))
    with pytest.raises(EngineError):
        engine.run_turn(request_)


def test_slots_are_counted_and_cost(smollm2: Path) -> None:
    """Three slots take longer a step than one, but less than three times as long."""
    one, three = run(smollm2), run(smollm2, parallel=3)
    assert (one.slots, three.slots) == (1, 3)
    assert tpot(one) < tpot(three) < 3 * tpot(one)
