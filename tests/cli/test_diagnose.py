"""`rooftune diagnose`: findings as JSON and as text, and an exit code that does not blame anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.ceilings import make_ceilings
from tests.builders.gguf_files import GGMLQuantizationType, write_llama
from tests.rules.builders import make_host
from tuner.cli.commands._findings import render_finding
from tuner.cli.main import run
from tuner.rules.base import Evidence, Finding

KEYS = {"code", "title", "severity", "evidence", "change", "remedy", "expected", "costs", "measured"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "small.gguf", kind=GGMLQuantizationType.Q8_0, n_layer=4)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy machine of four cores and round numbers."""
    import tuner.calibration
    import tuner.session.diagnosing as room

    monkeypatch.setattr(tuner.calibration, "find_ceilings", lambda *_: make_ceilings(), raising=False)
    monkeypatch.setattr(tuner.calibration, "calibrate", None, raising=False)
    defaults = room.diagnose.__kwdefaults__
    monkeypatch.setitem(defaults, "profile", lambda: make_host(cores=4, logical=4))


def diagnose(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["diagnose", *arguments])
    heard = capsys.readouterr()
    return code, heard.out, heard.err


def test_nothing_to_fix_is_no_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = diagnose(capsys, str(model), "--workload", "quick")
    assert code == 0
    assert "Nothing to fix." in out
    assert "predicted: first token" in out
    assert err == ""


def test_json_of_nothing_is_an_empty_list(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = diagnose(capsys, str(model), "--workload", "quick", "--json")
    assert (code, json.loads(out)) == (0, [])


def test_json_holds_each_finding_whole(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = diagnose(capsys, str(model), "--set", "threads=1", "--set", "threads_batch=1", "--json")
    findings = json.loads(out)
    assert code == 0
    assert {"PRE03", "DEC05"} <= {each["code"] for each in findings}
    assert all(set(each) == KEYS for each in findings)
    (threads,) = [each for each in findings if each["code"] == "DEC05"]
    assert threads["change"] == {"threads": 4}
    assert threads["measured"] is None
    assert set(threads["expected"]) == {"metric", "ratio", "low", "high", "basis"}
    assert all(each["basis"] in {"measured", "predicted", "assumed"} for each in threads["evidence"])


def test_text_says_what_to_do_and_what_it_should_bring(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = diagnose(capsys, str(model), "--set", "threads=1", "--set", "threads_batch=1")
    assert code == 0
    text = " ".join(out.split())
    for words in ("Too few threads write the answer.", "DEC05", "--set threads=4", "should bring:", "80 % interval", "explain"):
        assert words in text
    assert "in llama-server: --threads 4" in text


def test_a_symptom_starts_from_what_is_felt(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--set", "threads=1", "--set", "threads_batch=1", "--json")
    _, out, _ = diagnose(capsys, str(model), *settings, "--symptom", "slow-output")
    codes = {each["code"] for each in json.loads(out)}
    assert "DEC05" in codes
    assert "PRE02" not in codes


def test_a_promise_gives_the_longest_prompt(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = diagnose(capsys, str(model), "--promise-ttft", "1ms", "--json")
    (promise,) = [each for each in json.loads(out) if each["code"] == "PRE08"]
    assert "longest prompt in time" in {each["what"] for each in promise["evidence"]}


def test_a_model_that_writes_no_text_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_llama(tmp_path / "embedder.gguf", architecture="bert")
    code, out, err = diagnose(capsys, str(path))
    assert (code, out) == (3, "")
    assert "cannot be tuned" in err
    assert err.count("\n") == 1


def test_remote_devices_projector_and_draft_are_taken(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a note for what that means; nothing is connected to until something is tried."""
    code, out, err = diagnose(
        capsys, str(model), "--rpc", "10.0.0.5:50052", "--draft", str(model), "--symptom", "out-of-memory", "--json"
    )
    assert code == 0
    assert "draft model with its cache, at least" in {each["what"] for found in json.loads(out) for each in found["evidence"]}
    assert "no figures of a device" in err
    assert diagnose(capsys, str(model), "--rpc", "nonsense")[0] == 2
    assert diagnose(capsys, str(model), "--mmproj", str(model))[0] == 3


def test_the_binding_s_own_settings_are_diagnosed_where_it_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`Llama()` writes with half of the four processors, and without flash attention."""
    names = ("llama-cpp-python", "llama-server")
    binding, server = (" ".join(diagnose(capsys, str(model), "--front-end", name)[1].split()) for name in names)
    assert ("threads 2, threads_batch 4" in binding, "flash_attn off" in binding) == (True, True)
    assert ("threads 4, threads_batch 4" in server, "flash_attn on" in server) == (True, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "No model was given"),
        (("--demo", "x.gguf"), 2, "--demo stands in place"),
        (("nowhere.gguf",), 3, "nowhere.gguf"),
        (("{model}", "--symptom", "bad-mood"), 2, "bad-mood"),
        (("{model}", "--promise-ttft", "soon"), 2, "duration"),
        (("{model}", "--set", "warp=9"), 2, "warp"),
        (("{model}", "--set", "cache_type_v=q8_0", "--set", "flash_attn=off"), 3, "flash attention"),
    ],
)
def test_mistakes_are_told_in_one_line(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    got, out, err = diagnose(capsys, *(each.format(model=model) for each in arguments))
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_gpu_layers": 17}, "in llama-server: --n-gpu-layers 17"),
        ({"swa_full": False}, "in llama-server: no --swa-full"),
        ({"cache_type_k": "q8_0", "flash_attn": "on"}, "in llama-server: --cache-type-k q8_0 --flash-attn on"),
        ({"model": "/my models/a.gguf"}, "in llama-server: --model '/my models/a.gguf'"),
    ],
)
def test_a_change_is_written_as_llama_server_takes_it(change: dict[str, object], said: str) -> None:
    finding = Finding(
        code="DEC05",
        title="Something is slow.",
        severity="slows",
        evidence=(Evidence(what="fact", value="yes", basis="measured"),),
        change=change,
        remedy="Change it.",
    )
    assert any(said in str(part) for part in render_finding(finding))
