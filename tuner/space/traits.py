"""What the space needs to know of models and devices, drawn from their facts in one place."""

from __future__ import annotations

from typing import Final

from tuner.model import ModelSpec
from tuner.runconfig import EffectiveFacts, FlashAttn, pad256
from tuner.space.base import SpaceSituation
from tuner.space.refusal import MOST_SLOTS, RefusalFacts

_FLASH_BACKENDS: Final = frozenset({"CUDA", "ROCm", "MUSA", "Metal", "MTL"})
"""Backends whose flash attention covers the common head sizes, so that auto comes out as on."""

_MOST_DEFAULT_SLOTS: Final = 4
"""llama-server's own number of slots when none is given."""


def count_devices(situation: SpaceSituation) -> int:
    """Devices that take layers, remote ones included."""
    return len(situation.hardware.devices) + situation.rpc_devices


def count_default_slots(situation: SpaceSituation) -> int:
    """Slots of the baseline: one for one user, up to four for several."""
    return max(1, min(_MOST_DEFAULT_SLOTS, situation.workload.users))


def find_context_per_slot(situation: SpaceSituation) -> int:
    """Cells that one slot of this workload needs after padding, tokens."""
    return pad256(situation.workload.tokens_per_slot)


def count_prompt_tokens(situation: SpaceSituation) -> int:
    """Most prompt tokens that can be waiting at once: P for each slot that may be in use."""
    return situation.workload.prompt_tokens * min(situation.workload.users, MOST_SLOTS)


def find_quietest_threads(situation: SpaceSituation) -> int:
    """llama-server's own thread count within this process's limits: physical cores, fast ones where there are two kinds."""
    limits = situation.hardware.limits
    return max(1, min(limits.usable_physical, limits.usable_threads))


def has_cache(situation: SpaceSituation) -> bool:
    """Some layer of some given model keeps a KV cache."""
    return any(spec.has_kv or not spec.layers for spec in situation.models)


def has_experts(situation: SpaceSituation) -> bool:
    return any(spec.is_moe for spec in situation.models)


def has_window(situation: SpaceSituation) -> bool:
    """Some layer of some given model attends to a sliding window only."""
    return any(spec.n_swa is not None for spec in situation.models)


def has_one_cache_type(situation: SpaceSituation) -> bool:
    """K and V must be of one type (MLA keeps keys only)."""
    return any(spec.is_mla for spec in situation.models)


def can_use_flash_attn(situation: SpaceSituation) -> bool:
    """False where llama.cpp turns flash attention off for some given model, whatever is asked."""
    return not any(spec.flash_attn_forced_off for spec in situation.models)


def count_units(situation: SpaceSituation) -> int | None:
    """The blocks that n_gpu_layers counts, the most of all given models; None when some file does not say."""
    counts = [spec.n_layer_all for spec in situation.models]
    known = [count for count in counts if count is not None]
    return max(known) if known and len(known) == len(counts) else None


def cached_head_sizes(spec: ModelSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Distinct K and V head sizes over the layers that keep a cache."""
    layers = [layer for layer in spec.layers if layer.k_elements != 0]
    return (
        tuple(sorted({layer.key_length for layer in layers if layer.key_length})),
        tuple(sorted({layer.value_length for layer in layers if layer.value_length and layer.caches_values})),
    )


def settle_auto_flash_attn(situation: SpaceSituation) -> FlashAttn:
    """What flash_attn auto comes out as: on wherever the backend has the kernels; "auto" when only a run can tell."""
    backends = {device.backend or "" for device in situation.hardware.devices}
    return "on" if backends <= _FLASH_BACKENDS and not situation.rpc_devices else "auto"


def draw_effective_facts(situation: SpaceSituation, spec: ModelSpec) -> EffectiveFacts:
    """What decides which points are one point for this model here."""
    n_devices = count_devices(situation)
    return EffectiveFacts(
        n_layer=spec.n_layer_all,
        context_length=spec.context_length,
        has_device=n_devices > 0,
        n_devices=n_devices,
        is_moe=spec.is_moe,
        has_window=spec.n_swa is not None,
        flash_attn_auto=settle_auto_flash_attn(situation),
        flash_attn_possible=not spec.flash_attn_forced_off,
    )


def draw_refusal_facts(situation: SpaceSituation, spec: ModelSpec) -> RefusalFacts:
    """What decides whether llama.cpp takes a point of this model here."""
    sizes_k, sizes_v = cached_head_sizes(spec)
    return RefusalFacts(
        head_sizes_k=sizes_k,
        head_sizes_v=sizes_v,
        one_cache_type=spec.is_mla,
        flash_attn_possible=not spec.flash_attn_forced_off,
        encoder_only=spec.is_encoder_only,
        n_devices=count_devices(situation),
        context_length=spec.context_length,
        tokens_per_slot=situation.workload.tokens_per_slot,
    )
