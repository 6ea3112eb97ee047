"""What memory a configuration takes: one part per cause and place, each saying how well it is known."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Basis = Literal["exact", "asked", "at most", "at least"]
"""exact: arithmetic on the file's facts; asked: llama.cpp's own projection; at most, at least: bounds, and said to be so."""

Cause = Literal["weights", "file pages", "kv", "recurrent", "compute", "output", "projector", "draft"]
FrontEnd = Literal["llama-server", "llama-cpp-python"]

HOST: Final = "CPU"
"""Where everything is that no other device holds: main memory."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Memory for one cause in one place."""

    cause: Cause
    """What it is for."""
    device: str
    """Name in llama.cpp's device list; "CPU" is main memory."""
    n_bytes: int | None
    """Bytes; None: unknown, which is never taken for 0."""
    basis: Basis
    """How well `n_bytes` is known."""


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """All memory that one configuration of one model takes under one front end."""

    parts: tuple[Part, ...]
    """By cause and device; causes that take nothing may be missing."""
    notes: tuple[str, ...] = ()
    """What is not in the parts, and what a reader should know, one sentence each."""

    @property
    def total_bytes(self) -> int | None:
        """Sum over all parts; None when a part is unknown."""
        return _total(self.parts)

    @property
    def known_bytes(self) -> int:
        """Sum over the parts that are known: at least this much is needed."""
        return sum(part.n_bytes for part in self.parts if part.n_bytes is not None and part.basis != "at most")

    @property
    def basis(self) -> Basis:
        """The weakest basis among the parts."""
        order: tuple[Basis, ...] = ("exact", "asked", "at most", "at least")
        return max((part.basis for part in self.parts), key=order.index, default="exact")

    @property
    def devices(self) -> tuple[str, ...]:
        """Places that hold something, main memory first."""
        names = dict.fromkeys(part.device for part in self.parts)
        return tuple(sorted(names, key=lambda name: (name != HOST, name)))

    def bytes_of(self, cause: Cause) -> int | None:
        """Bytes for one cause over all devices; None when unknown."""
        return _total(part for part in self.parts if part.cause == cause)

    def bytes_on(self, device: str) -> int | None:
        """Bytes on one device over all causes; None when unknown."""
        return _total(part for part in self.parts if part.device == device)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "total_bytes": self.total_bytes,
            "basis": self.basis,
            "by_device": {device: self.bytes_on(device) for device in self.devices},
            "parts": [
                {"cause": part.cause, "device": part.device, "bytes": part.n_bytes, "basis": part.basis} for part in self.parts
            ],
            "notes": list(self.notes),
        }


def _total(parts: Any) -> int | None:
    total = 0
    for part in parts:
        if part.n_bytes is None:
            return None
        total += part.n_bytes
    return total
