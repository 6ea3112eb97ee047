"""What every engine keeps, found by existing: a new one is tested without a line here.

Engines are exercised as in real use, in the measuring child, with the demo model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.engines import find_engine, list_engines
from tuner.engines.base import Engine
from tuner.measure.record import Plan
from tuner.measure.runner import ChildMeasurer
from tuner.measure.validity import ANYTHING
from tuner.runconfig import RunConfig
from tuner.workload import Workload

TURN = Workload(name="contract", prompt_tokens=48, output_tokens=18, depth_tokens=32)
CONFIG = RunConfig(ctx_size=256, threads=1, threads_batch=1, n_gpu_layers=0)

pytestmark = pytest.mark.llama


@pytest.fixture(params=list_engines())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_it_is_found_by_its_name_and_says_what_it_is(name: str) -> None:
    """The file's name, the class's name and --engine's name are one."""
    engine = find_engine(name)
    module = __import__(engine.__module__, fromlist=["__doc__"])
    assert issubclass(engine, Engine)
    assert engine.name == name
    assert (engine.__doc__ or module.__doc__ or "").strip()


def test_a_full_turn_has_both_phases_and_all_tokens(name: str, smollm2: Path) -> None:
    """Every sample counts exactly the tokens asked for, and nothing comes from a cache."""
    with ChildMeasurer(name, tolerance=ANYTHING) as measurer:
        outcome = measurer.measure(CONFIG.replace(model=str(smollm2)), TURN, Plan(samples=2, decode_tokens=18))
        assert outcome.state == "complete", outcome.reason
        measurement = outcome.measurement
        assert measurement is not None
        assert measurement.runtime.engine == name
        assert len(measurement.samples) == 2
        assert measurement.decode_tokens == 18
        assert measurement.latency_ms == pytest.approx(measurement.ttft_ms + 17 * measurement.tpot_ms)
        assert measurement.memory_bytes > smollm2.stat().st_size / 2
        assert outcome.measured_s > 0


def test_a_phase_that_is_not_asked_for_is_not_told(name: str, smollm2: Path) -> None:
    """No figure without a measurement."""
    config = CONFIG.replace(model=str(smollm2))
    with ChildMeasurer(name, tolerance=ANYTHING) as measurer:
        first = measurer.measure(config, TURN, Plan(samples=1, prefill=True)).measurement
        second = measurer.measure(config, TURN, Plan(samples=1, prefill=False, decode_tokens=18)).measurement
    assert first is not None
    assert second is not None
    assert (first.ttft_ms is not None, first.tpot_ms) == (True, None)
    assert (second.ttft_ms, second.tpot_ms is not None) == (None, True)


def test_what_llama_cpp_refuses_is_invalid_and_harmless(name: str, smollm2: Path) -> None:
    """A quantised V cache without flash attention; the next point runs."""
    config = CONFIG.replace(model=str(smollm2))
    with ChildMeasurer(name, tolerance=ANYTHING) as measurer:
        refused = measurer.measure(
            config.replace(cache_type_v="q8_0", flash_attn="off"), TURN, Plan(samples=1, decode_tokens=18)
        )
        after = measurer.measure(config, TURN, Plan(samples=1, decode_tokens=18))
    assert refused.state == "invalid"
    assert refused.reason
    assert after.state == "complete"


def test_a_model_that_is_none_is_a_state(name: str, tmp_path: Path) -> None:
    """Never an exception."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(200))
    with ChildMeasurer(name, tolerance=ANYTHING) as measurer:
        outcome = measurer.measure(CONFIG.replace(model=str(path)), TURN, Plan(samples=1, decode_tokens=18))
    assert outcome.state == "invalid"
    assert outcome.reason
