"""Everything that can be wrong with a request is found before a child is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.errors import BadInputError, RooftuneError, UsageError
from tuner.session.checking import check_budget, check_measure, check_servers, check_study, check_tune, read_models
from tuner.session.request import MeasureRequest, TuneRequest

WRONG: dict[str, dict[str, Any]] = {
    "no model": {"demo": False},
    "a model beside the demo": {"models": ("x.gguf",)},
    "a missing model": {"demo": False, "models": ("none.gguf",)},
    "an unknown objective": {"objective": "speed"},
    "a limit without a comparison": {"limits": ("tpot",)},
    "an unknown workload": {"workload": "chatty"},
    "a budget of nothing": {"budget": "0"},
    "a budget of a year": {"budget": "9000h"},
    "no trials": {"trials": 0},
    "a negative seed": {"seed": -1},
    "an unknown strategy": {"strategy": "luck"},
    "an unknown engine": {"engine": "steam"},
    "an unknown space": {"space": "galaxy"},
    "an unknown setting": {"settings": ("thread=2",)},
    "a reserve that is no size": {"reserve": "some"},
    "a server without a port": {"rpc": ("host",)},
    "a storage that is no URL": {"storage": "nowhere"},
    "a study name of two lines": {"study": "a\nb"},
    "a study to go on with that is not there": {"resume": "never-made"},
    "two studies": {"study": "a", "resume": "b"},
    "a model with a name that no file has": {"demo": False, "models": ("x" * 5000,)},
    "a storage with a name that no file has": {"storage": "sqlite:///" + "x" * 5000},
    "an output that is a folder": {"output": "."},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused(name: str, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = TuneRequest(**({"demo": True} | WRONG[name]))
    with pytest.raises(RooftuneError) as caught:
        check_study(check_tune(request).request)
    assert caught.value.exit_code in {2, 3}
    assert "\n" not in caught.value.message


def test_a_right_request_comes_back_in_its_parts(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = TuneRequest(demo=True, objective="ttft,tpot", limits=("memory<=1GiB",), budget="90s", settings=("threads=1",))
    checked = check_tune(request)
    assert checked.goals == ("ttft", "tpot")
    assert checked.limits[0].value == 2**30
    assert checked.budget_s == 90
    assert checked.settings == {"threads": 1}
    assert checked.models[0].path == str(smollm2)


def test_a_refused_request_leaves_no_database(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        check_tune(TuneRequest(demo=True, objective="speed"))
    assert list(tmp_path.iterdir()) == []


def test_two_different_models_are_not_two_formats(smollm2: Path, gemma3: Path) -> None:
    """The fastest would be another model."""
    with pytest.raises(BadInputError, match="different models"):
        read_models((str(smollm2), str(gemma3)), demo=False)


def test_measure_takes_one_model(smollm2: Path) -> None:
    with pytest.raises(UsageError):
        check_measure(MeasureRequest(demo=True, samples=0))


@pytest.mark.parametrize("server", ["host", "host:", ":1", "host:0", "host:70000", "a b:1", "host:1:2", ""])
def test_servers_that_are_none(server: str) -> None:
    with pytest.raises(UsageError):
        check_servers((server,))


@pytest.mark.parametrize("server", ["127.0.0.1:50052", "[::1]:50052", "gpu-box.lan:1"])
def test_servers_that_are(server: str) -> None:
    check_servers((server,))


def test_budgets() -> None:
    assert check_budget("1h30m") == 5400
