"""One immutable point of the search: the settings of llama.cpp under their own names.

Two points that llama.cpp would run alike are one point: `resolve_effective` clamps and normalises as llama.cpp does
(llama-context.cpp), and equality and hash of the result are a point's identity everywhere.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

FlashAttn = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer", "row", "tensor"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
Numa = Literal["off", "distribute", "isolate", "numactl"]

CONTEXT_PADDING: Final = 256
"""llama.cpp pads every context to a multiple of this many cells."""

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""KV cache types that llama.cpp accepts, most precise first."""

QUANTISED_CACHE_TYPES: Final = frozenset({"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"})


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one run. The defaults are llama-server's own, where they do not depend on machine or workload."""

    model: str = ""
    """Path of the GGUF file (its first shard); "" where only one file is in question."""
    n_gpu_layers: int = -1
    """Units offloaded, counted from the end, the output layer first; -1 means all (n_layer + 1)."""
    ctx_size: int = 0
    """Cells of context over all slots, tokens; 0 means the model's training context."""
    batch_size: int = 2048
    """Most tokens handed to one decode call (logical batch)."""
    ubatch_size: int = 512
    """Most tokens computed at once (physical batch)."""
    cache_type_k: str = "f16"
    """Type of the K cache, one of CACHE_TYPES."""
    cache_type_v: str = "f16"
    """Type of the V cache; a quantised one needs flash attention."""
    flash_attn: FlashAttn = "auto"
    """Flash attention; auto lets llama.cpp decide by device."""
    threads: int = 0
    """Threads while one token is computed (decode of one slot); 0 means not yet chosen."""
    threads_batch: int = 0
    """Threads while several tokens are computed (prefill, several slots); 0 means the same as `threads`."""
    parallel: int = 1
    """Slots, that is sequences decoded together; the context is divided among them."""
    n_cpu_moe: int = 0
    """Experts of this many first layers stay in host memory."""
    split_mode: SplitMode = "layer"
    """How several GPUs share the model."""
    tensor_split: tuple[float, ...] = ()
    """Share of each device; () means by free memory."""
    main_gpu: int = 0
    """Device for split_mode none, and for small tensors with row."""
    no_kv_offload: bool = False
    """Keep the KV cache in host memory."""
    swa_full: bool = False
    """Keep the whole context for sliding-window layers too."""
    op_offload: bool = True
    """Let big batches of host weights be computed on the device."""
    load_mode: LoadMode = "auto"
    """How the file comes into memory."""
    numa: Numa = "off"
    """NUMA policy; fixed for the life of a process."""

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with some settings changed."""
        return msgspec.structs.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by llama.cpp's names."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in msgspec.structs.asdict(self).items()}


class EffectiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which points are the same point on this machine with this model."""

    n_layer: int | None
    """Blocks of the model; None when the file does not say."""
    context_length: int | None
    """Training context, tokens; None when the file does not say."""
    has_device: bool
    """A device other than the CPU takes layers."""
    n_devices: int = 0
    """How many such devices there are."""
    is_moe: bool = False
    """The model has experts."""
    has_window: bool = False
    """The model has sliding-window layers."""
    flash_attn_auto: FlashAttn = "on"
    """What flash_attn auto becomes here; "auto" when unknown."""
    flash_attn_possible: bool = True
    """False where the architecture forces flash attention off (grok)."""


def resolve_effective(config: RunConfig, facts: EffectiveFacts) -> RunConfig:
    """The point that llama.cpp really runs when told `config`.

    Follows llama_init_from_model of llama.cpp: n_batch is cut to the context before padding, n_ubatch to n_batch, 0 means
    the same; the context is padded per slot; n_gpu_layers above n_layer + 1 is n_layer + 1; without a device the device
    settings mean nothing and take their defaults.
    """
    ctx = config.ctx_size or facts.context_length or config.ctx_size
    batch = min(config.batch_size, ctx) if ctx else config.batch_size
    ubatch = min(batch, config.ubatch_size or batch)
    settled = config.replace(
        ctx_size=pad_context(ctx, config.parallel) if ctx else ctx,
        batch_size=batch,
        ubatch_size=ubatch,
        threads_batch=config.threads_batch or config.threads,
        flash_attn=_settle_flash_attn(config, facts),
        swa_full=config.swa_full and facts.has_window,
        n_cpu_moe=_settle_moe(config, facts),
        n_gpu_layers=_settle_layers(config, facts),
    )
    return settled if facts.has_device else _drop_device_settings(settled)


def pad_context(ctx_size: int, parallel: int) -> int:
    """Cells over all slots after llama.cpp's padding: pad256(pad256(ctx) / slots) × slots, tokens."""
    slots = max(1, parallel)
    return pad256(max(1, pad256(ctx_size) // slots)) * slots


def pad256(cells: int) -> int:
    """`cells` rounded up to a multiple of 256."""
    return -(-cells // CONTEXT_PADDING) * CONTEXT_PADDING


def _settle_flash_attn(config: RunConfig, facts: EffectiveFacts) -> FlashAttn:
    if not facts.flash_attn_possible:
        return "off"
    if config.flash_attn != "auto":
        return config.flash_attn
    return "on" if config.cache_type_v in QUANTISED_CACHE_TYPES else facts.flash_attn_auto


def _settle_layers(config: RunConfig, facts: EffectiveFacts) -> int:
    if not facts.has_device:
        return 0
    if facts.n_layer is None:
        return config.n_gpu_layers
    full = facts.n_layer + 1
    return full if config.n_gpu_layers < 0 else min(config.n_gpu_layers, full)


def _settle_moe(config: RunConfig, facts: EffectiveFacts) -> int:
    if not facts.is_moe or not facts.has_device:
        return 0
    return min(config.n_cpu_moe, facts.n_layer) if facts.n_layer is not None else config.n_cpu_moe


def _drop_device_settings(config: RunConfig) -> RunConfig:
    return config.replace(split_mode="layer", tensor_split=(), main_gpu=0, no_kv_offload=False, op_offload=True)
