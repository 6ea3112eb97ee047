"""Reads llama.cpp's own log: what it allocated where, what it decided, and its words when it refuses.

Every line from INFO up goes on to the given writer (the parent keeps the tail). DEBUG is dropped: it is thousands of lines
per context. Buffer sizes are printed by llama.cpp with two decimals of a MiB, so they are exact to 5 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_DEBUG: Final = 1
_WARN: Final = 3
_ERROR: Final = 4
_CONTINUED: Final = 5
_MOST_KEPT: Final = 200

_BUFFER: Final = re.compile(r":\s+(\S+)\s+(model|KV|RS|compute|output|DSV4 .*state) buffer size =\s*([\d.]+) MiB")
_CAUSES: Final = {"model": "weights", "KV": "kv", "RS": "state", "compute": "compute", "output": "output"}
_OUT_OF_MEMORY: Final = re.compile(
    r"bad_alloc|out of memory|(failed|unable) to alloc|cannot allocate|allocation failed", re.IGNORECASE
)


class NativeLog:
    """Collects what the log says since the last `start_model` and `start_context`."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._level = _DEBUG
        self._pending = ""
        self._complaints: list[str] = []
        self._model_buffers: dict[str, int] = {}
        self._context_buffers: dict[str, int] = {}
        self.flash_attn: str | None = None

    def start_model(self) -> None:
        """Forget what was said about the former model."""
        self._complaints.clear()
        self._model_buffers.clear()
        self.start_context()

    def start_context(self) -> None:
        """Forget what was said about the former context."""
        self._complaints.clear()
        self._context_buffers.clear()
        self.flash_attn = None

    def take(self, level: int, text: str) -> None:
        """One fragment as llama.cpp logs it; a line may come in several."""
        if level != _CONTINUED:
            self._level = level
        if self._level <= _DEBUG:
            return
        self._pending += text
        *lines, self._pending = self._pending.split("\n")
        for line in lines:
            self._take_line(line)

    @property
    def buffers(self) -> dict[str, int]:
        """Bytes by cause and device, such as "kv CPU", of the present model and context."""
        return {**self._model_buffers, **self._context_buffers}

    @property
    def complaint(self) -> str:
        """llama.cpp's own words about what went wrong since the last start; "" when it said nothing."""
        return "; ".join(self._complaints[-3:])

    @property
    def says_out_of_memory(self) -> bool:
        """The complaint is about memory that could not be had."""
        return any(_OUT_OF_MEMORY.search(line) for line in self._complaints)

    def _take_line(self, line: str) -> None:
        text = line.strip().lstrip(".")
        if not text:
            return
        self._write(text + "\n")
        if self._level in (_WARN, _ERROR) and (self._level == _ERROR or _OUT_OF_MEMORY.search(text)):
            self._complaints.append(_drop_function(text))
            del self._complaints[:-_MOST_KEPT]
        self._read_buffer(text)
        self._read_flash_attn(text)

    def _read_buffer(self, text: str) -> None:
        if match := _BUFFER.search(text):
            device, kind, size = match.group(1), match.group(2), round(float(match.group(3)) * 2**20)
            key = f"{_CAUSES.get(kind, 'state')} {device}"
            if kind == "model":
                self._model_buffers[key] = self._model_buffers.get(key, 0) + size
            elif kind in {"compute", "output"}:
                # said anew whenever the buffer is reserved anew
                self._context_buffers[key] = size
            else:
                self._context_buffers[key] = self._context_buffers.get(key, 0) + size

    def _read_flash_attn(self, text: str) -> None:
        if re.search(r"flash_attn\s+= enabled|Flash Attention enabled|enabling flash_attn", text):
            self.flash_attn = "on"
        elif re.search(r"flash_attn\s+= disabled|Flash Attention not supported", text):
            self.flash_attn = "off"


def _drop_function(line: str) -> str:
    """The line without the name of the C function that said it."""
    return re.sub(r"^[\w:~]+:\s+", "", line)
