"""Machines, models and situations written by hand, through the real records: only what matters to a test is told."""

from __future__ import annotations

from typing import Any

from tuner.hardware.record import (
    BuildFacts,
    CpuFacts,
    DeviceFacts,
    HardwareProfile,
    LimitFacts,
    NumaNode,
)
from tuner.model.spec import LayerSpec, ModelSpec
from tuner.space import SearchSpace, SpaceFile, SpaceSituation, build_space, parse_settings, read_space
from tuner.workload import Workload

ONE_TURN = Workload(name="turn", prompt_tokens=512, output_tokens=128)
GIB = 2**30


def make_machine(
    *,
    usable: int = 4,
    physical: int | None = None,
    logical: int | None = None,
    gpus: int = 0,
    backend: str = "CUDA",
    can_offload: bool | None = None,
    nodes: int = 1,
    available_bytes: int | None = 64 * GIB,
) -> HardwareProfile:
    """`usable` threads on `physical` cores; `gpus` devices that take layers."""
    cores = usable if physical is None else physical
    devices = tuple(DeviceFacts(name=f"{backend}{i}", backend=backend) for i in range(gpus))
    return HardwareProfile(
        cpu=CpuFacts(
            physical_cores=cores,
            logical_cpus=logical or max(usable, cores),
            numa_nodes=tuple(NumaNode(index=i, cpus=(i,)) for i in range(nodes)),
        ),
        limits=LimitFacts(usable_threads=usable, usable_physical=min(cores, usable), memory_available_bytes=available_bytes),
        devices=devices,
        build=BuildFacts(supports_gpu_offload=bool(gpus) if can_offload is None else can_offload, devices=devices),
    )


def make_layer(*, kind: str = "attention", head: int = 64, head_v: int | None = None, mla: bool = False) -> LayerSpec:
    return LayerSpec(
        kind=kind,
        n_head=8,
        n_head_kv=8 if kind in ("attention", "sliding") else 0,
        key_length=head,
        value_length=head if head_v is None else head_v,
        caches_values=not mla,
        recurrent_s=0 if kind != "recurrent" else 4096,
    )


def make_spec(
    *,
    path: str = "/models/model.gguf",
    architecture: str = "llama",
    n_layer: int | None = 28,
    layers: tuple[LayerSpec, ...] | None = None,
    context_length: int | None = 8192,
    **facts: Any,
) -> ModelSpec:
    """A dense model with 64-wide heads unless told otherwise."""
    plain: dict[str, Any] = {
        "shards": (path,), "name": path.rsplit("/", 1)[-1], "quant": "Q8_0", "file_type_label": None, "file_bytes": GIB,
        "weights_bytes": GIB, "parameters": GIB, "bits_per_weight": 8.0, "bytes_by_type": (("Q8_0", GIB),), "n_mtp_layers": 0,
        "n_embd": 512, "n_vocab": 32000, "n_swa": None, "v_elements_max": 512, "kv_basis": "exact", "n_expert": 0,
        "n_expert_used": 0, "n_expert_shared": 0, "rope_freq_base": None, "rope_scaling": None, "rope_scaling_factor": None,
        "rope_original_context": None, "token_embd_bytes": 0, "token_embd_type": None, "output_bytes": 0,
        "tied_embeddings": False, "mtp_bytes": 0, "other_bytes": 0, "is_mla": False, "is_encoder_only": False,
        "flash_attn_forced_off": False, "n_tokens": 32000, "tokenizer_model": "llama", "has_chat_template": False,
        "identity": "0" * 64, "notes": (),
    }  # fmt: skip
    blocks = layers if layers is not None else (make_layer(),) * (n_layer or 0)
    return ModelSpec(
        path=path, architecture=architecture, n_layer=n_layer, layers=blocks, context_length=context_length, **(plain | facts)
    )


def make_situation(
    *,
    machine: HardwareProfile | None = None,
    models: tuple[ModelSpec, ...] | None = None,
    workload: Workload = ONE_TURN,
    goals: tuple[str, ...] = ("latency",),
    **more: Any,
) -> SpaceSituation:
    return SpaceSituation(
        hardware=machine or make_machine(),
        models=models or (make_spec(),),
        workload=workload,
        goals=goals,
        **more,
    )


def write_space(dimensions: str) -> SpaceFile:
    """A space file whose dimensions are these YAML lines."""
    lines = "".join(f"  {line.strip()}\n" for line in dimensions.strip().splitlines())
    return read_space(f"name: mine\ndimensions:\n{lines}", source="mine.yaml")


def make_space(dimensions: str, situation: SpaceSituation | None = None, *, settings: tuple[str, ...] = ()) -> SearchSpace:
    """The space of these YAML lines, in a plain situation unless told otherwise, with --set `settings`."""
    return build_space(situation or make_situation(), write_space(dimensions), fixed=parse_settings(settings))
