"""Calibrations on disk: found for the same machine and llama.cpp, and nothing else ever stops a prediction."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tuner.calibration import keep, name_build, name_server, read_kept
from tuner.calibration.store import name_file
from tuner.hardware import BuildFacts

CEILINGS = make_ceilings()
KEY = (CEILINGS.machine, CEILINGS.llama_cpp)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    keep(tmp_path / "new" / "folder", CEILINGS)
    assert read_kept(tmp_path / "new" / "folder", *KEY).ceilings == CEILINGS


def test_nothing_kept_is_none_without_a_note(tmp_path: Path) -> None:
    found = read_kept(tmp_path, *KEY)
    assert (found.ceilings, found.note) == (None, "")


@pytest.mark.parametrize(("machine", "version"), [("another", KEY[1]), (KEY[0], "9.9.9")])
def test_another_machine_or_version_finds_nothing(tmp_path: Path, machine: str, version: str) -> None:
    keep(tmp_path, CEILINGS)
    assert read_kept(tmp_path, machine, version).ceilings is None


def test_a_file_carried_over_from_another_machine_is_not_believed(tmp_path: Path) -> None:
    """Its name fits, what it says does not."""
    keep(tmp_path, CEILINGS).rename(name_file(tmp_path, "another", KEY[1]))
    found = read_kept(tmp_path, "another", KEY[1])
    assert found.ceilings is None
    assert "another machine" in found.note


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe\x00",
        b'{"schema": "rooftune-ceilings/1"}',
        b'{"schema": "rooftune-ceilings/3"}',
        msgspec.json.encode(CEILINGS)[:-40],
        msgspec.json.encode(msgspec.structs.replace(CEILINGS, formats=())),
    ],
    ids=[
        "empty",
        "cut at once",
        "another kind",
        "no text",
        "an earlier schema",
        "a later schema",
        "cut late",
        "without formats",
    ],
)
def test_a_damaged_file_counts_as_none_and_says_so(tmp_path: Path, content: bytes) -> None:
    name_file(tmp_path, *KEY).write_bytes(content)
    found = read_kept(tmp_path, *KEY)
    assert found.ceilings is None
    assert str(tmp_path) in found.note


def test_a_damaged_file_is_replaced_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    name_file(tmp_path, *KEY).write_bytes(b"{")
    path = keep(tmp_path, CEILINGS)
    assert read_kept(tmp_path, *KEY).ceilings == CEILINGS
    assert list(tmp_path.iterdir()) == [path]


def test_names_of_machines_and_versions_never_leave_the_folder(tmp_path: Path) -> None:
    assert name_file(tmp_path, "../../etc/x", "a/b c").parent == tmp_path


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (None, ""),
        (BuildFacts(), ""),
        (BuildFacts(llama_cpp_version="0.5.0"), "0.5.0"),
        (BuildFacts(llama_cpp_version="0.5.0", llama_cpp_commit="abc", library_digest="12"), "0.5.0 (abc, 12)"),
        (BuildFacts(llama_cpp_version="0.5.0", library_digest="12"), "0.5.0 (12)"),
    ],
    ids=["unknown", "silent", "version", "everything", "no commit"],
)
def test_a_build_is_named_by_all_it_tells(build: BuildFacts | None, name: str) -> None:
    assert name_build(build) == name


def test_a_library_made_anew_finds_nothing(tmp_path: Path) -> None:
    """The same version and commit, built with other flags."""
    old, new = (name_build(BuildFacts(llama_cpp_version="0.5.0", library_digest=each)) for each in ("12", "34"))
    keep(tmp_path, msgspec.structs.replace(CEILINGS, llama_cpp=old))
    assert read_kept(tmp_path, CEILINGS.machine, old).ceilings is not None
    assert read_kept(tmp_path, CEILINGS.machine, new).ceilings is None


def test_a_server_is_kept_beside_its_machine(tmp_path: Path) -> None:
    remote = msgspec.structs.replace(CEILINGS, machine=name_server(CEILINGS.machine, "192.168.1.5:50052"))
    keep(tmp_path, CEILINGS)
    keep(tmp_path, remote)
    assert read_kept(tmp_path, remote.machine, KEY[1]).ceilings == remote
    assert read_kept(tmp_path, *KEY).ceilings == CEILINGS
