"""Reads the kernel's small text files below a root folder, so that a test can hand in a machine made of files.

Nothing here raises for what a file system does: a file that is missing, unreadable or no number reads as None.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_MOST_BYTES = 4 * 2**20
_MOST_CPUS = 65_536


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Files of /proc, /sys and /etc below `root`."""

    root: Path
    """Folder that stands for "/"."""

    def path(self, name: str) -> Path:
        """Where the absolute path `name` lies below the root."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """Text of a file without surrounding white space; None when it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace").strip("\0 \t\r\n")
        except (OSError, ValueError):
            return None

    def read_int(self, name: str) -> int | None:
        """A file that holds one whole number."""
        return parse_int(self.read(name))

    def exists(self, name: str) -> bool:
        """There is such a file or folder."""
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def list(self, name: str, pattern: str) -> list[str]:
        """Names in a folder that match a regular expression as a whole, numbers in their order."""
        try:
            names = [entry.name for entry in self.path(name).iterdir() if re.fullmatch(pattern, entry.name)]
        except OSError:
            return []
        return sorted(names, key=lambda text: [int(part) if part.isdigit() else 0 for part in re.findall(r"\d+|\D", text)])

    def read_table(self, name: str, separator: str = ":") -> dict[str, str]:
        """A file of "key: value" lines; {} when it cannot be read. The first of equal keys wins."""
        table: dict[str, str] = {}
        for line in (self.read(name) or "").splitlines():
            key, _, value = line.partition(separator)
            table.setdefault(key.strip(), value.strip())
        return table


def parse_int(text: str | None) -> int | None:
    """A whole number; None for anything else."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def parse_cpu_list(text: str | None) -> tuple[int, ...]:
    """The kernel's "0-3,8,10-11" as numbers in order; () for anything else."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first <= _MOST_CPUS:
            cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def parse_size(text: str | None) -> int | None:
    """The kernel's "32K", "2M", "123 kB" or "123" as bytes; None for anything else."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*([KkMG]?)(?:i?B)?\s*", text or "")
    if not match:
        return None
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2].upper()]
