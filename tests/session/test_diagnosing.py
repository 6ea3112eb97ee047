"""From a request to a situation, and from findings to what their changes brought."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tests.builders.gguf_files import GGMLQuantizationType, write_llama
from tests.rules.builders import make_host
from tuner.errors import BadInputError, NothingFeasibleError, UsageError
from tuner.hardware import HardwareProfile
from tuner.measure.stop import Stop
from tuner.model import read_model
from tuner.roofline.ceilings import Ceilings
from tuner.session.diagnosing import (
    DiagnoseRequest,
    Diagnosis,
    check_request,
    diagnose,
    form_situation,
)
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
        predict = open_predictor(make_ceilings())
        asked = check_request(DiagnoseRequest(models=(str(model),)))
        situation = form_situation(asked, make_host(), make_ceilings())
        strange = msgspec.structs.replace(asked.spec, n_layer=None, layers=())
        assert predict(strange, situation.config, situation.workload) is None


class TestDiagnosis:
    def test_without_a_calibration_a_note_says_so_and_facts_still_count(self, model: Path) -> None:
        diagnosis = run(DiagnoseRequest(models=(str(model),), settings=("threads=8",)))
        assert "DEC04" in [finding.code for finding in diagnosis.findings]
        assert diagnosis.prediction is None
        assert any("not calibrated" in note for note in diagnosis.notes)

    def test_with_one_gains_are_predicted(self, model: Path) -> None:
        asked = DiagnoseRequest(models=(str(model),), settings=("threads=1", "threads_batch=1"), workload="quick")
        diagnosis = run(asked, cores=4, find=lambda _: make_ceilings())
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
