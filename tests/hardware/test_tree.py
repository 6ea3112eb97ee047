"""The kernel's small files: what they hold as values, and None for all that a file system may do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.trees import make_tree
from tuner.hardware.tree import Tree, parse_cpu_list, parse_int, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)),
        ("0", (0,)),
        ("3,1,1-2", (1, 2, 3)),
        ("", ()),
        (None, ()),
        ("5-2", ()),
        ("0-999999", ()),
        ("all,2", (2,)),
    ],
)
def test_cpu_lists(text: str | None, expected: tuple[int, ...]) -> None:
    """Ranges and single numbers in order; nonsense names no CPU, and no range fills the memory."""
    assert parse_cpu_list(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32K", 32 * 2**10),
        ("2M", 2**21),
        ("1G", 2**30),
        ("16384 kB", 2**24),
        ("512", 512),
        ("", None),
        (None, None),
        ("-4K", None),
        ("max", None),
    ],
)
def test_sizes(text: str | None, expected: int | None) -> None:
    """The kernel's binary suffixes; anything else is unknown, not 0."""
    assert parse_size(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("-1", -1), ("0", 0), ("max", None), ("", None), (None, None), ("1.5", None)])
def test_whole_numbers(text: str | None, expected: int | None) -> None:
    """Whole numbers only."""
    assert parse_int(text) == expected


def test_reading_drops_surrounding_space_and_zeros(tmp_path: Path) -> None:
    """Device tree texts end in a zero byte, others in a line feed."""
    assert (
        make_tree(tmp_path, {"/proc/device-tree/model": "Raspberry Pi 5\0"}).read("/proc/device-tree/model") == "Raspberry Pi 5"
    )


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """A missing file, a folder, and bytes that are no text."""
    tree = make_tree(tmp_path, {"/sys/folder/file": "1"})
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    assert tree.read("/missing") is None
    assert tree.read("/sys/folder") is None
    assert tree.read_int("/odd") is None
    assert tree.read_table("/missing") == {}
    assert tree.list("/missing", ".*") == []
    assert not tree.exists("/missing")


def test_listing_counts_as_people_do(tmp_path: Path) -> None:
    """cpu10 comes after cpu9, and what only begins alike is left out."""
    tree = make_tree(tmp_path, {f"/sys/{name}/x": "" for name in ("cpu10", "cpu9", "cpu0", "cpufreq")})
    assert tree.list("/sys", r"cpu\d+") == ["cpu0", "cpu9", "cpu10"]


def test_the_first_of_equal_keys_wins(tmp_path: Path) -> None:
    """As in files that repeat a block for each CPU; values may hold the separator."""
    tree = make_tree(tmp_path, {"/t": "a: 1\na: 2\nb: x:y\nlone\n", "/s": "inactive_file 7\n"})
    assert tree.read_table("/t") == {"a": "1", "b": "x:y", "lone": ""}
    assert tree.read_table("/s", " ") == {"inactive_file": "7"}


def test_the_root_stands_for_the_whole_file_system() -> None:
    """With the real root, real files are read."""
    assert Tree(root=Path("/")).exists("/")
