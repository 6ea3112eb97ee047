"""Makes a long history out of a short one that was really computed, by repeating its cells in a saved state.

What a step costs depends on how many cells it attends to and how they are laid out, not on the numbers in them, so a history
for measuring need not be computed token by token. The format is what llama_kv_cache::state_write writes (llama-kv-cache.cpp):
per cache a count for each stream, then position and sequence of each cell, all rows of K, and V by rows or transposed. A state
of any other shape (recurrent, multi-dimensional positions, another version) is not understood and gives None.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

MAGIC: Final = 0xAF143CD8
_MOST_STREAMS: Final = 256
_CELL: Final = 12

Bytes = Any  # numpy array of bytes


class _OtherFormatError(Exception):
    """The state is not what this file understands."""


def tile_state(blob: Bytes, held: int, wanted: int) -> Any:
    """The state of a sequence of `wanted` tokens, made from that of one with `held`, as bytes; None where it cannot be.

    A cache that keeps a window keeps as many cells as before, at the end of the new positions.
    """
    if not 0 < held <= wanted:
        return None
    try:
        return _Tiling(np.frombuffer(blob, dtype=np.uint8), held, wanted).run()
    except (_OtherFormatError, ValueError):
        return None


class _Tiling:
    """One pass over a state: reads from `source`, collects the pieces of the new one."""

    def __init__(self, source: Bytes, held: int, wanted: int) -> None:
        self._source, self._held, self._wanted = source, held, wanted
        self._at = 0
        self._pieces: list[Bytes] = []

    def run(self) -> Any:
        if self._copy_number() != MAGIC:
            raise _OtherFormatError
        self._copy_number()  # the sequence
        while self._at < len(self._source):
            self._tile_cache()
        return np.ascontiguousarray(np.concatenate(self._pieces))

    def _tile_cache(self) -> None:
        streams = self._copy_number()
        if not 1 <= streams <= _MOST_STREAMS:
            raise _OtherFormatError
        for _ in range(streams):
            cells = self._read_number()
            if cells:
                self._tile_stream(cells)
            else:
                self._pieces.append(_encode(0))

    def _tile_stream(self, cells: int) -> None:
        if cells > self._held:
            raise _OtherFormatError
        order = np.arange(self._wanted) % self._held if cells == self._held else np.arange(cells)
        self._pieces.append(_encode(len(order)))
        self._tile_positions(cells, len(order))
        transposed, layers = self._copy_number(), self._copy_number()
        for _ in range(layers):
            self._tile_rows(cells, order)
        if self._at == len(self._source):
            return  # latent attention keeps no V
        for _ in range(layers):
            if transposed:
                self._tile_columns(cells, order)
            else:
                self._tile_rows(cells, order)

    def _tile_positions(self, cells: int, count: int) -> None:
        table = self._take(cells * _CELL).view(np.uint32).reshape(cells, 3)
        expected = np.arange(self._held - cells, self._held, dtype=np.uint32)
        if (table[:, 1] != 1).any() or (np.sort(table[:, 0]) != expected).any():
            raise _OtherFormatError
        is_whole = cells == self._held
        grown = np.empty((count, 3), dtype=np.uint32)
        grown[:, 0] = np.arange(self._wanted) if is_whole else table[:, 0] + np.uint32(self._wanted - self._held)
        grown[:, 1], grown[:, 2] = 1, table[0, 2]
        self._pieces.append(grown.reshape(-1).view(np.uint8))

    def _tile_rows(self, cells: int, order: Bytes) -> None:
        self._copy(4)
        size = int(self._copy(8).view(np.uint64)[0])
        rows = self._take(cells * size).reshape(cells, size)
        self._pieces.append(rows[order].reshape(-1))

    def _tile_columns(self, cells: int, order: Bytes) -> None:
        self._copy(4)
        size, width = self._copy_number(), self._copy_number()
        columns = self._take(width * cells * size).reshape(width, cells, size)
        self._pieces.append(np.ascontiguousarray(columns[:, order]).reshape(-1))

    def _take(self, size: int) -> Bytes:
        if size < 0 or self._at + size > len(self._source):
            raise _OtherFormatError
        self._at += size
        return self._source[self._at - size : self._at].copy()

    def _copy(self, size: int) -> Bytes:
        piece = self._take(size)
        self._pieces.append(piece)
        return piece

    def _read_number(self) -> int:
        return int(self._take(4).view(np.uint32)[0])

    def _copy_number(self) -> int:
        number = self._read_number()
        self._pieces.append(_encode(number))
        return number


def _encode(number: int) -> Bytes:
    return np.array([number], dtype=np.uint32).view(np.uint8)
