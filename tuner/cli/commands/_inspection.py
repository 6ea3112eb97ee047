"""What `inspect` finds out: facts of the file, its memory by arithmetic, and llama.cpp's own projection where a child can ask.

Gathering only; rendering is the command's. Weights are never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tuner.errors import BadInputError
from tuner.hardware.record import HardwareProfile
from tuner.measure.projection import Projection, ask_projection
from tuner.memory import (
    Cause,
    Footprint,
    FrontEnd,
    ProjectorMemory,
    estimate_footprint,
    explain_misfit,
    find_budget,
    kv_table,
    largest_context,
)
from tuner.memory.cache import TableRow, use_cache_type
from tuner.model import ModelSpec, require_decoder
from tuner.runconfig import CACHE_TYPES, RunConfig

_CONTEXTS: Final = (4096, 8192, 16384, 32768, 65536, 131072)
_TABLE_TYPES: Final = ("f16", "q8_0", "q4_0")
_MOST_PROJECTED: Final = 2**20
_LEAST_PROJECTED: Final = 512


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """One model under one configuration on this machine."""

    model: ModelSpec
    """Facts from the header."""
    front_end: FrontEnd
    """Whose defaults and output sizes count."""
    config: RunConfig
    """The configuration that `footprint` is for."""
    footprint: Footprint
    """Memory by cause and device."""
    misfit: str | None
    """Why it does not fit this machine now; None when it fits or nobody can say."""
    kv_table: tuple[TableRow, ...]
    """KV bytes by context and cache type."""
    kv_at_full_context: int | None
    """KV bytes at the training context with the configuration's cache types; None: unknown."""
    largest_context: dict[str, int]
    """Cache type → largest ctx_size that fits this machine now, tokens; empty where the KV size is unknown."""
    refusal: str
    """Why this model cannot be tuned; "" when it can."""
    notes: tuple[str, ...]
    """What a reader should know."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        by_cause = {name: self.footprint.bytes_of(cause) for name, cause in _KEYS.items()}
        return {
            "model": msgspec.to_builtins(msgspec.structs.asdict(self.model) | {"layers": len(self.model.layers)}),
            "front_end": self.front_end,
            "config": self.config.as_dict(),
            **by_cause,
            "total_bytes": self.footprint.total_bytes,
            "footprint": self.footprint.as_dict(),
            "fits": self.misfit is None,
            "misfit": self.misfit,
            "kv_table": [msgspec.to_builtins(row) for row in self.kv_table],
            "kv_bytes_at_full_context": self.kv_at_full_context,
            "largest_context": self.largest_context,
            "tunable": not self.refusal,
            "notes": list(self.notes),
        }


_BESIDE: Final[tuple[Cause, ...]] = ("projector", "draft")
_KEYS: Final[dict[str, Any]] = {
    "kv_bytes": "kv",
    "recurrent_bytes": "recurrent",
    "weights_bytes": "weights",
    "compute_bytes": "compute",
    "output_bytes": "output",
}


def inspect_model(
    model: ModelSpec,
    config: RunConfig,
    front_end: FrontEnd,
    machine: HardwareProfile,
    *,
    reserve_bytes: int | None = None,
    projector: ProjectorMemory | None = None,
    draft: ModelSpec | None = None,
) -> Inspection:
    """Everything `inspect` shows of `model`; asks llama.cpp in a child, and goes on by arithmetic where that fails."""
    asked = _Asked(model, config, front_end)
    footprint = estimate_footprint(
        model,
        config,
        front_end=front_end,
        machine=machine,
        projected=asked.at(config),
        projector_bytes=projector.total_bytes if projector else None,
        draft=draft,
    )
    beside = sum(footprint.bytes_of(cause) or 0 for cause in _BESIDE)
    budget = find_budget(machine, reserve_bytes=reserve_bytes)
    refusal = _refuse(model)
    full = (
        kv_table(model, [model.context_length or 0], [config.cache_type_k], config=config)[0] if model.context_length else None
    )
    return Inspection(
        model=model,
        front_end=front_end,
        config=config,
        footprint=footprint,
        misfit=explain_misfit(footprint, budget),
        kv_table=kv_table(model, _pick_contexts(model, config), _TABLE_TYPES, config=config),
        kv_at_full_context=full.kv_bytes if full else None,
        largest_context={}
        if refusal or not model.kv_known or not model.has_kv
        else {
            kind: largest_context(
                model,
                config,
                budget,
                cache_type=kind,
                front_end=front_end,
                machine=machine,
                projected_of=asked.near,
                taken_bytes=beside,
            )
            for kind in CACHE_TYPES
        },
        refusal=refusal,
        notes=tuple(
            dict.fromkeys(
                (*footprint.notes, *asked.notes, *([projector.note] if projector else []), *([refusal] if refusal else []))
            )
        ),
    )


class _Asked:
    """llama.cpp's answers for one configuration and, for the search of the largest context, two contexts of each cache type."""

    def __init__(self, model: ModelSpec, config: RunConfig, front_end: FrontEnd) -> None:
        most = max(_LEAST_PROJECTED * 2, min(_MOST_PROJECTED, model.context_length or _MOST_PROJECTED))
        self._ends = (_LEAST_PROJECTED * max(1, config.parallel), most * max(1, config.parallel))
        wanted = [config, *(use_cache_type(config, kind).replace(ctx_size=ctx) for kind in CACHE_TYPES for ctx in self._ends)]
        points = list(dict.fromkeys(wanted))
        self._answers = dict(zip(points, ask_projection(points, front_end=front_end), strict=True))
        self.notes = _explain_silence(self._answers[config])

    def at(self, config: RunConfig) -> dict[str, int] | None:
        return self._answers[config].buffers

    def near(self, config: RunConfig) -> dict[str, int] | None:
        """Weights and compute buffers between the two contexts that were asked: a line above what grows in bends."""
        low, high = (self._answers.get(config.replace(ctx_size=ctx)) for ctx in self._ends)
        if low is None or high is None or low.buffers is None or high.buffers is None:
            return None
        first, last = self._ends
        share = (config.ctx_size - first) / (last - first)
        return _interpolate(low.buffers, high.buffers, share)


def _interpolate(low: Mapping[str, int], high: Mapping[str, int], share: float) -> dict[str, int]:
    keys = [key for key in high if not key.startswith("kv ")]
    return {key: round(low.get(key, 0) + share * (high[key] - low.get(key, 0))) for key in keys}


def _explain_silence(projection: Projection) -> tuple[str, ...]:
    if projection.buffers is not None:
        return ()
    return (f"llama.cpp gave no projection: {projection.reason}.",)


def _refuse(model: ModelSpec) -> str:
    try:
        require_decoder(model)
    except BadInputError as refusal:
        return refusal.message
    return ""


def _pick_contexts(model: ModelSpec, config: RunConfig) -> Sequence[int]:
    """Round contexts up to the training context, and the one asked for."""
    most = model.context_length or _CONTEXTS[-1]
    chosen = [config.ctx_size] if config.ctx_size else []
    return sorted({*(ctx for ctx in _CONTEXTS if ctx <= most), *chosen})
