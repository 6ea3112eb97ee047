"""`rooftune calibrate`: its JSON and tables, what it keeps, its errors and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.ceilings import make_ceilings
from tests.builders.situations import make_machine
from tuner.calibration import keep
from tuner.cli.main import run
from tuner.errors import InterruptedRunError, NothingFeasibleError
from tuner.hardware import BuildFacts, HardwareProfile
from tuner.roofline.ceilings import Ceilings
from tuner.session import calibrating

MACHINE = make_machine()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and a machine with a llama.cpp."""
    import msgspec

    build = BuildFacts(llama_cpp_version="1.2.3")
    machine = msgspec.structs.replace(MACHINE, build=build, fingerprint="abc")
    monkeypatch.setattr(calibrating, "find_folder", lambda: tmp_path)
    use(monkeypatch, profile=lambda: machine)
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, **defaults: Any) -> None:
    """What calibrate_machine asks when nobody tells it otherwise."""
    known = calibrating.calibrate_machine.__kwdefaults__
    monkeypatch.setattr(calibrating.calibrate_machine, "__kwdefaults__", {**known, **defaults})


def make(spread: float = 0.02) -> Ceilings:
    import msgspec

    return msgspec.structs.replace(make_ceilings(spread=spread), machine="abc", llama_cpp="1.2.3")


def measure_into(calls: list[str]) -> Any:
    def measure(machine: HardwareProfile, *, tell: Any, stop: Any, folder: Path) -> Ceilings:
        calls.append(machine.fingerprint)
        tell("1 of 1: something")
        made = make()
        keep(folder, made)
        return made

    return measure


def test_it_measures_once_and_then_shows_what_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    use(monkeypatch, measure=measure_into(calls))
    assert run(["calibrate", "--json"]) == 0
    first = capsys.readouterr()
    assert json.loads(first.out)["schema"] == "rooftune-ceilings/2"
    assert "1 of 1" in first.err
    assert run(["calibrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(first.out)
    assert calls == ["abc"]


def test_force_measures_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    use(monkeypatch, measure=measure_into(calls))
    assert [run(["calibrate", "--json", "--force"]) for _ in range(2)] == [0, 0]
    assert calls == ["abc", "abc"]


def test_a_damaged_file_is_told_and_measured_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder, make()).write_bytes(b"{")
    calls: list[str] = []
    use(monkeypatch, measure=measure_into(calls))
    assert run(["calibrate"]) == 0
    assert "cannot be read" in capsys.readouterr().err
    assert calls == ["abc"]


def test_the_tables_name_units_and_spreads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(folder, make())
    assert run(["calibrate"]) == 0
    shown = capsys.readouterr().out
    for part in ("CPU", "Q4_K", "GB/s ± 2%", "Gop/s", "head size", "q8_0/q8_0", "each layer", " ms"):
        assert part in shown


def test_no_llama_cpp_is_an_error_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import msgspec

    broken = msgspec.structs.replace(MACHINE, build=BuildFacts(importable=False, import_error="libgomp is missing"))
    use(monkeypatch, profile=lambda: broken)
    assert run(["calibrate"]) == 3
    captured = capsys.readouterr()
    assert "libgomp is missing" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code"), [(InterruptedRunError("Stopped on request."), 130), (NothingFeasibleError("Nothing."), 4)]
)
def test_errors_become_exit_codes_and_print_nothing(
    error: Exception, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: Any, **__: Any) -> Ceilings:
        raise error

    use(monkeypatch, measure=measure)
    assert run(["calibrate", "--json"]) == code
    assert capsys.readouterr().out == ""


def test_unknown_options_are_a_usage_error() -> None:
    assert run(["calibrate", "--fast"]) == 2


def test_servers_are_measured_once_and_shown_as_devices(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each keeps figures of its own; their devices are numbered as llama.cpp does, with the way to them."""
    import msgspec

    calls: list[str] = []

    def measure_server(machine: HardwareProfile, server: str, *, tell: Any, stop: Any, folder: Path) -> Ceilings:
        calls.append(server)
        both = make_ceilings(devices=("CPU", "RPC0"))
        remote = {name: tuple(each for each in getattr(both, name) if each.device == "RPC0") for name in ROWS}
        made = msgspec.structs.replace(both, machine=f"abc+{server}", llama_cpp="1.2.3", **remote)
        keep(folder, made)
        return made

    keep(folder, make())
    use(monkeypatch, measure_server=measure_server)
    for _ in range(2):
        assert run(["calibrate", "--json", "--rpc", "a:1, b:2"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each["device"] for each in found["devices"]] == ["CPU", "RPC0", "RPC1"]
        assert {each["device"] for each in found["links"]} == {"RPC0", "RPC1"}
    assert calls == ["a:1", "b:2"]
    assert run(["calibrate", "--rpc", "a:1"]) == 0
    shown = capsys.readouterr().out
    assert "RPC0" in shown
    assert "each crossing" in shown


ROWS = ("devices", "formats", "attention", "fixed", "links")


def test_an_endpoint_that_is_none_is_a_usage_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "--rpc", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
