"""A bounded reader of GGUF headers: metadata and tensor table, never the weights.

Promise: no length in the file is believed. Every string, array and count is checked against the bytes that are left before
anything is read or built, so a damaged or hostile header costs little time and memory and ends in one BadInputError.
Vocabularies are walked, not built: a token array costs one addition per token and no object.
The rules (versions, alignment, order of the tensor data) are those by which llama.cpp accepts a file.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tuner.errors import BadInputError
from tuner.model.ggml import REMOVED_TYPES, TENSOR_TYPES

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MOST_DIMENSIONS: Final = 4

_MOST_HEADER: Final = 256 * 2**20
_MOST_PAIRS: Final = 2**16
_MOST_TENSORS: Final = 2**17
_MOST_STRINGS: Final = 2**23
_MOST_NAME: Final = 1024
_KEPT_TEXT: Final = 4096
_KEPT_NUMBERS: Final = 4096
_WINDOW: Final = 2**20
_MOST_INT64: Final = 2**63 - 1

_STRING: Final = 8
_ARRAY: Final = 9
_U32_TYPE: Final = 4
_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

Value = bool | int | float | str


class ArrayValue(msgspec.Struct, frozen=True, kw_only=True):
    """An array of the metadata; its values are kept only where it is a short array of numbers."""

    count: int
    """Elements, exact."""
    values: tuple[bool | int | float, ...] | None
    """The numbers, None for strings and for more than a few thousand numbers."""


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Elements per dimension, fastest first."""
    type_name: str
    """ggml's format, e.g. "Q4_K"."""
    offset: int
    """Bytes from the start of the data section."""
    n_bytes: int
    """Bytes of data, exact."""

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What one GGUF file says about itself."""

    path: Path
    version: int
    metadata: dict[str, Value | ArrayValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    """Bytes."""
    data_start: int
    """Bytes from the start of the file to the first weight."""
    file_bytes: int
    digest: str
    """sha256 (hexadecimal) of the header's bytes, from the magic to `data_start`."""


class _Cursor:
    """A position in the file that only moves over bytes that are there."""

    def __init__(self, stream: BinaryIO, path: Path, size: int) -> None:
        self.stream = stream
        self.path = path
        self.size = size
        self.position = 0
        self._window = b""
        self._start = 0

    def fail(self, what: str, hint: str = "Download or convert the model again.") -> BadInputError:
        return BadInputError(f"{shown(self.path)} cannot be read as a model: {what}.", hint)

    def require(self, count: int, what: str) -> None:
        """Refuses a length that the file cannot hold."""
        if count > self.size - self.position:
            raise self.fail(f"{what} reaches past the end of the file (at byte {self.position} of {self.size})")
        if self.position + count > _MOST_HEADER:
            raise self.fail(f"its header is larger than {_MOST_HEADER >> 20} MiB")

    def take(self, count: int, what: str) -> bytes:
        self.require(count, what)
        inside = self.position - self._start
        if inside < 0 or inside + count > len(self._window):
            self._load(max(count, _WINDOW))
            inside = 0
        self.position += count
        piece = self._window[inside : inside + count]
        if len(piece) != count:
            raise self.fail("it became shorter while it was read")
        return piece

    def skip(self, count: int, what: str) -> None:
        self.require(count, what)
        self.position += count

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def skip_strings(self, count: int, what: str) -> None:
        """Walks over `count` strings; the loop is the hot one of this file."""
        unpack, left = _U64.unpack_from, count
        while left:
            self.require(8, what)
            self._load(_WINDOW)
            window, at, last = self._window, 0, len(self._window) - 8
            while at <= last and left:
                at += 8 + unpack(window, at)[0]
                left -= 1
            if not at:
                raise self.fail("it became shorter while it was read")
            self.skip(at, what)

    def _load(self, count: int) -> None:
        self.stream.seek(self.position)
        self._window = self.stream.read(count)
        self._start = self.position


def shown(value: object) -> str:
    """A name from outside as it may stand in one line of a message."""
    text = str(value)
    plain = text if text.isprintable() else ascii(text[:200])[1:-1]
    return plain if len(plain) <= 200 else plain[:80] + "…" + plain[-80:]


def read_header(path: Path) -> Header:
    """Metadata and tensor table of one file.

    Raises BadInputError for anything that llama.cpp would refuse too, and for a file that cannot be opened.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadInputError(f"{shown(path)} is no regular file.", "Give a .gguf file.")
        with path.open("rb") as stream:
            return _read_stream(_Cursor(stream, path, os.fstat(stream.fileno()).st_size))
    except FileNotFoundError:
        raise BadInputError(f"There is no file {shown(path)}.", "Check the path, or run `rooftune models`.") from None
    except IsADirectoryError:
        raise BadInputError(f"{shown(path)} is a folder, not a model file.", "Give one .gguf file of it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"{shown(path)} cannot be opened: {shown(reason)}.") from None


def _read_stream(cursor: _Cursor) -> Header:
    version, n_tensors, n_pairs = _read_prelude(cursor)
    metadata = _read_metadata(cursor, n_pairs)
    alignment = _alignment(cursor, metadata)
    tensors = _read_tensors(cursor, n_tensors)
    data_start = -(-cursor.position // alignment) * alignment if tensors else cursor.position
    _check_layout(cursor, tensors, data_start, alignment)
    return Header(
        path=cursor.path,
        version=version,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_start=data_start,
        file_bytes=cursor.size,
        digest=_digest(cursor.stream, data_start),
    )


def _read_prelude(cursor: _Cursor) -> tuple[int, int, int]:
    """Magic, version and the two counts."""
    magic = cursor.take(min(4, cursor.size), "the first word")
    if magic == MAGIC[::-1]:
        raise cursor.fail("it is a GGUF file of the other byte order", "Convert it to little-endian first.")
    if magic != MAGIC:
        what = "it is empty" if not cursor.size else "it is not a GGUF file"
        raise cursor.fail(what, "Give a model in GGUF format (a .gguf file).")
    version = cursor.u32("the version")
    if version and not version & 0xFFFF:
        raise cursor.fail("it is big-endian", "Convert it to little-endian first.")
    if version not in VERSIONS:
        raise cursor.fail(f"its GGUF version is {version}, and only 2 and 3 are in use", "Convert the model again.")
    n_tensors, n_pairs = cursor.u64("the number of tensors"), cursor.u64("the number of metadata pairs")
    if n_tensors > _MOST_TENSORS or n_pairs > _MOST_PAIRS:
        raise cursor.fail(f"it claims {n_tensors} tensors and {n_pairs} metadata pairs, more than any model has")
    return version, n_tensors, n_pairs


def _read_name(cursor: _Cursor, what: str) -> str:
    length = cursor.u64(f"the length of {what}")
    if length > _MOST_NAME:
        cursor.require(length, what)
        raise cursor.fail(f"{what} is {length} bytes long")
    try:
        return cursor.take(length, what).decode()
    except UnicodeDecodeError:
        raise cursor.fail(f"{what} is no UTF-8 text") from None


def _read_metadata(cursor: _Cursor, n_pairs: int) -> dict[str, Value | ArrayValue]:
    metadata: dict[str, Value | ArrayValue] = {}
    for _ in range(n_pairs):
        key = _read_name(cursor, "a metadata key")
        if not key or key in metadata:
            raise cursor.fail(f"the metadata key {shown(key)!r} is empty or stands twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: _Cursor, key: str) -> Value | ArrayValue:
    what = f"the value of {shown(key)!r}"
    kind = cursor.u32(what)
    if kind == _ARRAY:
        return _read_array(cursor, what)
    if kind == _STRING:
        return _read_text(cursor, what)
    code = _NUMBERS.get(kind)
    if code is None:
        raise cursor.fail(f"{what} has the unknown type {kind}")
    if key == "general.alignment" and kind != _U32_TYPE:
        raise cursor.fail("its alignment is not a 32-bit number")
    number: bool | int | float = struct.unpack(f"<{code}", cursor.take(struct.calcsize(code), what))[0]
    return number


def _read_text(cursor: _Cursor, what: str) -> str:
    """A string, cut where it is long: chat templates matter only by being there."""
    length = cursor.u64(f"the length of {what}")
    cursor.require(length, what)
    kept = cursor.take(min(length, _KEPT_TEXT), what)
    cursor.skip(length - len(kept), what)
    return kept.decode(errors="replace")


def _read_array(cursor: _Cursor, what: str) -> ArrayValue:
    kind, count = cursor.u32(what), cursor.u64(what)
    if kind == _STRING:
        cursor.require(8 * count, what)
        if count > _MOST_STRINGS:
            raise cursor.fail(f"{what} has {count} strings, more than any vocabulary")
        cursor.skip_strings(count, what)
        return ArrayValue(count=count, values=None)
    code = _NUMBERS.get(kind)
    if code is None:
        raise cursor.fail(f"{what} is an array of the type {kind}, which GGUF does not have")
    size = struct.calcsize(code) * count
    cursor.require(size, what)
    if count > _KEPT_NUMBERS:
        cursor.skip(size, what)
        return ArrayValue(count=count, values=None)
    return ArrayValue(count=count, values=struct.unpack(f"<{count}{code}", cursor.take(size, what)))


def _alignment(cursor: _Cursor, metadata: dict[str, Value | ArrayValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.fail(f"its alignment is {shown(alignment)}, which is no power of two")
    return alignment


def _read_tensors(cursor: _Cursor, n_tensors: int) -> tuple[TensorInfo, ...]:
    tensors: list[TensorInfo] = []
    seen: set[str] = set()
    for _ in range(n_tensors):
        tensor = _read_tensor(cursor)
        if tensor.name in seen:
            raise cursor.fail(f"the tensor {shown(tensor.name)!r} stands twice")
        seen.add(tensor.name)
        tensors.append(tensor)
    return tuple(tensors)


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    name = _read_name(cursor, "a tensor's name")
    what = f"the tensor {shown(name)!r}"
    if len(name.encode()) >= 64:
        raise cursor.fail(f"{what} has a name of more than 63 bytes")
    n_dims = cursor.u32(what)
    if not 1 <= n_dims <= MOST_DIMENSIONS:
        raise cursor.fail(f"{what} has {n_dims} dimensions instead of 1 to {MOST_DIMENSIONS}")
    shape = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims, what))
    if min(shape) < 1 or math.prod(shape) > _MOST_INT64:
        raise cursor.fail(f"{what} has the impossible shape {' × '.join(map(str, shape))}")
    number, offset = cursor.u32(what), cursor.u64(what)
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        age = "that llama.cpp no longer reads" if number in REMOVED_TYPES else "that is unknown"
        raise cursor.fail(f"{what} has the number format {number}, {age}", "Convert the model with a current llama.cpp.")
    if shape[0] % kind.block:
        raise cursor.fail(f"{what} has rows of {shape[0]} values, no multiple of the {kind.block} that {kind.name} needs")
    n_bytes = math.prod(shape) // kind.block * kind.size
    return TensorInfo(name=name, shape=shape, type_name=kind.name, offset=offset, n_bytes=n_bytes)


def _check_layout(cursor: _Cursor, tensors: tuple[TensorInfo, ...], data_start: int, alignment: int) -> None:
    """The data must lie gapless in table order and inside the file, as llama.cpp demands."""
    expected, end = 0, data_start
    for tensor in tensors:
        if tensor.offset != expected:
            raise cursor.fail(f"the tensor {shown(tensor.name)!r} starts at byte {tensor.offset} instead of {expected}")
        end = data_start + expected + tensor.n_bytes
        expected += -(-tensor.n_bytes // alignment) * alignment
    if end > cursor.size:
        raise BadInputError(
            f"{shown(cursor.path)}: the file is incomplete: needs {end} bytes, has {cursor.size}.",
            "Download it again.",
        )


def _digest(stream: BinaryIO, length: int) -> str:
    digest, left = hashlib.sha256(), length
    stream.seek(0)
    while left > 0:
        piece = stream.read(min(left, _WINDOW))
        if not piece:
            break
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()
