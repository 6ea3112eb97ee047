"""`rooftune explain` prints a setting's manual."""

from __future__ import annotations

import json

import pytest

from tuner.cli.main import run
from tuner.rules.catalogue import list_rules
from tuner.runconfig import RunConfig


@pytest.mark.parametrize("name", RunConfig.__struct_fields__)
def test_every_setting_has_a_manual(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout, with what it moves and what a change costs."""
    assert run(["explain", name]) == 0
    heard = capsys.readouterr()
    assert heard.out.startswith(f"{name}: ")
    assert "moves " in heard.out
    assert heard.err == ""


def test_flags_as_llama_cpp_spells_them_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Dashes and underscores are one."""
    assert run(["explain", "--json", "n-gpu-layers"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "n_gpu_layers"
    assert document["cost"] == "model"
    assert "the output layer" in document["manual"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flux_capacitor", "There are model, n_gpu_layers"),
        ("flux_capacitor", "DEC01, DEC02"),
        ("thread", "Did you mean threads?"),
        ("pre99", "Did you mean PRE09?"),
    ],
)
def test_an_unknown_name_lists_what_exists(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, one line on stderr, nothing on stdout."""
    assert run(["explain", name]) == 2
    heard = capsys.readouterr()
    assert said in heard.err
    assert heard.err.count("\n") == 1
    assert heard.out == ""


def test_a_rule_is_explained_by_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    """In small letters too, with the symptoms it belongs to."""
    assert run(["explain", "--json", "pre02"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["code"], document["symptoms"]) == ("PRE02", ["slow-start"])
    assert "When this is wrong" in document["manual"]


def test_without_a_name_everything_with_a_manual_is_listed_by_area(capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, settings first; the areas are the symptoms of `diagnose`."""
    assert run(["explain"]) == 0
    heard = capsys.readouterr()
    lines = heard.out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert named == [*RunConfig.__struct_fields__, *(rule.code for rule in list_rules())]
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")][:2] == ["settings:", "long-chat:"]
    assert heard.err == ""


def test_the_list_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Area, name and title of each."""
    assert run(["explain", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {frozenset(entry) for entry in document} == {frozenset({"area", "name", "title"})}
    assert {"area": "slow-output", "name": "DEC05", "title": "Thread count for writing"} in document
    assert all(entry["title"] for entry in document)
