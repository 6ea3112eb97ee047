"""A real calibration, much reduced: models that llama.cpp loads, times, a fit, a file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.builders.rpc import serve_rpc
from tuner.calibration import calibrate, calibrate_server, find_ceilings, find_server
from tuner.calibration.plan import FORMATS, Case, Probe, plan_device, plan_probes
from tuner.calibration.synthetic import Shape, write_model
from tuner.errors import BadInputError, InterruptedRunError
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.runner import ChildMeasurer
from tuner.measure.stop import Stop
from tuner.measure.validity import ANYTHING
from tuner.model import read_model
from tuner.roofline.prediction import Predictor
from tuner.runconfig import RunConfig
from tuner.workload import Workload

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def machine() -> HardwareProfile:
    return profile_machine()


def reduce(probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
    """One round of one repetition, few tokens, one thread."""
    small = (
        msgspec.structs.replace(
            probe, cases=tuple(case for case in probe.cases if case.tokens in {1, 16, 64}), rounds=1, visit_s=0.0
        )
        for probe in probes
    )
    return tuple(probe for probe in small if probe.cases)


def small(form: str) -> Shape:
    return Shape(n_layer=1, n_embd=256, n_head=4, n_head_kv=2, head_size=64, n_ff=512, n_vocab=512, format=form)


def test_a_reduced_calibration_is_kept_and_found(machine: HardwareProfile, tmp_path: Path) -> None:
    plan = reduce(plan_probes((1,), formats=("Q8_0", "F16"), scale=0.25))
    told: list[str] = []
    made = calibrate(machine, tell=told.append, folder=tmp_path, plan=plan)
    assert find_ceilings(machine, folder=tmp_path) == made
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


def reduce_device(name: str, number: int, _n_bytes: float) -> tuple[Probe, ...]:
    return reduce(plan_device(name, number, formats=("Q8_0", "F16"), scale=0.2))


@pytest.mark.rpc
@pytest.mark.timeout(280)
def test_a_server_s_device_and_the_way_to_it_are_measured_kept_and_predicted_with(
    machine: HardwareProfile, tmp_path: Path
) -> None:
    """A second process of this machine: figures of its own, a link that is no myth, and layers of a model on both sides."""
    told: list[str] = []
    with serve_rpc() as endpoint:
        remote = calibrate_server(machine, endpoint, tell=told.append, folder=tmp_path, plan=reduce_device)
    assert find_server(machine, endpoint, folder=tmp_path) == remote
    assert [each.device for each in remote.devices] == ["RPC0"]
    assert {each.device for each in (*remote.formats, *remote.attention, *remote.fixed, *remote.links)} == {"RPC0"}
    assert {each.format for each in remote.formats} == {"Q8_0", "F16"}
    assert remote.doubts == ()
    (link,) = remote.links
    assert 0 < link.latency_s.value < 0.1
    assert link.bytes_per_s.value > 1e6
    calibrate(machine, tell=told.append, folder=tmp_path, plan=reduce(plan_probes((1,), formats=("Q8_0",), scale=0.25)))
    both = find_ceilings(machine, [endpoint], folder=tmp_path)
    assert both is not None
    spec = read_model(write_model(tmp_path / "model.gguf", small("Q8_0")))
    for layers, devices in ((0, {"CPU"}), (1, {"CPU", "RPC0"}), (-1, {"RPC0"})):
        config = RunConfig(n_gpu_layers=layers, ctx_size=512, threads=1, threads_batch=1)
        timer = Predictor(both).open_timer(spec, config)
        assert {*timer.layout.layers, timer.layout.output_device} == devices
        assert Predictor(both).predict(spec, config, Workload(name="w", prompt_tokens=64, output_tokens=8)).tpot.value > 0


@pytest.mark.rpc
def test_a_server_that_does_not_answer_is_told_and_nothing_is_kept(machine: HardwareProfile, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"127\.0\.0\.1:9"):
        calibrate_server(machine, "127.0.0.1:9", tell=lambda _: None, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
