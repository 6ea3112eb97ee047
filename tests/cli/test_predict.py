"""`rooftune predict`: its JSON, its tables, its errors. Every number says how it was come by."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders.ceilings import BANDWIDTH, COMPUTE, make_ceilings
from tests.builders.gguf_files import GGMLQuantizationType, write_llama
from tests.study.fakes import PHASE
from tuner.cli.commands._forecast import FAR_BELOW, name_delay, pick_worthwhile, tell_phase, tell_users
from tuner.cli.main import run
from tuner.hardware import HardwareProfile
from tuner.report.record import Side
from tuner.roofline.ceilings import Ceilings
from tuner.roofline.curves import SlotPoint
from tuner.roofline.record import Estimate, Resource

METRICS = ("ttft_ms", "tpot_ms", "latency_ms", "throughput_tps", "throughput_total_tps")
SHEET = ("--machine", "rtx-4090")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "small.gguf", kind=GGMLQuantizationType.Q8_0, n_layer=4)


@pytest.fixture
def _calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of round numbers is what was calibrated."""
    import tuner.calibration

    def find(_machine: HardwareProfile, _llama_cpp: str) -> Ceilings:
        return make_ceilings()

    monkeypatch.setattr(tuner.calibration, "find_ceilings", find, raising=False)
    monkeypatch.setattr(tuner.calibration, "calibrate", None, raising=False)


@pytest.fixture
def _uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    import tuner.calibration

    def find(_machine: HardwareProfile, _llama_cpp: str) -> None:
        return None

    monkeypatch.setattr(tuner.calibration, "find_ceilings", find, raising=False)
    monkeypatch.setattr(tuner.calibration, "calibrate", None, raising=False)


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run(["predict", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("_calibrated")
def test_json_is_a_list_of_objects_shaped_like_a_measured_side(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same keys as `best` of tune, with source, what binds each phase, and where the figures come from."""
    (found,) = ask(capsys, model)
    assert set(Side.__struct_fields__) <= set(found)
    assert (found["source"], found["basis"]) == ("predicted", "predicted")
    assert set(found["bound"]) == {"prefill", "decode"}
    assert found["config"]["model"] == str(model)
    assert found["model"]["quant"] == "Q8_0"


@pytest.mark.usefixtures("_calibrated")
def test_every_predicted_number_carries_method_bandwidth_context_and_error_band(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them an estimate cannot be checked, and nobody believes it."""
    (found,) = ask(capsys, model)
    for metric in METRICS:
        low, high = found["intervals"][metric]
        assert 0 < low < found[metric] < high
    assert found["interval"] == 0.8
    assert found["method"]["source"] == "calibrated"
    assert found["method"]["devices"] == [
        {"device": "CPU", "bandwidth_bytes_per_s": BANDWIDTH, "compute_ops_per_s": COMPUTE, "ridge_ops_per_byte": 10.0}
    ]
    assert found["workload"]["depth_tokens"] == 2048
    assert found["config"]["ctx_size"] > 2048
    assert all(low <= each["tpot_ms"] <= high for each in found["depths"] for low, high in [each["interval_ms"]])
    assert all(low <= each["throughput_tps"] <= high for each in found["slots"] for low, high in [each["interval_tps"]])


@pytest.mark.usefixtures("_calibrated")
def test_for_people_every_table_is_marked_predicted_and_has_intervals(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for the sentences: what binds, the roofs, the context that memory is told for."""
    assert run(["predict", str(model)]) == 0
    heard = capsys.readouterr()
    text = " ".join(heard.out.split())
    assert heard.err == ""
    assert text.count("80 % interval") == 3
    assert "measured" not in text.replace("operations a second at best (measured)", "")
    for said in ("TTFT, 512 tokens @ depth 2048", "of the time, predicted", "CPU: reads 9.31 GiB", "tokens of context"):
        assert said in text


def test_a_data_sheet_s_figures_are_marked_assumed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = ask(capsys, model, *SHEET)
    assert (found["source"], found["basis"], found["method"]["source"]) == ("predicted", "assumed", "data sheet")
    assert run(["predict", str(model), *SHEET]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "assumed from the data sheet of NVIDIA GeForce RTX 4090" in text
    assert "predicted" not in text


def test_servers_take_layers_and_their_figures_are_shown(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their calibration is asked for with the machine's; what n_gpu_layers leaves stays here."""
    import tuner.calibration

    asked: list[tuple[str, ...]] = []

    def find(_machine: HardwareProfile, servers: tuple[str, ...]) -> Ceilings:
        asked.append(servers)
        return make_ceilings(devices=("CPU", "RPC0"))

    monkeypatch.setattr(tuner.calibration, "find_ceilings", find)
    (found,) = ask(capsys, model, "--rpc", "a:1", "--set", "n_gpu_layers=2")
    assert asked == [("a:1",)]
    assert [each["device"] for each in found["method"]["devices"]] == ["CPU", "RPC0"]
    assert found["config"]["n_gpu_layers"] == 2
    assert found["decode"]["shares"]["link"] > 0


def test_several_files_make_one_table_best_first(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the goal; what a folder holds beside models is passed over on stderr."""
    write_llama(model.with_name("large.gguf"), kind=GGMLQuantizationType.F16, n_layer=4, n_ff=2048)
    model.with_name("broken.gguf").write_bytes(b"GGUF")
    assert run(["predict", str(model.parent), "--objective", "tpot", *SHEET]) == 0
    heard = capsys.readouterr()
    assert "best tpot first" in " ".join(heard.out.split())
    assert heard.out.index("small") < heard.out.index("large")
    assert heard.err.startswith("note: passed over broken.gguf: ")


@pytest.mark.usefixtures("_uncalibrated")
def test_without_a_calibration_and_without_leave_to_make_one_it_ends_with_4(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", str(model), "--no-calibrate"]) == 4
    heard = capsys.readouterr()
    assert heard.out == ""
    assert heard.err.count("\n") == 1
    assert "not calibrated" in heard.err


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("missing.gguf", None, 3),
        ("empty.gguf", b"", 3),
        ("text.gguf", b"hello, this is no model", 3),
        ("cut.gguf", b"GGUF\x03", 3),
    ],
)
def test_an_unreadable_file_ends_with_3(
    name: str, content: bytes | None, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert run(["predict", str(tmp_path / name), *SHEET]) == code
    heard = capsys.readouterr()
    assert (heard.out, heard.err.count("\n")) == ("", 1)


def test_an_embedding_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_llama(tmp_path / "embedder.gguf", architecture="bert")
    assert run(["predict", str(path), *SHEET]) == 3
    assert "decodes nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "predict takes MODEL"),
        (("--machine", "rtx-9999"), 2, "no machine"),
        (("--machine", "nowhere.yaml"), 3, "Cannot read the machine"),
        (("--objective", "beauty"), 2, "no objective"),
        (("--set", "threads=many"), 2, "threads"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    arguments: tuple[str, ...], code: int, said: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(model)] if arguments else []
    assert run(["predict", *named, *(() if "--machine" in arguments else SHEET), *arguments]) == code
    heard = capsys.readouterr()
    assert said in heard.err
    assert heard.err.count("\n") == 1


def test_neither_the_engine_nor_the_search_nor_the_screen_is_imported(model: Path) -> None:
    """A prediction is arithmetic."""
    script = (
        "import sys; from tuner.cli.main import run; code = run(sys.argv[1:]); "
        "sys.stderr.write(' '.join(name for name in ('llama_cpp', 'optuna', 'textual') if name in sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "predict", str(model), *SHEET], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("bound", ["compute", "memory bandwidth", "fixed overhead"])
@pytest.mark.parametrize("reached", [0.05, 0.9])
def test_hardware_is_blamed_only_where_its_limit_is_near(bound: Resource, reached: float) -> None:
    """Far below a roof it cannot be what holds a phase up; what layers cost by themselves has no roof."""
    phase = msgspec.structs.replace(PHASE, bound=bound, shares={bound: 1.0}, reached=reached, attention_share=0.7)
    said = tell_phase("Writing the answer (decode)", phase, "predicted")
    is_roof = bound != "fixed overhead"
    assert ("lost in llama.cpp's work on the history" in said) == (is_roof and reached < FAR_BELOW)
    assert ("mostly waits for" in said) == (not is_roof or reached >= FAR_BELOW)
    assert "predicted)" in said
    assert (name_delay(bound, reached, 0.7) == "work on the history") == (is_roof and reached < FAR_BELOW)


def make_slots(*rates: float, history_share: float = 0.0) -> list[SlotPoint]:
    """1, 2, 4, … slots that bring so many tokens per second together."""
    return [
        SlotPoint(
            slots=2**n,
            tpot=Estimate(value=2**n * 1e3 / rate, low=1, high=2),
            throughput=Estimate(value=rate, low=1, high=2),
            bound="memory bandwidth",
            reached=0.9,
            history_share=history_share,
        )
        for n, rate in enumerate(rates)
    ]


@pytest.mark.parametrize(
    ("rates", "worth", "said"),
    [
        ((29, 31, 32, 33), 1, "hardly more tokens together: 29 tok/s with 1 slot, 33 tok/s with 8"),
        ((29, 50, 80, 82), 4, "Up to 4 slots more users bring more tokens together (80 tok/s"),
        ((29, 50, 80, 120), 8, "at every number shown, up to 8 slots (120 tok/s"),
    ],
)
def test_what_is_said_of_users_is_what_the_table_shows(rates: tuple[float, ...], worth: int, said: str) -> None:
    """Whatever binds the weights alone."""
    slots = make_slots(*rates)
    assert pick_worthwhile(slots).slots == worth
    for knee in (None, 1, 7):
        assert said in tell_users(slots, knee)


@pytest.mark.parametrize(("share", "knee", "told"), [(0.84, 7, True), (0.84, None, True), (0.84, 1, False), (0.2, 7, False)])
def test_the_history_is_named_where_it_keeps_users_from_sharing(share: float, knee: int | None, told: bool) -> None:
    assert ("its own history" in tell_users(make_slots(29, 31, history_share=share), knee)) == told


@pytest.mark.usefixtures("_calibrated")
def test_sentence_and_table_name_the_same_delay(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The row for as many slots as were predicted is the prediction; JSON has both out of one source."""
    (found,) = ask(capsys, model)
    row, decode = found["slots"][0], found["decode"]
    assert (row["bound"], row["reached"]) == (decode["bound"], pytest.approx(decode["reached"]))
    assert row["history_share"] == pytest.approx(decode["attention_share"])
    assert found["worthwhile_slots"] in [each["slots"] for each in found["slots"]]
    assert run(["predict", str(model)]) == 0
    assert "what the model was trained for" in capsys.readouterr().out
