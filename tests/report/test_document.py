"""The YAML file: what goes in comes out, with the same types in every reader, and nothing hostile comes in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
import yaml

from tests.builders.reports import DEFAULT, TUNED, report, side
from tests.golden.check import check_golden
from tuner.errors import BadInputError
from tuner.report import FileBest, ModelNote, Report, read_report, render_yaml, write_report


def test_the_file_is_what_a_reader_once_approved() -> None:
    check_golden("report.yaml", render_yaml(report(limits=("tpot<=50ms",)), comment="Made by rooftune."))


def test_a_round_trip_keeps_every_value_and_type() -> None:
    """Settings called on and off stay text, numbers stay numbers."""
    tuned = report(best=TUNED.replace(flash_attn="on", numa="off", tensor_split=(3.0, 1.0), n_gpu_layers=31))
    data = yaml.safe_load(render_yaml(tuned))
    config = data["best"]["config"]
    assert config["flash_attn"] == "on"
    assert config["numa"] == "off"
    assert config["cache_type_k"] == "q8_0"
    assert config["n_gpu_layers"] == 31
    assert config["no_kv_offload"] is False
    assert config["tensor_split"] == [3.0, 1.0]
    assert data["gain"]["ci95"] == [1.9, 2.1]
    assert msgspec.convert(data, Report) == tuned


@pytest.mark.parametrize(
    "text",
    ["on", "off", "yes", "No", "y", "n", "null", "~", "", "1e3", "12e4567", "0x10", "1_000", "12:30:00", "2026-01-01", ".inf", "NaN",
     "- a", "a: b", "#x", " x ", "*a", "&a", "!tag", "a\nb", "é", "\u2028", "'", '"', "=", "<<", "%d", "@x", "{a}"],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    """Whatever YAML could take it for."""
    assert yaml.safe_load(render_yaml(report(study=text)))["study"] == text


@pytest.mark.parametrize("text", ["on", "yes", "y", "1e3", "12e4567", "0x10", "null"])
def test_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    """Readers of other YAML versions resolve more words than the one used here."""
    assert f'study: "{text}"' in render_yaml(report(study=text))


def test_the_keys_are_the_documented_ones() -> None:
    documented = {
        "schema", "machine", "runtime", "model", "workload", "objective", "limits", "strategy", "seed", "study", "storage",
        "baseline", "best", "gain", "pareto", "trials", "findings", "elapsed_s", "measured_s",
    }  # fmt: skip
    data = json.loads(msgspec.json.encode(report()))
    assert documented <= set(data)
    assert data["schema"] == "rooftune/1"
    assert {"fingerprint", "summary"} <= set(data["machine"])
    assert {"path", "name", "quant", "bytes", "sha256"} == set(data["model"])
    assert {"metric", "ratio", "ci95", "significant", "rounds"} == set(data["gain"])
    sides = {"config", "ttft_ms", "tpot_ms", "latency_ms", "throughput_tps", "memory_bytes", "quality", "samples"}
    assert sides <= set(data["best"])


def test_several_files_are_kept_side_by_side(tmp_path: Path) -> None:
    note = ModelNote(path="/m/a.gguf", name="a", quant="Q8_0", bytes=1, sha256="00")
    tuned = report(files=(FileBest(model=note, best=side(TUNED)), FileBest(model=note, best=side(DEFAULT))))
    write_report(tuned, tmp_path / "a.yaml")
    assert read_report(tmp_path / "a.yaml") == tuned


def test_the_json_document_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_bytes(msgspec.json.encode(report()))
    assert read_report(path) == report()


def test_a_comment_cannot_break_out(tmp_path: Path) -> None:
    text = render_yaml(report(), comment="first\nsecond\rschema: x\x85schema: y\u2028schema: z")
    assert yaml.safe_load(text)["schema"] == "rooftune/1"


GOOD = render_yaml(report())
HOSTILE = {
    "empty": "",
    "a list": "- 1\n",
    "another schema": "schema: sausage/9\n",
    "a schema that is a list": "schema: [1]\n",
    "no other key": "schema: rooftune/1\n",
    "a Python object": "!!python/object/apply:os.system ['true']\n",
    "aliases": "schema: &a rooftune/1\nmachine: *a\n",
    "merged maps": "a: &a {b: 1}\nc: {<<: *a}\n",
    "deep": "[" * 5000,
    "deep maps": "{a: " * 5000,
    "deep blocks": "".join(" " * depth + "a:\n" for depth in range(300)),
    "control characters": "\x00\x01",
    "a huge number": GOOD.replace("seed: 0", "seed: " + "9" * 6000),
    "a number for a word": GOOD.replace('flash_attn: "off"', "flash_attn: off"),
    "an unknown setting": GOOD.replace("ubatch_size: 256", "ubatch_sise: 256"),
    "a date for a number": GOOD.replace("seed: 0", "seed: 2026-01-01"),
    "a negative tuple": GOOD.replace("ci95: [1.9, 2.1]", "ci95: [1.9]"),
    "infinite": GOOD.replace("ratio: 2.0", "ratio: [.inf]"),
    "two documents": GOOD + "---\n" + GOOD,
    "too large": GOOD + "#" * 2_000_000,
    "a key that is a list": "? [a, b]\n: 1\n",
    "unhashable key": "? {a: b}\n: 1\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(HOSTILE[name])
    with pytest.raises(BadInputError) as caught:
        read_report(path)
    assert "\n" not in str(caught.value)
    assert "given.yaml" in caught.value.message


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"schema: \xc3\x28"])
def test_bytes_that_are_no_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInputError):
        read_report(path)


@pytest.mark.parametrize("place", ["missing.yaml", ".", "a\0b", "x" * 5000, "/dev/zero", "/dev/null"])
def test_places_that_hold_no_file(place: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError):
        read_report(tmp_path / place)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInputError):
        read_report(tmp_path / "pipe")


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "best.yaml"
    target.mkdir()
    with pytest.raises(BadInputError, match=r"best\.yaml"):
        write_report(report(), target)
    assert [path.name for path in tmp_path.iterdir()] == ["best.yaml"]
