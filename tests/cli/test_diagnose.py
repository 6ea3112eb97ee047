"""`rooftune diagnose`: findings as JSON and as text, and an exit code that does not blame anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.ceilings import make_ceilings
from tests.builders.gguf_files import GGMLQuantizationType, write_llama
from tests.rules.builders import make_host
from tuner.cli.main import run

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
    for words in ("Too few threads write the answer.", "DEC05", "--set threads=4", "should bring:", "80 % interval", "explain"):
        assert words in out


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
