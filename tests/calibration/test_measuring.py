"""A real calibration, much reduced: models that llama.cpp loads, times, a fit, a file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tuner.calibration import calibrate, find_ceilings
from tuner.calibration.plan import FORMATS, Case, Probe, plan_probes
from tuner.calibration.synthetic import Shape, write_model
from tuner.errors import InterruptedRunError
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.runner import ChildMeasurer
from tuner.measure.stop import Stop
from tuner.measure.validity import ANYTHING
from tuner.model import read_model

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def machine() -> HardwareProfile:
    return profile_machine()


def reduce(probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
    """One round of one repetition, few tokens, one thread."""
    return tuple(
        msgspec.structs.replace(
            probe, cases=tuple(case for case in probe.cases if case.tokens in {1, 16}), rounds=1, visit_s=0.0
        )
        for probe in probes
    )


def small(form: str) -> Shape:
    return Shape(n_layer=1, n_embd=256, n_head=4, n_head_kv=2, head_size=64, n_ff=512, n_vocab=512, format=form)


def test_a_reduced_calibration_is_kept_and_found(machine: HardwareProfile, tmp_path: Path) -> None:
    plan = reduce(plan_probes((1,), formats=("Q8_0", "F16"), scale=0.25))
    told: list[str] = []
    made = calibrate(machine, tell=told.append, folder=tmp_path, plan=plan)
    version = machine.build.llama_cpp_version if machine.build else None
    assert find_ceilings(machine, version or "", folder=tmp_path) == made
    assert len([line for line in told if " of " in line]) == len(plan)
    assert {each.format for each in made.formats} == {"Q8_0", "F16"}
    assert all(each.seconds_per_byte.value > 0 for each in made.formats)
    assert made.devices[0].device == "CPU"
    assert made.elapsed_s > 0


@pytest.mark.parametrize("form", FORMATS)
def test_a_model_of_each_format_is_loaded_and_timed(form: str, tmp_path: Path) -> None:
    """llama.cpp reads the file, and so does our own reader."""
    path = write_model(tmp_path / "model.gguf", small(form))
    spec = read_model(path)
    assert dict(spec.bytes_by_type)[form] > 0
    config = {
        "model": str(path), "n_gpu_layers": 0, "ctx_size": 256, "batch_size": 16, "ubatch_size": 16, "threads": 1, "threads_batch": 1,
    }  # fmt: skip
    cases = msgspec.to_builtins([Case(tokens=4, depth=2, threads=1)])
    with ChildMeasurer("llama-cpp-python", tolerance=ANYTHING) as measurer:
        answer = measurer.run_task(
            "probe", {"config": config, "cases": cases, "rounds": 2, "visit_s": 0.0, "limit_s": 5.0}, limit_s=60
        )
    assert len(answer["times"][0]["seconds"]) == 2
    assert min(answer["times"][0]["seconds"]) > 0


def test_a_stop_leaves_nothing_behind(machine: HardwareProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a model nor half a calibration."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    stop = Stop()

    def tell(_text: str) -> None:
        stop.request()
        stop.request()

    with pytest.raises(InterruptedRunError):
        calibrate(machine, tell=tell, stop=stop, folder=tmp_path / "kept", plan=plan_probes((1,), formats=("Q8_0",)))
    assert list(tmp_path.iterdir()) == []
