"""What `inspect` and `models` say, as a script reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.gguf_files import write_facts
from tests.memory.test_cache import GEMMA3_270M, NEMO
from tuner.cli.commands._inspection import inspect_model
from tuner.cli.commands.inspect import render_inspection
from tuner.cli.main import run
from tuner.hardware.record import HardwareProfile, LimitFacts
from tuner.memory import default_config
from tuner.model import read_model

MACHINE = HardwareProfile(limits=LimitFacts(memory_available_bytes=2**30))


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON document of a command that must end well and say nothing else."""
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.llama
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ctx", "4096"], 28_311_552),
        (["--ctx", "4096", "--front-end", "llama-cpp-python"], 75_497_472),
        (["--ctx", "4k", "--front-end", "llama-cpp-python", "--set", "swa_full=off"], 28_311_552),
        (["--set", "ctx_size=4096", "--set", "parallel=2"], 44_040_192),
    ],
)
def test_front_end_and_settings_count(
    gemma3: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: int
) -> None:
    """Their defaults differ, and what is set wins; the total is the sum of its parts."""
    said = ask(capsys, "inspect", str(gemma3), *arguments)
    assert said["kv_bytes"] == expected
    assert said["total_bytes"] == sum(part["bytes"] for part in said["footprint"]["parts"])
    assert {"weights_bytes", "compute_bytes", "kv_table", "largest_context"} <= said.keys()


def test_full_context_is_only_mentioned(tmp_path: Path) -> None:
    """A model trained for a million tokens is shown at a chosen context, the whole beside it, and the largest that fits."""
    model = read_model(write_facts(tmp_path / "m.gguf", "mistral3", NEMO))
    found = inspect_model(model, default_config("llama-server", model), "llama-server", MACHINE).as_dict()
    assert found["config"]["ctx_size"] == 8192
    assert found["kv_bytes"] == 1_342_177_280
    assert found["kv_bytes_at_full_context"] == 167_772_160_000
    assert not found["fits"]
    assert "is available" in found["misfit"]
    fitting = found["largest_context"]
    assert 0 < fitting["f16"] < fitting["q8_0"] < fitting["q4_0"] < 1_024_000


def test_llama_cpps_silence_is_said(tmp_path: Path) -> None:
    """A header that llama.cpp refuses is still inspected by arithmetic, with a note."""
    model = read_model(write_facts(tmp_path / "m.gguf", "gemma3", GEMMA3_270M))
    found = inspect_model(model, default_config("llama-server", model), "llama-server", MACHINE)
    assert any("no projection" in note for note in found.notes)
    assert found.footprint.basis == "at least"
    assert found.as_dict()["kv_bytes"] == 39 * 2**20


def test_encoder_is_inspected_and_said_to_be_untunable(tmp_path: Path) -> None:
    """No cache, no largest context, one sentence."""
    facts = {"block_count": 12, "embedding_length": 384, "attention.head_count": 12, "context_length": 512}
    model = read_model(write_facts(tmp_path / "m.gguf", "bert", facts))
    found = inspect_model(model, default_config("llama-server", model), "llama-server", MACHINE)
    assert found.as_dict()["kv_bytes"] == 0
    assert found.as_dict()["tunable"] is False
    assert found.largest_context == {}
    assert any("cannot be tuned" in note for note in found.notes)
    assert render_inspection(found)


def test_a_purely_recurrent_model_has_figures_everywhere(tmp_path: Path) -> None:
    """No KV, a fixed state of its own line, and nothing that is no number; more context costs nothing and is not praised."""
    facts = {"block_count": 4, "embedding_length": 256, "wkv.head_size": 64, "context_length": 4096, "vocab_size": 1000}
    model = read_model(write_facts(tmp_path / "m.gguf", "rwkv7", facts))
    found = inspect_model(model, default_config("llama-server", model), "llama-server", MACHINE)
    document = found.as_dict()
    assert document["kv_bytes"] == 0
    assert {row["kv_bytes"] for row in document["kv_table"]} == {0}
    state = [part for part in document["footprint"]["parts"] if part["cause"] == "recurrent"]
    assert [part["bytes"] for part in state] == [4 * (2 * 256 + 256 * 64) * 4]
    assert document["largest_context"] == {}
    assert "NaN" not in json.dumps(document, default=str)


def test_models_lists_the_unreadable_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good file with its facts, a damaged one with what is wrong."""
    write_facts(tmp_path / "good.gguf", "gemma3", GEMMA3_270M)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    found = {Path(row["path"]).name: row for row in ask(capsys, "models", str(tmp_path))["models"]}
    assert found["good.gguf"]["architecture"] == "gemma3"
    assert found["good.gguf"]["problem"] is None
    assert found["bad.gguf"]["problem"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["inspect", "x.gguf", "--demo"],
        ["inspect", "nowhere.gguf"],
        ["inspect", "--demo", "--ctx", "many"],
        ["inspect", "--demo", "--ctx", "99999999999"],
        ["inspect", "--demo", "--reserve", "much"],
    ],
)
def test_bad_input_ends_with_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 or 3, nothing on stdout."""
    assert run(arguments) in {2, 3}
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
