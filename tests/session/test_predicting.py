"""From plain values to forecasts: what is read, what is refused, in which order they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tests.builders.gguf_files import GGMLQuantizationType, write_llama
from tests.builders.situations import make_machine
from tuner.errors import BadInputError, NothingFeasibleError, UsageError
from tuner.hardware import HardwareProfile
from tuner.roofline.ceilings import Ceilings, join_ceilings
from tuner.roofline.sheet import list_sheets
from tuner.session.predicting import Forecasts, PredictRequest, find_stored_figures, predict_models


def refuse(machine: HardwareProfile) -> Ceilings:
    raise AssertionError("figures were asked for before the request was checked")


def run(*models: object, machine: HardwareProfile | None = None, **more: object) -> Forecasts:
    request = PredictRequest(models=tuple(map(str, models)), **{"workload": "quick", **more})
    return predict_models(request, find_figures=lambda _: make_ceilings(), profile=lambda: machine or make_machine())


@pytest.fixture
def formats(tmp_path: Path) -> Path:
    """One model as F16, Q8_0 and Q4_0."""
    folder = tmp_path / "formats"
    folder.mkdir()
    for kind in ("F16", "Q8_0", "Q4_0"):
        write_llama(folder / f"{kind}.gguf", kind=GGMLQuantizationType[kind], n_layer=4, n_ff=1024)
    return folder


def names(found: Forecasts) -> list[str]:
    return [Path(item.model.path).stem for item in found.items]


def test_a_folder_is_ordered_by_the_goal(formats: Path) -> None:
    """Where bytes decide, the smallest format writes fastest."""
    assert names(run(formats, objective="tpot")) == ["Q4_0", "Q8_0", "F16"]
    assert names(run(formats, objective="throughput")) == ["Q4_0", "Q8_0", "F16"]


def test_the_first_goal_orders_and_equals_come_by_name(formats: Path) -> None:
    """All have the same trained context, and all of it fits."""
    found = run(formats, objective="context,tpot")
    assert found.goal == "context"
    assert names(found) == ["F16", "Q4_0", "Q8_0"]


def test_what_does_not_fit_comes_last_with_its_sum(formats: Path) -> None:
    """Room for the smallest only, a twentieth being left alone."""
    needs = [item.prediction.memory_bytes or 0 for item in run(formats, objective="tpot").items]
    found = run(formats, objective="tpot", machine=make_machine(available_bytes=int((needs[0] + needs[1]) / 2 / 0.95)))
    assert names(found) == ["Q4_0", "Q8_0", "F16"]
    assert [item.misfit is None for item in found.items] == [True, False, False]
    assert "main memory" in (found.items[-1].misfit or "")


def test_a_goal_does_not_lift_what_does_not_fit(formats: Path) -> None:
    """By context all formats are equal and come by name; F16 does not fit here."""
    needs = sorted(item.prediction.memory_bytes or 0 for item in run(formats).items)
    found = run(formats, objective="context", machine=make_machine(available_bytes=int((needs[1] + needs[2]) / 2 / 0.95)))
    assert names(found)[-1] == "F16"


def test_different_models_may_stand_in_one_table(formats: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf", architecture="qwen2", n_layer=3)
    assert len(run(formats, other).items) == 4


def test_settings_and_workload_are_what_the_prediction_is_for(formats: Path) -> None:
    """The context holds the workload; --set wins over the default."""
    (item,) = run(formats / "Q8_0.gguf", settings=("threads=2", "ubatch_size=64", "cache_type_k=q8_0")).items
    config = item.prediction.config
    assert (config.threads, config.ubatch_size, config.cache_type_k) == (2, 64, "q8_0")
    assert config.ctx_size >= item.prediction.workload.tokens_per_slot


def test_a_forecast_holds_curves_knee_and_memory(formats: Path) -> None:
    (item,) = run(formats / "Q8_0.gguf").items
    assert item.prediction.memory_bytes == item.footprint.total_bytes
    assert [each.slots for each in item.slots] == [1, 2, 4, 8, 16, 32, 64]
    assert item.depths[-1].depth_tokens == 4096
    assert item.batch_knee is not None
    assert item.largest_context == 4096


def test_in_a_folder_what_is_no_writing_model_is_passed_over_with_its_reason(formats: Path) -> None:
    (formats / "broken.gguf").write_bytes(b"GGUF and nothing else")
    write_llama(formats / "embedder.gguf", architecture="bert")
    found = run(formats)
    assert len(found.items) == 3
    assert sorted(each.partition(":")[0] for each in found.passed_over) == ["broken.gguf", "embedder.gguf"]


@pytest.mark.parametrize("architecture", ["bert", "gemma-embedding", "t5"])
def test_a_model_that_writes_no_text_is_refused(architecture: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "embedder.gguf", architecture=architecture)
    with pytest.raises(BadInputError, match="cannot be tuned"):
        run(path)


@pytest.mark.parametrize(
    ("models", "more", "error"),
    [
        ((), {}, UsageError),
        (("x.gguf",), {"demo": True}, UsageError),
        (("/nowhere.gguf",), {}, BadInputError),
        (("a\0b.gguf",), {}, BadInputError),
        (("x.gguf",), {"objective": "beauty"}, UsageError),
        (("x.gguf",), {"workload": "nonsense"}, UsageError),
        (("x.gguf",), {"settings": ("warp=9",)}, UsageError),
    ],
    ids=str,
)
def test_a_request_that_means_nothing_is_refused_before_figures_are_asked_for(
    models: tuple[str, ...], more: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        predict_models(PredictRequest(models=models, **more), find_figures=refuse, profile=make_machine)


def test_a_folder_without_writing_models_is_refused(tmp_path: Path) -> None:
    write_llama(tmp_path / "embedder.gguf", architecture="bert")
    with pytest.raises(BadInputError, match="None of these files"):
        run(tmp_path)


@pytest.mark.parametrize("name", list_sheets())
def test_every_shipped_machine_predicts(name: str, formats: Path) -> None:
    """All figures are assumed, and the machine at hand is not asked."""

    def fail() -> HardwareProfile:
        raise AssertionError("the machine at hand does not matter")

    request = PredictRequest(models=(str(formats / "Q8_0.gguf"),), machine=name)
    found = predict_models(request, find_figures=refuse, profile=fail)
    prediction = found.items[0].prediction
    assert (prediction.source, prediction.machine, prediction.ttft.basis) == ("data sheet", name, "assumed")
    assert 0 < prediction.tpot.low < prediction.tpot.value


def test_a_device_and_its_host_make_partial_offload_predictable(formats: Path) -> None:
    """Alone, a device has no figures for what stays in main memory."""
    model, half = formats / "Q8_0.gguf", {"settings": ("n_gpu_layers=2",)}
    with pytest.raises(BadInputError, match="no figures for the device CPU"):
        predict_models(PredictRequest(models=(str(model),), machine="rtx-4090", **half), find_figures=refuse)
    both = PredictRequest(models=(str(model),), machine="rtx-4090+ryzen-9-7950x", **half)
    assert predict_models(both, find_figures=refuse).items[0].prediction.config.n_gpu_layers == 2


def test_a_model_larger_than_the_data_sheet_s_memory_does_not_fit(formats: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "tiny.yaml"
    sheet.write_text("name: tiny\nkind: gpu\nbackend: cuda\nbandwidth_gbs: 100\nfp16_tflops: 10\nmemory_gib: 0.0001\n")
    found = predict_models(PredictRequest(models=(str(formats / "Q8_0.gguf"),), machine=str(sheet)), find_figures=refuse)
    assert "CUDA0" in (found.items[0].misfit or "")
    assert found.items[0].largest_context == 0


def make_remote() -> Ceilings:
    """What is kept of a server: its device alone."""
    both = make_ceilings(devices=("CPU", "RPC0"))
    rows = {
        name: tuple(each for each in getattr(both, name) if each.device == "RPC0")
        for name in ("devices", "formats", "attention", "fixed")
    }
    return msgspec.structs.replace(both, **rows)


def test_servers_devices_take_layers_and_what_is_left_stays_here(formats: Path) -> None:
    """Two servers before the machine's own device; n_gpu_layers shares out between them."""

    def predict(layers: int) -> Forecasts:
        request = PredictRequest(
            models=(str(formats / "Q8_0.gguf"),), workload="quick", rpc=("a:1", "b:2"), settings=(f"n_gpu_layers={layers}",)
        )
        figures = join_ceilings(make_ceilings(), (make_remote(), make_remote()))
        return predict_models(request, find_figures=lambda _: figures, profile=make_machine)

    none, some, everything = (predict(layers).items[0] for layers in (0, 2, 5))
    assert {part.device for part in none.footprint.parts if part.n_bytes} == {"CPU"}
    assert {part.device for part in some.footprint.parts if part.n_bytes} == {"CPU", "RPC0", "RPC1"}
    assert everything.prediction.tpot.value < some.prediction.tpot.value
    assert none.prediction.decode.shares["link"] == 0 < some.prediction.decode.shares["link"]


@pytest.mark.parametrize(
    ("more", "said"), [({"rpc": ("nowhere",)}, "nowhere"), ({"rpc": ("a:1",), "machine": "rtx-4090"}, "--rpc")]
)
def test_servers_that_cannot_be_meant_are_refused(formats: Path, more: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict_models(PredictRequest(models=(str(formats),), **more), find_figures=refuse, profile=make_machine)


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ceilings | None], list[str]]:
    """What is stored; the list tells whether something was measured."""
    import tuner.calibration

    def store(found: Ceilings | None) -> list[str]:
        measured: list[str] = []

        def calibrate(machine: HardwareProfile, **_: object) -> Ceilings:
            measured.append(machine.fingerprint)
            return make_ceilings()

        def calibrate_server(_machine: HardwareProfile, server: str, **_: object) -> Ceilings:
            measured.append(server)
            return make_remote()

        monkeypatch.setattr(tuner.calibration, "find_ceilings", lambda _, servers: None if servers else found)
        monkeypatch.setattr(tuner.calibration, "find_server", lambda _, server: make_remote() if server == "known:1" else None)
        monkeypatch.setattr(tuner.calibration, "calibrate", calibrate)
        monkeypatch.setattr(tuner.calibration, "calibrate_server", calibrate_server)
        return measured

    return store


def test_a_stored_calibration_is_used_as_it_is(calibration: Callable[[Ceilings | None], list[str]]) -> None:
    measured, stored = calibration(make_ceilings(doubts=("stored",))), make_ceilings(doubts=("stored",))
    assert find_stored_figures(make_machine(), may_calibrate=True, say=lambda _: None) == stored
    assert measured == []


def test_without_one_the_machine_is_calibrated_first_and_that_is_said(
    calibration: Callable[[Ceilings | None], list[str]],
) -> None:
    said: list[str] = []
    measured = calibration(None)
    assert find_stored_figures(make_machine(), may_calibrate=True, say=said.append) == make_ceilings()
    assert (len(measured), "about a minute" in said[0]) == (1, True)


def test_where_it_may_not_be_calibrated_nothing_is_predicted(calibration: Callable[[Ceilings | None], list[str]]) -> None:
    measured = calibration(None)
    with pytest.raises(NothingFeasibleError, match="not calibrated"):
        find_stored_figures(make_machine(), may_calibrate=False, say=lambda _: None)
    assert measured == []


def test_only_what_is_missing_of_servers_is_calibrated(calibration: Callable[[Ceilings | None], list[str]]) -> None:
    """The machine and one server are known, the other one is not."""
    measured, said = calibration(make_ceilings()), []
    found = find_stored_figures(make_machine(), may_calibrate=True, say=said.append, servers=("known:1", "new:2"))
    assert measured == ["new:2"]
    assert [each.device for each in found.devices] == ["CPU", "RPC0", "RPC1"]
    assert "new:2" in said[0]
