"""What is larger in every respect that costs memory than a point that did not fit, does not fit either.

The order is partial: points that differ in a setting whose cost depends on the device are not compared.
"""

from __future__ import annotations

from tuner.runconfig import CACHE_TYPES, RunConfig

_GROWING = ("ctx_size", "batch_size", "ubatch_size", "parallel", "swa_full")
_SAME = ("model", "split_mode", "tensor_split", "main_gpu", "no_kv_offload", "op_offload", "load_mode", "numa")


def needs_as_much(candidate: RunConfig, failed: RunConfig) -> bool:
    """Whether `candidate` needs at least the memory of `failed`, setting by setting, both effective."""
    if any(getattr(candidate, name) != getattr(failed, name) for name in _SAME):
        return False
    if any(getattr(candidate, name) < getattr(failed, name) for name in _GROWING):
        return False
    if candidate.n_cpu_moe > failed.n_cpu_moe or not _offloads_as_much(candidate, failed):
        return False
    if candidate.flash_attn not in {failed.flash_attn, "off"}:
        return False
    return _is_as_precise(candidate.cache_type_k, failed.cache_type_k) and _is_as_precise(
        candidate.cache_type_v, failed.cache_type_v
    )


def _offloads_as_much(candidate: RunConfig, failed: RunConfig) -> bool:
    """More layers on the device cost more there; where the host was too small already, offloading may help."""
    if candidate.n_gpu_layers == failed.n_gpu_layers:
        return True
    if failed.n_gpu_layers == 0:
        return False
    return candidate.n_gpu_layers < 0 or 0 < failed.n_gpu_layers < candidate.n_gpu_layers


def _is_as_precise(candidate: str, failed: str) -> bool:
    return CACHE_TYPES.index(candidate) <= CACHE_TYPES.index(failed)
