"""`rooftune export`: the text on stdout or in a file, the list of formats, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.reports import report
from tuner.cli.main import run
from tuner.export.base import list_exports
from tuner.report import write_report


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_report(report(), tmp_path / "best.yaml")
    return tmp_path / "best.yaml"


@pytest.mark.parametrize("name", list_exports())
def test_the_text_goes_to_stdout(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(file), "--to", name]) == 0
    said = capsys.readouterr()
    assert said.out == list_exports()[name].render(report())
    assert said.err == ""


def test_the_text_goes_to_a_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(file), "--to", "llama-server", "-o", str(tmp_path / "serve.sh")]) == 0
    assert (tmp_path / "serve.sh").read_text().startswith("#!/bin/sh\n")
    assert capsys.readouterr().out == ""


def test_json_names_what_is_lost(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(file), "--to", "llama-bench", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "llama-bench"
    assert any("ctx_size" in each for each in document["dropped"])


def test_the_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in list_exports())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["FILE"], 2),
        (["--to", "llama-server"], 2),
        (["FILE", "--to", "ollamar"], 2),
        (["none.yaml", "--to", "llama-server"], 3),
        (["FILE", "--to", "llama-server", "-o", "no/such/folder/x"], 3),
        (["FILE", "--to", "llama-server", "-o", "/"], 3),
    ],
)
def test_refusals_are_one_line(arguments: list[str], code: int, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", *(str(file) if word == "FILE" else word for word in arguments)]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
