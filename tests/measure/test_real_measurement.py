"""The runner, the child, the engine and llama.cpp together, on a real model; and llama.cpp's own ways to go wrong."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tuner.measure.record import Measurement, Plan
from tuner.measure.runner import ChildMeasurer
from tuner.measure.validity import ANYTHING
from tuner.runconfig import RunConfig
from tuner.workload import Workload

pytestmark = pytest.mark.llama

SHORT = Workload(name="short", prompt_tokens=48, output_tokens=18)
DEEP = Workload(name="deep", prompt_tokens=48, output_tokens=18, depth_tokens=300)
FULL = Plan(samples=3, decode_tokens=18, most_repeats=1)
GIB = 2**30


@pytest.fixture(scope="module")
def measurer() -> Iterator[ChildMeasurer]:
    """Any load counts: this machine may be busy, and no figure is compared with a limit here."""
    with ChildMeasurer("llama-cpp-python", tolerance=ANYTHING, memory_ceiling_bytes=2 * GIB) as opened:
        yield opened
    assert not [process for process in psutil.Process().children() if "tuner.measure.worker" in " ".join(process.cmdline())]


@pytest.fixture
def config(smollm2: Path) -> RunConfig:
    return RunConfig(model=str(smollm2), n_gpu_layers=0, ctx_size=512, threads=1, threads_batch=1)


def measure(measurer: ChildMeasurer, config: RunConfig, workload: Workload = SHORT, plan: Plan = FULL) -> Measurement:
    outcome = measurer.measure(config, workload, plan)
    assert (outcome.state, outcome.reason) == ("complete", "")
    assert outcome.measurement is not None
    assert 0 < outcome.measured_s < outcome.elapsed_s
    return outcome.measurement


def test_figures_follow_from_the_raw_samples(measurer: ChildMeasurer, config: RunConfig) -> None:
    """TTFT, TPOT, latency and throughput agree with each other and with the samples; memory adds up."""
    found = measure(measurer, config)
    assert len(found.samples) == 3
    assert found.ttft_ms == statistics.median(s.ttft_ms for s in found.samples if s.ttft_ms is not None)
    assert found.tpot_ms == statistics.median(s.tpot_ms for s in found.samples if s.tpot_ms is not None)
    assert found.latency_ms == pytest.approx(found.ttft_ms + 17 * found.tpot_ms)
    for sample in found.samples:
        assert sample.tpot_ms is not None
        assert sample.ttft_ms is not None
        assert sample.decode_tps == pytest.approx(1000 / sample.tpot_ms)
        assert sample.total_tps == pytest.approx(18_000 / (sample.ttft_ms + 17 * sample.tpot_ms))
    assert found.memory_bytes == sum(found.buffers.values())
    assert found.decode_tokens == 18
    assert found.flash_attn in {"on", "off"}
    assert found.runtime.engine == "llama-cpp-python"


def test_the_same_prompt_twice_is_read_twice(measurer: ChildMeasurer, config: RunConfig) -> None:
    """No cache helps: a prompt of 48 tokens takes far longer than a token, in every sample and in a second measurement."""
    plan = Plan(samples=3, decode_tokens=18, most_repeats=0)
    for found in (measure(measurer, config, plan=plan), measure(measurer, config, plan=plan)):
        assert not [sample for sample in found.discarded if "warm" in sample.disturbed]
        assert all(s.ttft_ms > 1.5 * s.tpot_ms for s in found.samples if s.ttft_ms and s.tpot_ms)


def test_loading_is_told_apart_and_done_once(measurer: ChildMeasurer, config: RunConfig) -> None:
    """Another batch or context keeps the model; the child stays the same."""
    measure(measurer, config)
    pid = measurer.child_pid
    for changed in (config.replace(batch_size=256), config.replace(ctx_size=768), config.replace(ubatch_size=128)):
        assert measure(measurer, changed, plan=Plan(samples=1, decode_tokens=4)).load_ms == 0
    assert measurer.child_pid == pid


def test_a_phase_can_be_measured_alone(measurer: ChildMeasurer, config: RunConfig) -> None:
    """Prefill alone knows no TPOT, decode alone no TTFT."""
    prefill = measure(measurer, config, plan=Plan(samples=1))
    assert (prefill.tpot_ms, prefill.latency_ms, prefill.decode_tokens) == (None, None, 0)
    decode = measure(measurer, config, plan=Plan(samples=1, prefill=False, decode_tokens=20))
    assert (decode.ttft_ms, decode.latency_ms, decode.decode_tokens) == (None, None, 20)


def test_few_tokens_are_not_ranked(measurer: ChildMeasurer, config: RunConfig) -> None:
    """Eight tokens are measured, and the result says what they are worth."""
    found = measure(measurer, config, plan=Plan(samples=1, decode_tokens=8))
    assert (found.decode_tokens, "not ranked" in found.notes[-1]) == (8, True)


def test_depth_and_slots(measurer: ChildMeasurer, config: RunConfig) -> None:
    """History of 300 tokens in each of two slots: two tokens per step."""
    found = measure(measurer, config.replace(ctx_size=1024, parallel=2), DEEP, Plan(samples=1, decode_tokens=18))
    sample = found.samples[0]
    assert sample.tpot_ms is not None
    assert sample.decode_tps == pytest.approx(2000 / sample.tpot_ms)
    assert found.workload.depth_tokens == 300


def test_processor_time_is_told(measurer: ChildMeasurer, config: RunConfig) -> None:
    """A share of what the threads could have had, above nothing and not above all by more than a clock tick's worth."""
    sample = measure(measurer, config).samples[0]
    assert sample.prefill_cpu_share is not None
    assert sample.decode_cpu_share is not None
    assert 0 < sample.prefill_cpu_share < 1.2
    assert 0 < sample.decode_cpu_share < 1.2


def test_a_projection_does_not_disturb(measurer: ChildMeasurer, config: RunConfig) -> None:
    """llama.cpp's own figures without allocation, and the next point still works."""
    projected = measurer.project_memory(config, front_end="llama-server")
    assert projected is not None
    assert sum(projected.values()) > 90 * 2**20
    measure(measurer, config, plan=Plan(samples=1, decode_tokens=4))


REFUSED = [
    ("a quantised V cache without flash attention", {"cache_type_v": "q8_0", "flash_attn": "off"}, {"invalid"}),
    ("no batch at all", {"batch_size": 0, "ubatch_size": 0}, {"invalid", "crash"}),
    ("a context beyond all memory", {"ctx_size": 2**30}, {"invalid", "out_of_memory"}),
    ("a context beyond the ceiling", {"ctx_size": 2**18}, {"invalid", "out_of_memory"}),
]


@pytest.mark.parametrize(("changes", "states"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_llama_cpp_refuses_is_an_outcome(
    measurer: ChildMeasurer, config: RunConfig, changes: dict[str, object], states: set[str]
) -> None:
    """With a reason in one line; the next point works."""
    outcome = measurer.measure(config.replace(**changes), SHORT, FULL)
    assert outcome.state in states
    assert outcome.measurement is None
    assert outcome.reason
    assert "\n" not in outcome.reason
    measure(measurer, config, plan=Plan(samples=1, decode_tokens=4))


@pytest.mark.parametrize("damage", ["missing", "cut", "not a model"])
def test_a_damaged_file_is_invalid(measurer: ChildMeasurer, config: RunConfig, tmp_path: Path, damage: str) -> None:
    """The reason names what is wrong; the next point works."""
    path = tmp_path / "model.gguf"
    whole = Path(config.model).read_bytes()
    if damage != "missing":
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"GGML" + bytes(5000))
    outcome = measurer.measure(config.replace(model=str(path)), SHORT, FULL)
    assert (outcome.state, outcome.measurement) == ("invalid", None)
    assert outcome.reason
    measure(measurer, config, plan=Plan(samples=1, decode_tokens=4))
