"""A model split into files `name-00001-of-00003.gguf`: any one of them stands for all.

The first shard carries the metadata; the tensors are spread over all. A missing, foreign or damaged shard is one clear error.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from tuner.errors import BadInputError
from tuner.model.gguf import Header, TensorInfo, read_header, shown

_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_SHARDS: Final = 4096


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of one model, first shard first."""

    headers: tuple[Header, ...]

    @property
    def first(self) -> Header:
        return self.headers[0]

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return tuple(tensor for header in self.headers for tensor in header.tensors)

    @property
    def file_bytes(self) -> int:
        return sum(header.file_bytes for header in self.headers)

    @property
    def identity(self) -> str:
        """sha256 over each file's header digest and size: equal for copies, other for another table or size."""
        lines = "".join(f"{header.digest} {header.file_bytes}\n" for header in self.headers)
        return hashlib.sha256(lines.encode()).hexdigest()


def split_name(path: Path) -> tuple[str, int, int] | None:
    """(stem, number, count) of a shard's name; None for a file that is none."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    number, count = int(match["number"]), int(match["count"])
    return (match["stem"], number, count) if 1 <= number <= count else None


def list_shards(path: Path) -> tuple[Path, ...]:
    """All files of the model that `path` belongs to, by name alone. Raises BadInputError when one is missing."""
    split = split_name(path)
    if split is None:
        return (path,)
    stem, _, count = split
    if count > _MOST_SHARDS:
        raise BadInputError(f"{shown(path)} claims to be one of {count} shards, more than any model has.")
    paths = tuple(path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1))
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        raise BadInputError(
            f"{shown(path)} is one of {count} shards, and {len(missing)} of them are missing, first {shown(missing[0])}.",
            "Download all shards into one folder.",
        )
    return paths


def read_files(path: Path) -> ModelFiles:
    """The headers of `path` and its sibling shards. Raises BadInputError."""
    if not path.is_file():
        read_header(path)
    headers = tuple(read_header(shard) for shard in list_shards(path))
    _check_split(headers)
    _check_names(headers)
    return ModelFiles(headers=headers)


def _check_split(headers: tuple[Header, ...]) -> None:
    """What the files say of the split must agree with their names."""
    stated = headers[0].metadata.get("split.count", 0)
    if isinstance(stated, int) and stated > 1 and stated != len(headers):
        raise BadInputError(
            f"{shown(headers[0].path)} says it is one of {stated} shards, but its name says {len(headers)}.",
            "Give the shards back the names they were downloaded with (…-00001-of-0000N.gguf).",
        )
    for number, header in enumerate(headers):
        position = header.metadata.get("split.no", number)
        if len(headers) > 1 and position != number:
            raise BadInputError(
                f"{shown(header.path)} says it is shard {shown(position)} (from 0), but its name says {number}.",
                "Give the shards back the names they were downloaded with.",
            )


def _check_names(headers: tuple[Header, ...]) -> None:
    seen: set[str] = set()
    for header in headers:
        names = {tensor.name for tensor in header.tensors}
        if seen & names:
            raise BadInputError(f"{shown(header.path)} repeats tensors of another shard.", "Download all shards again.")
        seen |= names
