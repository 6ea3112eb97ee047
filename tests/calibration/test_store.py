"""Calibrations on disk: found for the same machine and llama.cpp, and nothing else ever stops a prediction."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tuner.calibration import keep, read_kept
from tuner.calibration.store import name_file

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
        b'{"schema": "rooftune-ceilings/2"}',
        msgspec.json.encode(CEILINGS)[:-40],
        msgspec.json.encode(msgspec.structs.replace(CEILINGS, formats=())),
    ],
    ids=["empty", "cut at once", "another kind", "no text", "a later schema", "cut late", "without formats"],
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
