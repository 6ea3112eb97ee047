"""Which points are one point: llama.cpp's own clamping, and settings that mean nothing beside the others.

`resolve_effective` does what llama.cpp does to each setting; here follows what a setting's neighbours leave of it. The result
is a fixed point of both, so equality of settled points is identity everywhere.
"""

from __future__ import annotations

from tuner.runconfig import EffectiveFacts, RunConfig, resolve_effective


def settle_point(config: RunConfig, facts: EffectiveFacts) -> RunConfig:
    """The point that is really run when `config` is asked for."""
    return _drop_idle(resolve_effective(config, facts), facts)


def _drop_idle(config: RunConfig, facts: EffectiveFacts) -> RunConfig:
    if not facts.has_device:
        return config
    if config.n_gpu_layers == 0:
        return config.replace(n_cpu_moe=0, no_kv_offload=False, split_mode="layer", tensor_split=(), main_gpu=0)
    moe = 0 if _moves_no_expert(config, facts) else config.n_cpu_moe
    if facts.n_devices < 2:
        split = "layer" if config.split_mode == "none" else config.split_mode
        return config.replace(n_cpu_moe=moe, split_mode=split, tensor_split=(), main_gpu=0)
    return config.replace(
        n_cpu_moe=moe,
        tensor_split=() if config.split_mode == "none" else config.tensor_split,
        main_gpu=config.main_gpu if config.split_mode in ("none", "row") else 0,
    )


def _moves_no_expert(config: RunConfig, facts: EffectiveFacts) -> bool:
    """The blocks whose experts are to stay are in main memory anyway.

    With several devices the mere presence of such an override changes how llama.cpp pipelines, so it counts there.
    """
    if facts.n_layer is None or facts.n_devices > 1 or config.n_gpu_layers < 0:
        return False
    return config.n_cpu_moe <= facts.n_layer + 1 - config.n_gpu_layers
