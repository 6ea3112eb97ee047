"""What llama.cpp would refuse, abort on or silently do otherwise, known before anything is started.

Follows llama_init_from_model and the checks of its tools (llama-context.cpp, common/arg.cpp). Pure: a point and a few facts
of its model give a reason in plain words, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tuner.runconfig import CACHE_TYPES, QUANTISED_CACHE_TYPES, RunConfig, pad_context

MOST_SLOTS: Final = 256
"""LLAMA_MAX_SEQ of llama.cpp."""

CACHE_BLOCK: Final = 32
"""Values that share a scale in every quantised type that a KV cache may have."""

LONG_CONTEXT: Final = 32_768
"""Tokens per slot above which a cache coarser than q8_0 is warned of."""

_COARSE_CACHE_TYPES: Final = QUANTISED_CACHE_TYPES - {"q8_0"}


class RefusalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether llama.cpp takes a point, for one model and workload."""

    head_sizes_k: tuple[int, ...] = ()
    """Distinct sizes of a K head over the layers that have a cache; empty when unknown or without cache."""
    head_sizes_v: tuple[int, ...] = ()
    """Distinct sizes of a V head over the layers that have a cache; empty when unknown or without cache."""
    one_cache_type: bool = False
    """K and V must have one type (MLA)."""
    flash_attn_possible: bool = True
    """False where the architecture forces flash attention off."""
    encoder_only: bool = False
    """The model makes embeddings and writes no text."""
    n_devices: int = 0
    """Devices that take layers."""
    context_length: int | None = None
    """Training context, tokens; None when the file does not say."""
    tokens_per_slot: int = 0
    """What the workload needs in one slot, tokens; 0 when nothing particular."""


Check = Callable[[RunConfig, RefusalFacts], str | None]


def find_refusal(config: RunConfig, facts: RefusalFacts) -> str | None:
    """Why this point cannot be run for this workload, in one sentence; None when nothing speaks against it."""
    for check in _CHECKS:
        reason = check(config, facts)
        if reason is not None:
            return reason
    return None


def find_warnings(config: RunConfig, facts: RefusalFacts) -> tuple[str, ...]:
    """What llama.cpp does, but only with a warning, and what it does without one although it costs answers."""
    return tuple(filter(None, (_warn_of_training(config, facts), _warn_of_coarse_cache(config))))


def _warn_of_training(config: RunConfig, facts: RefusalFacts) -> str:
    per_slot, trained = _cells_per_slot(config), facts.context_length
    if trained is None or per_slot <= trained:
        return ""
    return f"{per_slot} tokens per slot are more than the {trained} the model was trained with; answers may degrade."


def _warn_of_coarse_cache(config: RunConfig) -> str:
    """Errors of a rounded cache add up over the tokens that are attended to."""
    coarse = sorted({config.cache_type_k, config.cache_type_v} & _COARSE_CACHE_TYPES)
    per_slot = _cells_per_slot(config)
    if not coarse or per_slot <= LONG_CONTEXT:
        return ""
    return f"a cache of {' and '.join(coarse)} over {per_slot} tokens per slot loses details of what was read; q8_0 is safer."


def _check_kind(config: RunConfig, facts: RefusalFacts) -> str | None:
    del config
    return "this model makes embeddings and writes no text, so there is no decoding to tune" if facts.encoder_only else None


def _check_batches(config: RunConfig, facts: RefusalFacts) -> str | None:
    del facts
    if config.batch_size < 0 or config.ubatch_size < 0:
        return "batch_size and ubatch_size cannot be negative"
    if config.batch_size > 0:
        return None
    if config.ubatch_size == 0:
        return "batch_size and ubatch_size cannot both be 0"
    return "batch_size is 0, with which llama.cpp ends the process"


def _check_slots(config: RunConfig, facts: RefusalFacts) -> str | None:
    del facts
    if config.parallel < 1:
        return "parallel must be at least 1"
    return f"parallel is {config.parallel}; llama.cpp has at most {MOST_SLOTS} slots" if config.parallel > MOST_SLOTS else None


def _check_cache_types(config: RunConfig, facts: RefusalFacts) -> str | None:
    del facts
    for name, kind in (("cache_type_k", config.cache_type_k), ("cache_type_v", config.cache_type_v)):
        if kind not in CACHE_TYPES:
            return f"{name} {kind} is no cache type of llama.cpp ({', '.join(CACHE_TYPES)})"
    return None


def _check_one_type(config: RunConfig, facts: RefusalFacts) -> str | None:
    if not facts.one_cache_type or config.cache_type_k == config.cache_type_v:
        return None
    return f"this model does not support different K ({config.cache_type_k}) and V ({config.cache_type_v}) cache types"


def _check_flash_attn(config: RunConfig, facts: RefusalFacts) -> str | None:
    if config.cache_type_v not in QUANTISED_CACHE_TYPES:
        return None
    if not facts.flash_attn_possible:
        return "this architecture runs without flash attention, which a quantised V cache needs"
    return "a quantised V cache requires flash attention" if config.flash_attn == "off" else None


def _check_blocks(config: RunConfig, facts: RefusalFacts) -> str | None:
    sides = (("K", config.cache_type_k, facts.head_sizes_k), ("V", config.cache_type_v, facts.head_sizes_v))
    for side, kind, sizes in sides:
        uneven = [size for size in sizes if size % CACHE_BLOCK]
        if kind in QUANTISED_CACHE_TYPES and uneven:
            return (
                f"{side} cache type {kind} has blocks of {CACHE_BLOCK}, which do not divide the head size: "
                f"{uneven[0]} is not a multiple of {CACHE_BLOCK}"
            )
    return None


def _check_split(config: RunConfig, facts: RefusalFacts) -> str | None:
    if config.split_mode != "tensor":
        return None
    if facts.n_devices < 1:
        return "split_mode tensor needs at least one device"
    if config.flash_attn == "off" or not facts.flash_attn_possible:
        return "split_mode tensor needs flash attention"
    return None


def _check_context(config: RunConfig, facts: RefusalFacts) -> str | None:
    per_slot = _cells_per_slot(config)
    if config.ctx_size <= 0 or per_slot >= facts.tokens_per_slot:
        return None
    total = pad_context(config.ctx_size, config.parallel)
    need = pad_context(facts.tokens_per_slot, 1)
    return (
        f"ctx_size {total} over {config.parallel} slots is {per_slot} per slot, and the workload needs "
        f"{facts.tokens_per_slot}; ctx_size {need * config.parallel} would do"
    )


def _cells_per_slot(config: RunConfig) -> int:
    slots = max(1, config.parallel)
    return pad_context(config.ctx_size, slots) // slots if config.ctx_size > 0 else 0


_CHECKS: Final[tuple[Check, ...]] = (
    _check_kind,
    _check_batches,
    _check_slots,
    _check_cache_types,
    _check_one_type,
    _check_flash_attn,
    _check_blocks,
    _check_split,
    _check_context,
)
