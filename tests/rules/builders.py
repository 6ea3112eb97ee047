"""Situations for the checklist, written by hand: start from a healthy one and spoil what a case is about.

`make_case()` is a machine and a model in good order: eight cores, memory to spare, llama.cpp built for this CPU, a Q4_K model of
a billion parameters under llama-server's own settings. `make_blank()` knows nothing at all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tests.rules.pretended import Pretended
from tuner.hardware.record import (
    BuildFacts,
    CpuFacts,
    DeviceFacts,
    EnvironmentFacts,
    GpuFacts,
    HardwareProfile,
    LimitFacts,
    MemoryFacts,
    NumaNode,
)
from tuner.memory import Budget, find_budget, find_misfit
from tuner.model.spec import LayerSpec, ModelSpec
from tuner.rules.base import Finding, Rule, Situation
from tuner.rules.catalogue import find_rule
from tuner.runconfig import RunConfig, pad256
from tuner.space import SpaceSituation, settle_point
from tuner.space.traits import draw_effective_facts
from tuner.workload import Workload

GIB = 2**30
GOOD = Pretended()
TURN = Workload(name="turn", prompt_tokens=512, output_tokens=128)
SIMD = ("SSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2", "AVX512", "AVX512_VNNI")


def make_host(
    *,
    cores: int = 8,
    logical: int = 16,
    usable: int | None = None,
    available_bytes: int | None = 48 * GIB,
    devices: tuple[DeviceFacts, ...] = (),
    gpus: tuple[GpuFacts, ...] = (),
    build: dict[str, Any] | None = None,
    cpu: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
) -> HardwareProfile:
    """A quiet machine on mains; the dictionaries replace single facts."""
    threads = logical if usable is None else usable
    facts: dict[str, Any] = {
        "package_version": "0.3.36", "llama_cpp_version": "0.5.0", "simd": SIMD, "repack": True, "openmp": True,
        "supports_gpu_offload": bool(devices), "supports_mmap": True, "supports_mlock": True,
        "backends": tuple(dict.fromkeys(["CPU", *(each.backend or "" for each in devices)])), "devices": devices,
    }  # fmt: skip
    quiet: dict[str, Any] = {
        "system": "Linux", "kernel": "6.8.0", "load_1m": 0.1, "load_5m": 0.1, "load_15m": 0.1, "cpu_pressure": 0.0,
        "memory_pressure": 0.0, "io_pressure": 0.0, "power_source": "mains", "power_profile": "performance",
        "throttle_count": 0,
    }  # fmt: skip
    return HardwareProfile(
        cpu=CpuFacts(
            **(
                {
                    "model": "Pretended 8",
                    "arch": "x86_64",
                    "physical_cores": cores,
                    "logical_cpus": logical,
                    "sockets": 1,
                    "simd": SIMD,
                    "numa_nodes": (NumaNode(index=0, cpus=tuple(range(logical))),),
                    "governor": "performance",
                    "frequency_mhz": 4000.0,
                    "frequency_max_mhz": 4200.0,
                }
                | (cpu or {})
            )
        ),
        memory=MemoryFacts(
            **(
                {"total_bytes": 64 * GIB, "available_bytes": available_bytes, "swap_total_bytes": 8 * GIB, "swap_used_bytes": 0}
                | (memory or {})
            )
        ),
        limits=LimitFacts(
            **(
                {
                    "affinity_count": logical,
                    "memory_available_bytes": available_bytes,
                    "usable_threads": threads,
                    "usable_physical": min(cores, threads),
                }
                | (limits or {})
            )
        ),
        gpus=gpus,
        devices=devices,
        build=BuildFacts(**(facts | (build or {}))),
        environment=EnvironmentFacts(**(quiet | (environment or {}))),
        fingerprint="pretended",
        summary="8 cores, 64 GiB",
    )


def make_gpu(*, name: str = "CUDA0", backend: str = "CUDA", free_bytes: int | None = 24 * GIB) -> DeviceFacts:
    return DeviceFacts(name=name, backend=backend, total_bytes=free_bytes, free_bytes=free_bytes)


def make_model(
    *,
    quant: str = "Q4_K",
    parameters: int = 1_000_000_000,
    bits: float = 4.5,
    n_layer: int = 16,
    heads: int = 16,
    kv_heads: int = 4,
    head: int = 64,
    experts: int = 0,
    path: str = "",
    **facts: Any,
) -> ModelSpec:
    """A dense model (or one whose blocks are nine tenths experts), all weights of one format."""
    weights = int(parameters * bits / 8)
    block = int(weights * 0.9) // n_layer
    layer = LayerSpec(
        kind="attention", n_head=heads, n_head_kv=kv_heads, key_length=head, value_length=head, weight_bytes=block,
        expert_bytes=int(block * 0.9) if experts else 0,
    )  # fmt: skip
    where = path or f"/models/one-{quant.lower()}.gguf"
    plain: dict[str, Any] = {
        "path": where, "shards": (where,), "name": "One", "architecture": "llama", "quant": quant,
        "file_type_label": quant, "file_bytes": weights + 2**20, "weights_bytes": weights, "parameters": parameters,
        "bits_per_weight": bits, "bytes_by_type": ((quant, weights),), "n_layer": n_layer, "n_mtp_layers": 0,
        "n_embd": heads * head, "n_vocab": 32000, "context_length": 32768, "layers": (layer,) * n_layer, "n_swa": None,
        "v_elements_max": kv_heads * head, "kv_basis": "exact", "n_expert": experts, "n_expert_used": 2 if experts else 0,
        "n_expert_shared": 0, "rope_freq_base": None, "rope_scaling": None, "rope_scaling_factor": None,
        "rope_original_context": None, "token_embd_bytes": weights // 20, "token_embd_type": quant,
        "output_bytes": weights // 20, "tied_embeddings": False, "mtp_bytes": 0, "other_bytes": 0, "is_mla": False,
        "is_encoder_only": False, "flash_attn_forced_off": False, "n_tokens": 32000, "tokenizer_model": "gpt2",
        "has_chat_template": True, "identity": "0" * 64, "notes": (),
    }  # fmt: skip
    return ModelSpec(**(plain | facts))


def make_case(
    *,
    machine: HardwareProfile | None = None,
    model: ModelSpec | None = None,
    siblings: tuple[ModelSpec, ...] = (),
    workload: Workload = TURN,
    config: dict[str, Any] | None = None,
    speed: Pretended | None = GOOD,
    **more: Any,
) -> Situation:
    """A healthy situation, changed in what is told; `config` holds settings that differ from llama-server's own.

    `speed=None`: the machine was never calibrated. `more` are fields of Situation (symptom, promise_ttft_ms, measurement, …).
    """
    host, spec = machine or make_host(), model or make_model()
    point = _settle(host, spec, workload, config or {})
    budget = find_budget(host)
    files = {each.path: each for each in (spec, *siblings)}

    def misfit(asked: RunConfig) -> str | None:
        return find_misfit(files.get(asked.model, spec), asked, budget, machine=host)

    facts: dict[str, Any] = {
        "hardware": host,
        "model": spec,
        "siblings": siblings,
        "workload": workload,
        "config": point,
        "budget": budget,
        "find_misfit": misfit,
        "predict": speed.predict if speed else predict_nothing,
    }
    return Situation(**(facts | more))


def make_blank(**more: Any) -> Situation:
    """Nothing is known of machine and model, and nothing can be predicted."""
    bare = _blank_model()
    facts: dict[str, Any] = {
        "hardware": HardwareProfile(),
        "model": bare,
        "workload": TURN,
        "config": RunConfig(model=bare.path),
        "budget": Budget(host_bytes=None),
        "find_misfit": lambda _: None,
        "predict": predict_nothing,
    }
    return Situation(**(facts | more))


def predict_nothing(spec: ModelSpec, config: RunConfig, workload: Workload) -> None:
    """What a machine without figures predicts."""
    del spec, config, workload


def check_rule(code: str, situation: Situation) -> tuple[Finding, ...]:
    """What one rule says by itself."""
    return get_rule(code).check(situation)


def get_rule(code: str) -> Rule:
    """The rule of this code."""
    rule = find_rule(code)
    assert rule is not None, f"there is no rule {code}"
    return rule


def evidence_of(finding: Finding) -> dict[str, float | str]:
    """Evidence by what it is."""
    return {each.what: each.value for each in finding.evidence}


def _blank_model() -> ModelSpec:
    known = msgspec.structs.asdict(make_model())
    blank: dict[str, Any] = {
        "n_layer": None, "layers": (), "n_embd": None, "n_vocab": None, "context_length": None, "kv_basis": "unknown",
        "v_elements_max": None, "n_tokens": None, "tokenizer_model": None, "token_embd_type": None, "quant": "unknown",
        "file_type_label": None, "bytes_by_type": (), "token_embd_bytes": 0, "output_bytes": 0,
    }  # fmt: skip
    return ModelSpec(**(known | blank))


def _settle(host: HardwareProfile, spec: ModelSpec, workload: Workload, changes: dict[str, Any]) -> RunConfig:
    """llama-server's own settings for this machine and workload, as llama.cpp settles them."""
    slots = max(1, min(4, workload.users))
    threads = max(1, min(host.limits.usable_physical, host.limits.usable_threads))
    plain: dict[str, Any] = {
        "model": spec.path, "threads": threads, "threads_batch": threads, "parallel": slots,
        "ctx_size": pad256(workload.tokens_per_slot) * slots,
    }  # fmt: skip
    if "parallel" in changes and "ctx_size" not in changes:
        plain["ctx_size"] = pad256(workload.tokens_per_slot) * changes["parallel"]
    space = SpaceSituation(hardware=host, models=(spec,), workload=workload, goals=("latency",))
    return settle_point(RunConfig(**(plain | changes)), draw_effective_facts(space, spec))
