"""Where a result goes: refused beforehand where it cannot go, and never outside its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builders.reports import report
from tuner.errors import BadInputError
from tuner.report import read_report
from tuner.session.request import TuneRequest
from tuner.session.saving import check_output, save_report


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("output", ["no/such/folder/best.yaml", ".", "/", "a\0b", "x" * 5000, "file/best.yaml"])
def test_places_that_cannot_take_a_file_are_refused_before_the_search(output: str, here: Path) -> None:
    (here / "file").touch()
    with pytest.raises(BadInputError):
        check_output(output)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(here: Path) -> None:
    (here / "results").mkdir(mode=0o500)
    with pytest.raises(BadInputError):
        check_output("")


def test_a_results_path_that_is_a_file_is_refused(here: Path) -> None:
    (here / "results").touch()
    with pytest.raises(BadInputError, match="results"):
        check_output("")


def test_without_a_name_the_result_lies_in_results(here: Path) -> None:
    check_output("")
    saved = save_report(report(study="smollm2-quick-1"), TuneRequest(demo=True))
    assert saved.path == Path("results/smollm2-quick-1.yaml")
    assert read_report(saved.path).study == "smollm2-quick-1"
    assert saved.verify_command == "rooftune verify results/smollm2-quick-1.yaml"


@pytest.mark.parametrize("study", ["../../etc/passwd", "a/b", "..", "", "x\ny"])
def test_a_study_name_cannot_leave_the_folder(study: str, here: Path) -> None:
    check_output("")
    path = save_report(report(study=study), TuneRequest(demo=True)).path
    assert path.resolve().parent == (here / "results").resolve()


def test_a_password_does_not_get_into_the_file() -> None:
    request = TuneRequest(demo=True, output="best.yaml", storage="postgresql://me:secret@host/db")
    save_report(report(), request)
    assert "secret" not in Path("best.yaml").read_text()
    assert "postgresql://me:***@host/db" in Path("best.yaml").read_text()


def test_the_file_says_how_it_was_made_and_how_to_serve_it() -> None:
    save_report(report(), TuneRequest(demo=True, output="best.yaml"))
    head = [line for line in Path("best.yaml").read_text().splitlines() if line.startswith("#")]
    assert any("rooftune tune --demo -o best.yaml" in line for line in head)
    assert any("llama-server --model" in line for line in head)
