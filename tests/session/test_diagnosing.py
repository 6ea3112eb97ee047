"""From a request to a situation, and from findings to what their changes brought."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tests.builders.gguf_files import GGMLQuantizationType, write_facts, write_gguf, write_llama
from tests.memory.test_cache import GEMMA3_270M
from tests.rules.builders import make_host
from tuner.errors import BadInputError, NothingFeasibleError, UsageError
from tuner.hardware import HardwareProfile
from tuner.measure.stop import Stop
from tuner.memory import FrontEnd, kv_bytes
from tuner.model import read_model
from tuner.roofline.ceilings import Ceilings
from tuner.rules.base import Situation
from tuner.rules.checking import check_situation
from tuner.session.diagnosing import (
    DiagnoseRequest,
    Diagnosis,
    check_request,
    diagnose,
    form_situation,
)
from tuner.session.remote import add_remote_devices
from tuner.session.situation import find_siblings, open_predictor
from tuner.workload import PRESETS


def none_stored(machine: HardwareProfile) -> Ceilings:
    del machine
    raise NothingFeasibleError("not calibrated")


def run(asked: DiagnoseRequest, *, cores: int = 2, find=none_stored, **more) -> Diagnosis:
    host = make_host(cores=cores, logical=cores)
    given = {"tell": lambda _: None, "stop": Stop(), "find_figures": find, "profile": lambda: host}
    return diagnose(asked, **(given | more))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "small-q8_0.gguf", kind=GGMLQuantizationType.Q8_0, n_layer=4)


class TestRequest:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"symptom": "bad-mood"}, "slow-start, slow-output"),
            ({"workload": "nonsense"}, "chat, rag"),
            ({"settings": ("warp=9",)}, "no setting"),
            ({"engine": "abacus"}, "no engine"),
            ({"rpc": ("somewhere",)}, "no RPC server"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, model: Path, changes: dict[str, object], words: str) -> None:
        plain = DiagnoseRequest(models=(str(model),))
        with pytest.raises(UsageError, match=words):
            check_request(msgspec.structs.replace(plain, **changes))

    def test_a_promise_is_a_duration(self, model: Path) -> None:
        assert check_request(DiagnoseRequest(models=(str(model),), promise_ttft="2s")).promise_ms == 2000
        with pytest.raises(UsageError, match="--promise-ttft"):
            check_request(DiagnoseRequest(models=(str(model),), promise_ttft="soon"))

    def test_one_model_is_diagnosed_at_a_time(self, model: Path, tmp_path: Path) -> None:
        other = write_llama(tmp_path / "small-q4_0.gguf", kind=GGMLQuantizationType.Q4_0, n_layer=4)
        with pytest.raises(UsageError, match="one model file"):
            check_request(DiagnoseRequest(models=(str(model), str(other))))


class TestSiblings:
    def test_other_formats_beside_the_model_are_found_most_precise_first(self, model: Path) -> None:
        for name, kind in (("q4_0", GGMLQuantizationType.Q4_0), ("f16", GGMLQuantizationType.F16)):
            write_llama(model.with_name(f"small-{name}.gguf"), kind=kind, n_layer=4)
        found = find_siblings(read_model(model))
        assert [Path(each.path).name for each in found] == ["small-f16.gguf", "small-q4_0.gguf"]

    def test_other_models_copies_and_broken_files_are_not(self, model: Path) -> None:
        write_llama(model.with_name("deeper.gguf"), kind=GGMLQuantizationType.Q4_0, n_layer=5)
        shutil.copy(model, model.with_name("copy.gguf"))
        model.with_name("broken.gguf").write_bytes(b"GGUF\x03")
        assert find_siblings(read_model(model)) == ()


class TestSituation:
    def test_it_holds_the_baseline_with_what_the_user_set(self, model: Path) -> None:
        asked = check_request(DiagnoseRequest(models=(str(model),), settings=("threads=1",), workload="quick"))
        situation = form_situation(asked, make_host(), None)
        assert (situation.config.threads, situation.config.model) == (1, str(model))
        assert situation.workload == PRESETS["quick"]
        assert situation.predict(situation.model, situation.config, situation.workload) is None

    def test_predictions_come_from_the_ceilings(self, model: Path) -> None:
        asked = check_request(DiagnoseRequest(models=(str(model),), workload="quick"))
        situation = form_situation(asked, make_host(cores=2, logical=2), make_ceilings())
        prediction = situation.predict(situation.model, situation.config, situation.workload)
        assert prediction is not None
        assert prediction.source == "calibrated"

    def test_what_the_figures_do_not_cover_is_unknown(self, model: Path) -> None:
        predict = open_predictor(make_ceilings(), make_host())
        asked = check_request(DiagnoseRequest(models=(str(model),)))
        situation = form_situation(asked, make_host(), make_ceilings())
        strange = msgspec.structs.replace(asked.spec, n_layer=None, layers=())
        assert predict(strange, situation.config, situation.workload) is None


class TestRemoteDevices:
    """`--rpc` puts devices of other machines before this one's own."""

    def situation(self, model: Path, *settings: str) -> Situation:
        asked = check_request(
            DiagnoseRequest(models=(str(model),), rpc=("10.0.0.5:50052",), settings=settings, workload="quick")
        )
        return form_situation(asked, add_remote_devices(make_host(cores=2, logical=2), len(asked.rpc)), make_ceilings())

    def test_layers_go_there_and_nothing_is_predicted_for_them(self, model: Path) -> None:
        situation = self.situation(model)
        assert situation.config.n_gpu_layers != 0
        assert situation.predict(situation.model, situation.config, situation.workload) is None
        here = situation.config.replace(n_gpu_layers=0)
        assert situation.predict(situation.model, here, situation.workload) is not None

    def test_the_reader_is_told(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), rpc=("10.0.0.5:50052",), workload="quick")
        diagnosis = run(asked, find=lambda _: make_ceilings())
        assert [note for note in diagnosis.notes if "no figures of a device" in note]
        assert diagnosis.prediction is None

    def test_where_the_servers_are_calibrated_their_layers_are_predicted(self, model: Path) -> None:
        """And the break-even is told in place of a trial."""
        asked = DiagnoseRequest(models=(str(model),), rpc=("10.0.0.5:50052",), settings=("n_gpu_layers=2",), workload="quick")
        diagnosis = run(asked, find=lambda _: make_ceilings(devices=("CPU", "RPC0"), byte_s=1e-8))
        assert diagnosis.prediction is not None
        (finding,) = [each for each in diagnosis.findings if each.code == "DEC06"]
        assert finding.change == {"n_gpu_layers": 5}
        assert "layers from which the device pays" in {each.what for each in finding.evidence}
        assert not [note for note in diagnosis.notes if "no figures" in note]

    def test_without_any_calibration_the_note_names_the_servers_too(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), rpc=("10.0.0.5:50052",), workload="quick")
        assert any("calibrate --rpc" in note for note in run(asked).notes)

    def test_a_part_there_is_to_be_compared_with_none(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), rpc=("10.0.0.5:50052",), settings=("n_gpu_layers=2",), workload="quick")
        changes = {each.code: each.change for each in run(asked, find=lambda _: make_ceilings()).findings}
        assert changes["DEC06"] == {"n_gpu_layers": 0}


class TestFrontEnds:
    """The binding starts otherwise than the server, and that can be what is wrong."""

    def situation(self, path: Path, front_end: FrontEnd, *settings: str) -> Situation:
        asked = check_request(
            DiagnoseRequest(models=(str(path),), front_end=front_end, settings=settings, symptom="out-of-memory")
        )
        return form_situation(asked, make_host(cores=8, logical=16), None)

    def test_what_the_binding_sets_untold_is_the_point_in_question(self, model: Path) -> None:
        server, binding = (self.situation(model, each).config for each in ("llama-server", "llama-cpp-python"))
        assert (server.threads, server.threads_batch, server.flash_attn) == (8, 8, "on")
        assert (binding.threads, binding.threads_batch, binding.flash_attn) == (8, 16, "off")

    def test_what_is_set_wins(self, model: Path) -> None:
        binding = self.situation(model, "llama-cpp-python", "threads=3", "flash_attn=on").config
        assert (binding.threads, binding.threads_batch, binding.flash_attn) == (3, 16, "on")

    def test_whole_caches_of_sliding_windows_are_offered_to_be_dropped_with_their_cost(self, tmp_path: Path) -> None:
        """Gemma 3 270M at 4096 tokens: 75,497,472 bytes in the binding, 28,311,552 with windows only."""
        path = write_facts(tmp_path / "gemma.gguf", "gemma3", GEMMA3_270M)
        sizes = {}
        for front_end in ("llama-server", "llama-cpp-python"):
            situation = self.situation(path, front_end, "ctx_size=4096")
            sizes[front_end] = kv_bytes(situation.model, situation.config)
        assert sizes == {"llama-server": 28_311_552, "llama-cpp-python": 75_497_472}
        (finding,) = [each for each in check_situation(self.situation(path, "llama-cpp-python")) if each.code == "MEM04"]
        assert finding.change == {"swa_full": False}
        assert "cannot be used again" in finding.costs


class TestWhatLiesBeside:
    """Projector and draft model count in memory where they are named."""

    @pytest.fixture
    def projector(self, model: Path) -> Path:
        tensors = [("v.patch_embd.weight", (1024, 1024), GGMLQuantizationType.F16)]
        return write_gguf(model.with_name("mmproj-small.gguf"), {"general.architecture": "clip"}, tensors)

    def test_a_projector_is_told_with_what_is_assumed_of_it(self, model: Path, projector: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), mmproj=str(projector), symptom="out-of-memory")
        diagnosis = run(asked)
        (finding,) = [each for each in diagnosis.findings if each.code == "MEM01"]
        assert {each.what: each.value for each in finding.evidence}["projector, with room for an input"] == 1024 * 1024 * 2
        assert any("projector" in note for note in diagnosis.notes)

    def test_a_draft_model_is_told_and_its_guesses_are_not(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), draft=str(model), symptom="out-of-memory")
        diagnosis = run(asked)
        (finding,) = [each for each in diagnosis.findings if each.code == "MEM01"]
        assert "draft model with its cache, at least" in {each.what for each in finding.evidence}
        assert any("without it" in note for note in diagnosis.notes)

    def test_a_projector_in_the_folder_is_mentioned_where_memory_is_the_matter(self, model: Path, projector: Path) -> None:
        plain, short = (DiagnoseRequest(models=(str(model),), symptom=each) for each in ("", "out-of-memory"))
        assert not any("--mmproj" in note for note in run(plain).notes)
        assert any(f"--mmproj {projector}" in note for note in run(short).notes)

    @pytest.mark.parametrize("name", ["mmproj", "draft"])
    def test_what_is_none_is_refused(self, model: Path, name: str) -> None:
        asked = DiagnoseRequest(models=(str(model),), **{name: str(model.with_name("nowhere.gguf"))})
        with pytest.raises(BadInputError, match="nowhere"):
            check_request(asked)


def test_who_asks_about_many_users_with_a_workload_of_one_is_told_so(model: Path) -> None:
    asked = DiagnoseRequest(models=(str(model),), symptom="many-users")
    assert any("--workload batch" in note for note in run(asked).notes)
    assert not any("--workload batch" in note for note in run(msgspec.structs.replace(asked, workload="batch")).notes)


class TestDiagnosis:
    def test_without_a_calibration_a_note_says_so_and_facts_still_count(self, model: Path) -> None:
        diagnosis = run(DiagnoseRequest(models=(str(model),), settings=("threads=8",)))
        assert "DEC04" in [finding.code for finding in diagnosis.findings]
        assert diagnosis.prediction is None
        assert any("not calibrated" in note for note in diagnosis.notes)

    def test_with_one_gains_are_predicted(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), settings=("threads=1", "threads_batch=1"), workload="quick")
        diagnosis = run(asked, cores=4, find=lambda _: make_ceilings(byte_s=1e-8))
        gains = {finding.code: finding.expected for finding in diagnosis.findings}
        assert gains["PRE03"].ratio > 1.5
        assert gains["DEC05"].basis == "predicted"
        assert diagnosis.notes == ()

    def test_a_promise_is_held_against_the_prediction(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), promise_ttft="1ms", symptom="slow-start")
        codes = [finding.code for finding in run(asked, find=lambda _: make_ceilings()).findings]
        assert "PRE08" in codes

    def test_all_is_well(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), workload="quick")
        diagnosis = run(asked, find=lambda _: make_ceilings())
        assert diagnosis.findings == ()

    def test_what_does_not_fit_is_not_tried(self, model: Path) -> None:
        """Or trying would drive the machine into swapping; the note shows the sum."""
        host = make_host(cores=2, logical=2, available_bytes=2**20)
        asked = DiagnoseRequest(models=(str(model),), engine="simulated", settings=("threads=8",), verify=True)
        diagnosis = run(asked, profile=lambda: host)
        assert diagnosis.measurement is None
        assert [note for note in diagnosis.notes if "nothing was tried" in note and "It needs" in note]

    @pytest.mark.parametrize("budget", ["60s"])
    def test_changes_are_tried_when_asked(self, budget: str) -> None:
        """On the pretended engine, whose many threads hinder each other."""
        asked = DiagnoseRequest(
            demo=True, engine="simulated", settings=("threads=16",), workload="quick", verify=True, budget=budget
        )
        diagnosis = run(asked)
        (finding,) = [each for each in diagnosis.findings if each.code == "DEC04"]
        assert finding.measured is not None
        assert finding.measured.low > 1.5
        assert diagnosis.measurement is not None
        assert diagnosis.measurement.config.threads == 16
