"""A RunConfig in llama.cpp's terms, and what changing a setting costs: nothing, a new context, or a new load.

What would abort or crash the process instead of failing (a wrong cache type, n_batch 0) is refused here, before anything is
loaded. What llama.cpp refuses itself is left to it, so that the user reads its own words.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

import msgspec

from tuner.engines.base import EngineError, PrepareRequest
from tuner.engines.llama_cpp_python.devices import collect_devices
from tuner.engines.llama_cpp_python.native import Native
from tuner.runconfig import CACHE_TYPES, RunConfig

CACHE_TYPE_IDS: Final = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
"""ggml's number of each cache type; any other number aborts or crashes at the first decode."""

_FLASH_ATTN: Final = {"auto": -1, "off": 0, "on": 1}
_SPLIT_MODES: Final = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_LOAD_MODES: Final = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
NUMA_IDS: Final = {"off": 0, "distribute": 1, "isolate": 2, "numactl": 3}
_MOST_SLOTS: Final = 256

REPACK_SWITCH: Final = "ROOFTUNE_REPACK"
"""Environment variable; "off" loads weights without repacking, where a repacked kernel is not wanted."""


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that only a new load can change."""

    path: str
    n_gpu_layers: int
    split_mode: str
    main_gpu: int
    tensor_split: tuple[float, ...]
    load_mode: str
    n_cpu_moe: int
    rpc_servers: tuple[str, ...]


class ContextSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a new context changes; threads are live and not here."""

    ctx_size: int
    batch_size: int
    ubatch_size: int
    parallel: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    swa_full: bool
    no_kv_offload: bool
    op_offload: bool


class NativeModelParams:
    """llama_model_params with the arrays it points to, which must live until the load is over."""

    def __init__(self, native: Native, settings: ModelSettings) -> None:
        self.value: Any = native.api.llama_model_default_params()
        self.value.n_gpu_layers = settings.n_gpu_layers
        self.value.split_mode = _SPLIT_MODES[settings.split_mode]
        self.value.main_gpu = settings.main_gpu
        self.value.load_mode = _LOAD_MODES[settings.load_mode]
        self.value.use_extra_bufts = not native.amx_crashes and os.environ.get(REPACK_SWITCH, "on") != "off"
        self._split = _fill_split(native, settings.tensor_split)
        self._overrides = _build_overrides(native, settings.n_cpu_moe)
        self._devices = collect_devices(native, settings.rpc_servers)
        if self._split is not None:
            self.value.tensor_split = self._split
        if self._overrides is not None:
            self.value.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        if self._devices is not None:
            self.value.devices = ctypes.cast(self._devices, ctypes.c_void_p)


class _TensorOverride(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


def check_config(config: RunConfig) -> None:
    """Raise EngineError("invalid") for values that would abort, crash or silently mean something else."""
    for key in ("cache_type_k", "cache_type_v"):
        if getattr(config, key) not in CACHE_TYPE_IDS:
            raise EngineError("invalid", f"{key} {getattr(config, key)!r} is none of {', '.join(CACHE_TYPES)}")
    for key, value, least in (
        ("batch_size", config.batch_size, 1),
        ("ubatch_size", config.ubatch_size, 0),
        ("threads", config.threads, 1),
        ("threads_batch", config.threads_batch, 1),
        ("parallel", config.parallel, 1),
        ("ctx_size", config.ctx_size, 0),
    ):
        if value < least:
            raise EngineError("invalid", f"{key} is {value}, but must be {least} or more")
    if config.parallel > _MOST_SLOTS:
        raise EngineError("invalid", f"parallel is {config.parallel}, but llama.cpp has at most {_MOST_SLOTS} slots")


def pick_model_settings(request: PrepareRequest) -> ModelSettings:
    """What of the request decides the load."""
    config = request.config
    return ModelSettings(
        path=config.model,
        n_gpu_layers=config.n_gpu_layers,
        split_mode=config.split_mode,
        main_gpu=config.main_gpu,
        tensor_split=config.tensor_split,
        load_mode=config.load_mode,
        n_cpu_moe=config.n_cpu_moe,
        rpc_servers=request.rpc_servers,
    )


def pick_context_settings(config: RunConfig) -> ContextSettings:
    """What of the point decides the context."""
    return ContextSettings(
        ctx_size=config.ctx_size,
        batch_size=config.batch_size,
        ubatch_size=config.ubatch_size,
        parallel=config.parallel,
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
        flash_attn=config.flash_attn,
        swa_full=config.swa_full,
        no_kv_offload=config.no_kv_offload,
        op_offload=config.op_offload,
    )


def build_context_params(native: Native, settings: ContextSettings, *, threads: int, threads_batch: int) -> Any:
    """llama_context_params as llama-server sets them: outputs for one token a slot, slots with caches of their own."""
    params = native.api.llama_context_default_params()
    params.n_ctx = settings.ctx_size
    params.n_batch = settings.batch_size
    params.n_ubatch = settings.ubatch_size
    params.n_seq_max = settings.parallel
    params.n_outputs_max = settings.parallel
    params.type_k = CACHE_TYPE_IDS[settings.cache_type_k]
    params.type_v = CACHE_TYPE_IDS[settings.cache_type_v]
    params.flash_attn_type = _FLASH_ATTN[settings.flash_attn]
    params.swa_full = settings.swa_full
    params.offload_kqv = not settings.no_kv_offload
    params.op_offload = settings.op_offload
    params.kv_unified = False
    params.no_perf = True
    params.n_threads = threads
    params.n_threads_batch = threads_batch
    return params


def _fill_split(native: Native, split: tuple[float, ...]) -> Any:
    if not split:
        return None
    most = int(native.api.llama_max_devices())
    if len(split) > most:
        raise EngineError("invalid", f"tensor_split names {len(split)} devices, but llama.cpp has room for {most}")
    return (ctypes.c_float * most)(*split)


def _build_overrides(native: Native, n_cpu_moe: int) -> Any:
    """Expert tensors of the first `n_cpu_moe` layers in host memory; the list ends with an empty entry."""
    if n_cpu_moe <= 0:
        return None
    host = native.call_pointer("ggml_backend_cpu_buffer_type")
    patterns = [rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode() for layer in range(n_cpu_moe)]
    entries = [_TensorOverride(pattern, host) for pattern in patterns]
    return (_TensorOverride * (n_cpu_moe + 1))(*entries, _TensorOverride(None, None))
