"""The space as a whole: which points there are, which are one, which is the default, and what never comes out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.situations import make_layer, make_machine, make_situation, make_space, make_spec
from tuner.errors import BadInputError
from tuner.runconfig import (
    CACHE_TYPES,
    QUANTISED_CACHE_TYPES,
    EffectiveFacts,
    RunConfig,
    resolve_effective,
)
from tuner.space import SearchSpace, build_space, find_default_config, load_space, settle_point
from tuner.workload import Workload

GPU = make_situation(machine=make_machine(gpus=1))
USERS = make_situation(workload=Workload(name="eight", prompt_tokens=512, output_tokens=128, users=8))


def test_six_valid_points_in_a_space_of_twenty_four() -> None:
    """Batches are cut to the context of 768, micro-batches to the batch; twins come once."""
    space = make_space("threads: [2, 4]\nbatch_size: [512, 2048, 4096]\nubatch_size: [512, 768, 1024, 2048]")
    assert space.size == 24
    shapes = [(point.batch_size, point.ubatch_size) for point in space.points()]
    assert sorted(shapes) == [(512, 512)] * 2 + [(768, 512)] * 2 + [(768, 768)] * 2


def test_refused_points_do_not_come_out() -> None:
    """A quantised V needs flash attention."""
    space = make_space("flash_attn: [on, off]\ncache_type_v: [f16, q8_0]")
    pairs = {(point.flash_attn, point.cache_type_v) for point in space.points()}
    assert pairs == {("on", "f16"), ("on", "q8_0"), ("off", "f16")}


def test_batches_beyond_the_context_are_the_context() -> None:
    """n_batch 4096 and n_ubatch 8192 at a context of 2048 are 2048 and 2048."""
    space = make_space("threads: auto", settings=("ctx_size=2048", "batch_size=4096", "ubatch_size=8192"))
    assert (space.baseline.ctx_size, space.baseline.batch_size, space.baseline.ubatch_size) == (2048, 2048, 2048)
    assert space.effective(space.baseline.replace(batch_size=2048, ubatch_size=4096)) == space.baseline


@pytest.mark.parametrize(("given", "shown"), [(-1, 29), (29, 29), (30, 29), (999, 29), (28, 28), (0, 0)])
def test_layers_beyond_everything_are_everything(given: int, shown: int) -> None:
    """28 blocks and the output are 29."""
    space = make_space("n_gpu_layers: auto", GPU)
    assert space.domains["n_gpu_layers"].values == tuple(range(30))
    assert space.from_values({"n_gpu_layers": given}).n_gpu_layers == shown


def test_without_a_device_layers_are_never_tuned() -> None:
    """Not by the preset, not by a list, not by --set; the reason says what to do."""
    space = make_space("n_gpu_layers: [0, 10, 20]\nthreads: auto", settings=("main_gpu=3",))
    assert "n_gpu_layers" not in space.domains
    assert "reinstall llama-cpp-python" in space.absent["n_gpu_layers"]
    assert make_space("threads: auto", settings=("n_gpu_layers=20",)).baseline.n_gpu_layers == 0
    assert {point.n_gpu_layers for point in space.points()} == {0}


def test_the_default_is_llama_servers_own() -> None:
    """Settled, at the context that the workload needs."""
    space = build_space(make_situation(machine=make_machine(usable=8, physical=4)), load_space("cpu"))
    base = space.baseline
    assert (base.threads, base.threads_batch, base.parallel, base.ctx_size) == (4, 4, 1, 768)
    assert (base.batch_size, base.ubatch_size, base.flash_attn) == (768, 512, "on")
    assert (base.cache_type_k, base.cache_type_v, base.n_gpu_layers) == ("f16", "f16", 0)
    assert base.model == "/models/model.gguf"


@pytest.mark.parametrize("preset", ["cpu", "gpu", "quick", "long_context", "server"])
@pytest.mark.parametrize("situation", [make_situation(), GPU, USERS, make_situation(machine=make_machine(gpus=2))])
def test_the_default_is_always_among_the_points(preset: str, situation: Any) -> None:
    """Its values are values of the space, and lead back to it."""
    space = build_space(situation, load_space(preset))
    values = space.values_of(space.baseline)
    assert all(values[name] in space.domains[name].values for name in space.domains)
    assert space.from_values(values) == space.baseline


def test_a_list_without_the_default_gains_it_and_one_value_pins() -> None:
    """Gains are told against the default, so it is tried; a single value says that nothing else is wanted."""
    space = make_space("threads: [1, 2]\nubatch_size: [128]")
    assert space.domains["threads"].values == (1, 2, 4)
    assert space.fixed == {"ubatch_size": 128}
    assert space.baseline.ubatch_size == 128
    assert space.absent["ubatch_size"] == "fixed to 128"


def test_what_is_set_is_left_alone() -> None:
    """It is in the default and in every point; prefill threads follow decode threads unless told."""
    space = make_space("threads: auto\nubatch_size: auto", settings=("threads=2",))
    assert "threads" not in space.domains
    assert {(point.threads, point.threads_batch) for point in space.points()} == {(2, 2)}
    apart = make_space("ubatch_size: auto", settings=("threads=2", "threads_batch=3"))
    assert (apart.baseline.threads, apart.baseline.threads_batch) == (2, 3)


CONTRADICTIONS = {
    "quantised V without flash attention": (("cache_type_v=q8_0", "flash_attn=off"), "flash attention"),
    "a context below the workload's need": (("ctx_size=256",), "the workload needs 640"),
    "slots that the context cannot hold": (("ctx_size=1024", "parallel=4"), "256 per slot"),
    "a file that was not given": (("model=/other.gguf",), "/models/model.gguf"),
    "tensor split without a device": (("split_mode=tensor", "cache_type_k=q8_0", "ctx_size=256"), "cannot run"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_settings_that_contradict_each_other(name: str) -> None:
    """Refused before anything starts, with the reason."""
    given, said = CONTRADICTIONS[name]
    with pytest.raises(BadInputError, match=said):
        make_space("threads: auto", settings=given)


def test_an_embedding_model_is_refused_in_one_sentence() -> None:
    """There is nothing to decode."""
    encoder = make_spec(architecture="bert", is_encoder_only=True)
    with pytest.raises(BadInputError, match="makes embeddings and writes no text"):
        make_space("threads: auto", make_situation(models=(encoder,)))


def test_a_slot_needs_the_workloads_context() -> None:
    """8192 cells over two slots are 4096 for each, which is too few for 8192."""
    situation = make_situation(workload=Workload(name="w", prompt_tokens=8000, output_tokens=192, users=2))
    space = make_space("threads: auto", situation)
    assert space.baseline.ctx_size == 16_384
    reason = space.refusal(space.baseline.replace(ctx_size=8192))
    assert reason is not None
    assert "4096 per slot" in reason


def test_the_context_follows_the_slots() -> None:
    """Each slot has what the workload needs, and no more."""
    space = make_space("parallel: auto", USERS)
    assert [(p.parallel, p.ctx_size) for p in space.points()] == [(1, 768), (2, 1536), (4, 3072), (8, 6144)]
    set_by_user = make_space("parallel: auto", USERS, settings=("ctx_size=3072",))
    assert [(p.parallel, p.ctx_size) for p in set_by_user.points()] == [(1, 3072), (2, 3072), (4, 3072)]


def test_a_limit_on_the_context_is_kept_by_every_point() -> None:
    """The default keeps it too, so that it is feasible."""
    wide = make_situation(workload=USERS.workload, least_context=4096)
    assert [(p.parallel, p.ctx_size) for p in make_space("parallel: auto", wide).points()] == [
        (1, 4096),
        (2, 4096),
        (4, 4096),
        (8, 6144),
    ]


def test_keys_are_never_kept_less_precisely_than_values_unasked() -> None:
    """q8_0 keys with f16 values are left out, unless quality may be lost or the user wrote them down."""
    auto = "cache_type_k: auto\ncache_type_v: auto"
    pairs = {(p.cache_type_k, p.cache_type_v) for p in make_space(auto).points()}
    assert pairs == {("f16", "f16"), ("f16", "q8_0"), ("q8_0", "q8_0")}
    lossy = make_space(auto, make_situation(allow_quality_loss=True))
    assert ("q4_0", "f16") in {(p.cache_type_k, p.cache_type_v) for p in lossy.points()}
    listed = make_space("cache_type_k: [f16, q8_0]")
    assert ("q8_0", "f16") in {(p.cache_type_k, p.cache_type_v) for p in listed.points()}
    assert make_space("threads: auto", settings=("cache_type_k=q8_0",)).baseline.cache_type_k == "q8_0"


def test_quantised_keys_without_flash_attention_are_valid() -> None:
    """Only a quantised V needs it."""
    space = make_space("threads: auto", settings=("cache_type_k=q8_0", "flash_attn=off"))
    assert (space.baseline.cache_type_k, space.baseline.cache_type_v, space.baseline.flash_attn) == ("q8_0", "f16", "off")


def test_an_architecture_without_flash_attention_loses_it_and_quantised_values() -> None:
    """Both go, with a reason each; nothing crashes."""
    grok = make_spec(architecture="grok", flash_attn_forced_off=True)
    space = make_space("flash_attn: [on, off]\ncache_type_v: [f16, q8_0]\nthreads: auto", make_situation(models=(grok,)))
    assert list(space.domains) == ["threads"]
    assert {point.flash_attn for point in space.points()} == {"off"}
    with pytest.raises(BadInputError, match="runs without flash attention"):
        make_space("threads: auto", make_situation(models=(grok,)), settings=("cache_type_v=q8_0",))


def test_with_latent_attention_both_halves_have_one_format() -> None:
    """The V format follows the K format, as llama.cpp demands."""
    mla = make_spec(layers=(make_layer(head=576, head_v=512, mla=True),) * 4, n_layer=4, is_mla=True)
    space = make_space("cache_type_k: auto\ncache_type_v: auto", make_situation(models=(mla,)))
    assert [(p.cache_type_k, p.cache_type_v) for p in space.points()] == [("f16", "f16"), ("q8_0", "q8_0")]


def test_several_files_keep_their_own_facts() -> None:
    """Everything of the longer model is not everything of the shorter one."""
    long, short = make_spec(path="/m/a.gguf", n_layer=28), make_spec(path="/m/b.gguf", n_layer=26)
    space = make_space("model: auto\nn_gpu_layers: auto", make_situation(machine=make_machine(gpus=1), models=(long, short)))
    assert space.from_values({"model": "/m/b.gguf", "n_gpu_layers": 29}).n_gpu_layers == 27
    assert len(list(space.points())) == 30 + 28


def test_settings_that_mean_nothing_beside_others_make_no_new_points() -> None:
    """Without layers on the device, what is said of the device is silent."""
    space = make_space("n_gpu_layers: [0, 29]\nno_kv_offload: [on, off]", GPU)
    assert len(list(space.points())) == 3
    two = make_situation(machine=make_machine(gpus=2))
    space = make_space("split_mode: [layer, none]\nmain_gpu: [0, 1]\ntensor_split: ['1,1', '3,1']", two)
    shapes = {(p.split_mode, p.main_gpu, p.tensor_split) for p in space.points()}
    assert ("none", 1, ()) in shapes
    assert ("layer", 1, ()) not in shapes
    assert len(shapes) == 5


def test_experts_that_are_in_main_memory_anyway_make_no_new_points() -> None:
    """With nine blocks on the CPU, keeping the experts of four there changes nothing."""
    moe = make_spec(n_expert=8, n_expert_used=2)
    situation = make_situation(machine=make_machine(gpus=1), models=(moe,))
    space = make_space("n_gpu_layers: [20, 29]\nn_cpu_moe: [0, 4]", situation)
    assert {(p.n_gpu_layers, p.n_cpu_moe) for p in space.points()} == {(20, 0), (29, 0), (29, 4)}


def test_only_what_moves_a_phase_is_relevant_to_it() -> None:
    """Threads of decode do not move prefill; with several users they move nothing."""
    space = make_space("threads: auto\nthreads_batch: auto\nubatch_size: auto\nflash_attn: auto")
    assert space.relevant({"prefill"}) == ("ubatch_size", "flash_attn", "threads_batch")
    assert space.relevant({"decode"}) == ("flash_attn", "threads")
    several = make_space("threads: auto\nthreads_batch: auto", USERS)
    assert several.relevant({"decode"}) == ("threads_batch",)


def test_a_sub_space_leaves_the_rest_at_its_base() -> None:
    """Here at a point that is not the default."""
    space = make_space("threads: auto\nubatch_size: auto")
    base = space.from_values({"threads": 2})
    points = list(space.points(["ubatch_size"], base=base))
    assert {point.threads for point in points} == {2}
    assert {point.ubatch_size for point in points} == set(space.domains["ubatch_size"].values)


def test_what_is_dear_to_change_changes_least_often() -> None:
    """All points of one file stand together, and threads change fastest."""
    two = make_situation(models=(make_spec(path="/m/a.gguf"), make_spec(path="/m/b.gguf")))
    models = [point.model for point in make_space("threads: auto\nmodel: auto", two).points()]
    assert models == ["/m/a.gguf"] * 4 + ["/m/b.gguf"] * 4


def test_a_context_beyond_training_is_warned_of() -> None:
    """It runs, but not without a word."""
    space = make_space("threads: auto", settings=("ctx_size=16k",))
    assert "8192" in space.warnings(space.baseline)[0]


CONFIGS = st.builds(
    RunConfig,
    n_gpu_layers=st.integers(-1, 40),
    ctx_size=st.integers(0, 40_000),
    batch_size=st.integers(1, 5000),
    ubatch_size=st.integers(0, 5000),
    cache_type_k=st.sampled_from(CACHE_TYPES),
    cache_type_v=st.sampled_from(CACHE_TYPES),
    flash_attn=st.sampled_from(("auto", "on", "off")),
    threads=st.integers(1, 64),
    threads_batch=st.integers(0, 64),
    parallel=st.integers(1, 256),
    n_cpu_moe=st.integers(0, 40),
    split_mode=st.sampled_from(("none", "layer", "row", "tensor")),
    tensor_split=st.sampled_from(((), (1.0, 1.0), (3.0, 1.0))),
    main_gpu=st.integers(0, 2),
    no_kv_offload=st.booleans(),
    swa_full=st.booleans(),
    op_offload=st.booleans(),
)
FACTS = st.builds(
    lambda devices, **more: EffectiveFacts(has_device=devices > 0, n_devices=devices, **more),
    devices=st.integers(0, 3),
    n_layer=st.one_of(st.none(), st.integers(1, 36)),
    context_length=st.one_of(st.none(), st.integers(256, 32_768)),
    is_moe=st.booleans(),
    has_window=st.booleans(),
    flash_attn_auto=st.sampled_from(("auto", "on", "off")),
    flash_attn_possible=st.booleans(),
)


@given(config=CONFIGS, facts=FACTS)
def test_settling_twice_is_settling_once(config: RunConfig, facts: EffectiveFacts) -> None:
    """And a settled point is what llama.cpp makes of itself."""
    settled = settle_point(config, facts)
    assert settle_point(settled, facts) == settled
    assert resolve_effective(settled, facts) == settled


def build_random_space(names: set[str], gpus: int, users: int, lossy: bool) -> SearchSpace:
    workload = Workload(name="w", prompt_tokens=300, output_tokens=100, users=users)
    situation = make_situation(machine=make_machine(gpus=gpus), workload=workload, allow_quality_loss=lossy)
    return make_space("\n".join(f"{name}: auto" for name in sorted(names)), situation)


NAMES = (
    "n_gpu_layers",
    "batch_size",
    "ubatch_size",
    "cache_type_k",
    "cache_type_v",
    "flash_attn",
    "threads",
    "parallel",
    "split_mode",
)


@settings(max_examples=25, deadline=None)
@given(
    names=st.sets(st.sampled_from(NAMES), min_size=1, max_size=4),
    gpus=st.integers(0, 2),
    users=st.integers(1, 5),
    lossy=st.booleans(),
)
def test_points_are_distinct_settled_and_valid(names: set[str], gpus: int, users: int, lossy: bool) -> None:
    """Whatever is searched, wherever; and the default is one of them."""
    space = build_random_space(names, gpus, users, lossy)
    points = list(space.points())
    assert len(set(points)) == len(points) <= space.size
    assert space.baseline in points
    for point in points:
        assert space.effective(point) == point
        assert space.from_values(space.values_of(point)) == point
        assert not (point.cache_type_v in QUANTISED_CACHE_TYPES and point.flash_attn == "off")


def test_the_default_config_names_every_setting() -> None:
    """One dimension for each field of a run configuration."""
    assert find_default_config(make_situation()).threads == 4
