"""Where memory goes, what bounds it, and what is said when it is not enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders.gguf_files import F16, F32, Tensor, write_facts
from tuner.hardware.record import (
    BuildFacts,
    DeviceFacts,
    EnvironmentFacts,
    GpuFacts,
    GpuProcess,
    HardwareProfile,
    LimitFacts,
)
from tuner.memory import (
    Budget,
    Footprint,
    Part,
    count_offloaded,
    estimate_footprint,
    explain_misfit,
    find_budget,
    find_misfit,
    kv_bytes,
    largest_context,
    place_layers,
)
from tuner.memory.compute import attention_scratch_bytes
from tuner.model import ModelSpec, read_model
from tuner.runconfig import RunConfig

GIB = 2**30
N_LAYER = 28
ONE_GPU = HardwareProfile(
    limits=LimitFacts(memory_available_bytes=32 * GIB), devices=(DeviceFacts(name="CUDA0", free_bytes=8 * GIB),)
)
NO_GPU = HardwareProfile(limits=LimitFacts(memory_available_bytes=32 * GIB))


def make(folder: Path, *, tied: bool = True, experts: bool = False, **changes: Any) -> ModelSpec:
    facts = {
        "block_count": N_LAYER,
        "embedding_length": 2048,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "context_length": 32768,
        "vocab_size": 32000,
        **changes,
    }
    tensors: list[Tensor] = [("token_embd.weight", (2048, 32000), F16), ("output_norm.weight", (2048,), F32)]
    tensors += [] if tied else [("output.weight", (2048, 32000), F16)]
    for i in range(N_LAYER):
        tensors.append((f"blk.{i}.attn_q.weight", (2048, 2048), F16))
        tensors += [(f"blk.{i}.ffn_up_exps.weight", (2048, 512, 8), F16)] if experts else []
    return read_model(write_facts(folder / "model.gguf", "llama", facts, tensors))


BLOCK = 2048 * 2048 * 2
EXPERTS = 2048 * 512 * 8 * 2
EMBEDDING = 131_072_000
NORM = 2048 * 4


@pytest.mark.parametrize(("asked", "offloaded"), [(0, 0), (1, 1), (28, 28), (29, 29), (30, 29), (999, 29), (-1, 29)])
def test_layers_are_counted_from_the_end(asked: int, offloaded: int) -> None:
    """The range is 0 to n_layer + 1; what is above means all."""
    assert count_offloaded(N_LAYER, asked) == offloaded


def test_one_layer_is_the_output_alone(tmp_path: Path) -> None:
    """No block and no cache on the device; all units with one more than the blocks."""
    model = make(tmp_path, tied=False)
    one = place_layers(model, RunConfig(n_gpu_layers=1), ONE_GPU)
    assert set(one.blocks) == {"CPU"}
    assert one.output == "CUDA0"
    footprint = estimate_footprint(model, RunConfig(ctx_size=4096, n_gpu_layers=1), machine=ONE_GPU)
    assert [part.cause for part in footprint.parts if part.device == "CUDA0"] == ["weights", "compute"]
    two = place_layers(model, RunConfig(n_gpu_layers=2), ONE_GPU)
    assert two.blocks == ("CPU",) * 27 + ("CUDA0",)
    assert set(place_layers(model, RunConfig(n_gpu_layers=29), ONE_GPU).blocks) == {"CUDA0"}


@pytest.mark.parametrize(("ngl", "on_device", "in_all"), [(0, 0, EMBEDDING), (1, EMBEDDING, 2 * EMBEDDING)])
def test_tied_embedding_is_copied_to_the_device(tmp_path: Path, ngl: int, on_device: int, in_all: int) -> None:
    """The input embedding stays in main memory, the output's copy goes with the output."""
    footprint = estimate_footprint(make(tmp_path), RunConfig(ctx_size=512, n_gpu_layers=ngl), machine=ONE_GPU)
    weights = {part.device: part.n_bytes for part in footprint.parts if part.cause == "weights"}
    assert weights.get("CUDA0", 0) == on_device
    assert footprint.bytes_of("weights") == in_all + NORM + N_LAYER * BLOCK


def test_repacked_embedding_is_copied_in_main_memory(tmp_path: Path) -> None:
    """A layout for the CPU's vector units is a second copy; with a device present there is none."""
    from tests.builders.gguf_files import Q4_0

    facts = {"block_count": 1, "embedding_length": 256, "attention.head_count": 4, "context_length": 512, "vocab_size": 1024}
    tensors: list[Tensor] = [("token_embd.weight", (256, 1024), Q4_0), ("blk.0.attn_q.weight", (256, 256), F16)]
    model = read_model(write_facts(tmp_path / "m.gguf", "llama", facts, tensors))
    build = BuildFacts(repack=True, simd=("AVX2",))
    plain = estimate_footprint(model, RunConfig(ctx_size=512)).bytes_of("weights")
    packed = estimate_footprint(model, RunConfig(ctx_size=512), machine=HardwareProfile(build=build)).bytes_of("weights")
    assert plain is not None
    assert packed == plain + 256 * 1024 // 32 * 18


def test_experts_move_to_main_memory(tmp_path: Path) -> None:
    """Those of the first layers, and nothing else."""
    model = make(tmp_path, experts=True, expert_count=8, expert_used_count=2)
    config = RunConfig(ctx_size=512, n_gpu_layers=-1)
    before = estimate_footprint(model, config, machine=ONE_GPU).bytes_on("CUDA0")
    after = estimate_footprint(model, config.replace(n_cpu_moe=3), machine=ONE_GPU).bytes_on("CUDA0")
    assert before is not None
    assert after == before - 3 * EXPERTS


def test_devices_share_by_tensor_split(tmp_path: Path) -> None:
    """Three to one: of 29 units the first 22 go to the first device."""
    pair = HardwareProfile(devices=(DeviceFacts(name="CUDA0"), DeviceFacts(name="CUDA1")))
    placed = place_layers(make(tmp_path), RunConfig(tensor_split=(3.0, 1.0)), pair)
    assert placed.blocks.count("CUDA0") == 22
    assert placed.output == "CUDA1"
    assert place_layers(make(tmp_path), RunConfig(), pair).assumed_split
    alone = place_layers(make(tmp_path), RunConfig(split_mode="none", main_gpu=1), pair)
    assert set(alone.blocks) == {"CUDA1"}


def test_cache_follows_its_layer_unless_told_not_to(tmp_path: Path) -> None:
    """no_kv_offload keeps it in main memory."""
    model, config = make(tmp_path), RunConfig(ctx_size=4096, n_gpu_layers=-1)
    whole = kv_bytes(model, config)
    there = {
        part.device: part.n_bytes for part in estimate_footprint(model, config, machine=ONE_GPU).parts if part.cause == "kv"
    }
    here = estimate_footprint(model, config.replace(no_kv_offload=True), machine=ONE_GPU)
    assert there == {"CUDA0": whole}
    assert {part.device: part.n_bytes for part in here.parts if part.cause == "kv"} == {"CPU": whole}


@pytest.mark.parametrize(
    ("cells", "ubatch", "heads", "expected"), [(32768, 512, 32, 2_147_483_648), (163840, 512, 128, 42_949_672_960)]
)
def test_attention_scratch_without_flash_attention(cells: int, ubatch: int, heads: int, expected: int) -> None:
    """Scores of one block over the whole context."""
    assert attention_scratch_bytes(cells=cells, ubatch=ubatch, n_head=heads) == expected


def test_scratch_is_a_bound_until_it_is_asked(tmp_path: Path) -> None:
    """ "at least" by arithmetic, llama.cpp's own figure where it was asked."""
    model, config = make(tmp_path), RunConfig(ctx_size=32768, flash_attn="off")
    bound = next(part for part in estimate_footprint(model, config).parts if part.cause == "compute")
    assert (bound.n_bytes, bound.basis) == (2_147_483_648, "at least")
    asked = estimate_footprint(model, config, projected={"compute CPU": 2_300_000_000})
    assert asked.bytes_of("compute") == 2_300_000_000
    assert asked.basis == "asked"


def test_logits_depend_on_the_front_end(tmp_path: Path) -> None:
    """The binding reserves logits for a whole batch, the server for one token a slot."""
    model, config = make(tmp_path), RunConfig(ctx_size=512, ubatch_size=512)
    assert estimate_footprint(model, config, front_end="llama-cpp-python").bytes_of("compute") == 512 * 32000 * 4
    assert (estimate_footprint(model, config, front_end="llama-server").bytes_of("compute") or 0) < 512 * 32000 * 4
    assert estimate_footprint(model, config.replace(parallel=2)).bytes_of("output") == 2 * 32000 * 4


def test_mapped_file_is_counted_beside_repacked_weights(tmp_path: Path) -> None:
    """What llama.cpp reports, though the system may take those pages back, so they refuse nothing."""
    model = make(tmp_path)
    asked = {"weights CPU": 1000, "weights CPU_REPACK": 5000, "compute CPU": 10}
    mapped = estimate_footprint(model, RunConfig(ctx_size=512), projected=asked)
    read = estimate_footprint(model, RunConfig(ctx_size=512, load_mode="none"), projected=asked)
    assert mapped.bytes_of("file pages") == model.weights_bytes - 1000
    assert read.bytes_of("file pages") == 0
    enough = (read.total_bytes or 0) + 1
    assert explain_misfit(mapped, Budget(host_bytes=enough, reserve_bytes=0)) is None


def test_shared_memory_is_one_budget() -> None:
    """40 GiB on the device and 30 in main memory are 70 of 64."""
    parts = (
        Part(cause="weights", device="CUDA0", n_bytes=40 * GIB, basis="exact"),
        Part(cause="kv", device="CPU", n_bytes=30 * GIB, basis="exact"),
    )
    devices = (("CUDA0", 64 * GIB),)
    shared = Budget(host_bytes=64 * GIB, devices=devices, unified=True, reserve_bytes=0)
    apart = Budget(host_bytes=64 * GIB, devices=devices, reserve_bytes=0)
    said = explain_misfit(Footprint(parts=parts), shared)
    assert said is not None
    assert "70 GiB" in said
    assert "64 GiB" in said
    assert explain_misfit(Footprint(parts=parts), apart) is None


def test_refusal_shows_its_arithmetic(tmp_path: Path) -> None:
    """Each summand, the sum, and what there is."""
    said = find_misfit(make(tmp_path), RunConfig(ctx_size=32768), Budget(host_bytes=2 * GIB, reserve_bytes=0))
    assert said is not None
    for piece in ("weights ", "KV cache 1.75 GiB", "compute buffers", "2 GiB is available", "at least"):
        assert piece in said


def test_unknown_refuses_nothing(tmp_path: Path) -> None:
    """Neither an unknown need nor an unknown budget."""
    silent = read_model(write_facts(tmp_path / "s.gguf", "llama", {"block_count": 4, "context_length": 4096}))
    assert estimate_footprint(silent, RunConfig(ctx_size=4096)).total_bytes is None
    assert find_misfit(silent, RunConfig(ctx_size=4096), Budget(host_bytes=GIB)) is None
    assert find_misfit(make(tmp_path), RunConfig(ctx_size=4096), Budget(host_bytes=None)) is None


def test_projector_and_draft_are_counted(tmp_path: Path) -> None:
    """A projector's tensors, a draft's weights and cache: before context and layers are chosen."""
    model, config = make(tmp_path), RunConfig(ctx_size=4096)
    plain = estimate_footprint(model, config).total_bytes
    assert plain is not None
    assert estimate_footprint(model, config, projector_bytes=207_346_528).total_bytes == plain + 207_346_528
    with_draft = estimate_footprint(model, config, draft=model).total_bytes
    assert with_draft == plain + model.weights_bytes + (kv_bytes(model, config) or 0)


def test_budget_is_free_memory_less_a_reserve() -> None:
    """Never the total; what a model about to be unloaded holds comes back."""
    assert find_budget(ONE_GPU, reserve_bytes=GIB).on("CUDA0") == 7 * GIB
    assert find_budget(ONE_GPU, reserve_bytes=0, returned_bytes=GIB).on("CUDA0") == 9 * GIB
    assert find_budget(NO_GPU, reserve_bytes=0, returned_bytes=GIB).on("CPU") == 33 * GIB
    wsl = HardwareProfile(environment=EnvironmentFacts(wsl=True), devices=ONE_GPU.devices)
    usual = find_budget(ONE_GPU).on("CUDA0")
    careful = find_budget(wsl).on("CUDA0")
    assert usual is not None
    assert careful is not None
    assert careful < usual


def test_a_devices_budget_is_what_its_driver_calls_free() -> None:
    """The lesser of driver and llama.cpp; whoever holds the rest is named in a refusal."""
    holders = (GpuProcess(pid=7, memory_bytes=GIB), GpuProcess(pid=8, memory_bytes=20 * GIB))
    machine = HardwareProfile(
        devices=(DeviceFacts(name="CUDA0", free_bytes=8 * GIB, gpu_uuid="GPU-a"),),
        gpus=(GpuFacts(index=0, uuid="GPU-a", memory_free_bytes=3 * GIB, processes=holders),),
    )
    budget = find_budget(machine, reserve_bytes=GIB)
    assert budget.on("CUDA0") == 2 * GIB
    parts = (Part(cause="weights", device="CUDA0", n_bytes=3 * GIB, basis="exact"),)
    assert explain_misfit(Footprint(parts=parts), budget) == (
        "It needs 3 GiB of CUDA0 (weights 3 GiB), and 2 GiB is available (3 GiB free less a reserve of 1 GiB); "
        "process 8 holds 20 GiB, process 7 holds 1 GiB."
    )


def test_largest_context_is_the_last_that_fits(tmp_path: Path) -> None:
    """One step more does not fit; a smaller cache type fits more; nothing fits where the weights do not."""
    model, config = make(tmp_path), RunConfig(ctx_size=8192, parallel=2)
    budget = Budget(host_bytes=GIB, reserve_bytes=0)
    found = largest_context(model, config, budget)
    assert found % 512 == 0
    assert find_misfit(model, config.replace(ctx_size=found), budget) is None
    assert find_misfit(model, config.replace(ctx_size=found + 512), budget) is not None
    assert largest_context(model, config, budget, cache_type="q8_0") > found
    assert largest_context(model, config, Budget(host_bytes=10**6)) == 0
    assert largest_context(model, config, Budget(host_bytes=1000 * GIB)) == 2 * 32768


@pytest.mark.parametrize(("kind", "headroom"), [("gemma3", 256 * 2**20), ("never_heard_of", 0), (None, 0)])
def test_projector_is_counted_from_its_header(tmp_path: Path, kind: str | None, headroom: int) -> None:
    """Its tensors exactly, an assumed headroom for a known type, a warning for an unknown one."""
    from tests.builders.gguf_files import write_gguf
    from tuner.memory.extras import read_projector

    metadata = {"general.architecture": "clip"} | ({} if kind is None else {"clip.projector_type": kind})
    found = read_projector(write_gguf(tmp_path / "mmproj.gguf", metadata, [("v.patch_embd.weight", (1024, 100), F16)]))
    assert (found.tensor_bytes, found.headroom_bytes) == (204_800, headroom)
    assert found.total_bytes == 204_800 + headroom
    assert ("only its tensors" in found.note) is (headroom == 0)


def test_a_model_is_no_projector(tmp_path: Path) -> None:
    """One clear line for the wrong file."""
    from tuner.errors import BadInputError
    from tuner.memory.extras import read_projector

    make(tmp_path)
    with pytest.raises(BadInputError, match="no projector"):
        read_projector(tmp_path / "model.gguf")
