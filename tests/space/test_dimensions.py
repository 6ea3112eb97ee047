"""Which values each setting takes on which machine, with which model, and what is left out and why."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders.situations import GIB, make_layer, make_machine, make_situation, make_spec
from tuner.errors import BadInputError
from tuner.model.spec import LayerSpec
from tuner.runconfig import RunConfig
from tuner.space import Absent, Domain, SpaceSituation, find_dimension
from tuner.workload import PRESETS, Workload

FOUR_USERS = Workload(name="four", prompt_tokens=256, output_tokens=64, users=4)
TWENTY_USERS = Workload(name="twenty", prompt_tokens=256, output_tokens=64, users=20)
GPU = make_machine(gpus=1)
TWO_GPUS = make_machine(gpus=2)
MOE = make_spec(n_expert=8, n_expert_used=2)
GROK = make_spec(architecture="grok", flash_attn_forced_off=True)
RECURRENT = make_spec(architecture="mamba", layers=(make_layer(kind="recurrent"),) * 4, n_layer=4)
MLA = make_spec(layers=(make_layer(head=576, head_v=512, mla=True),) * 4, n_layer=4, is_mla=True)
HEAD_80 = make_spec(layers=(make_layer(head=80),) * 4, n_layer=4)
WINDOW = make_spec(layers=(make_layer(kind="sliding"), make_layer()), n_layer=2, n_swa=1024)
SILENT = make_spec(
    layers=(LayerSpec(kind="attention", n_head=None, n_head_kv=None, key_length=None, value_length=None),), n_layer=1
)


def find_domain(name: str, situation: SpaceSituation) -> Domain | Absent:
    dimension = find_dimension(name)
    assert dimension is not None
    return dimension.find_domain(situation)


def find_values(name: str, **situation: Any) -> tuple[Any, ...]:
    domain = find_domain(name, make_situation(**situation))
    assert isinstance(domain, Domain), domain
    return domain.values


VALUES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "layers of a model with 28 blocks": ("n_gpu_layers", {"machine": GPU}, tuple(range(30))),
    "draft blocks count as layers": (
        "n_gpu_layers",
        {"machine": GPU, "models": (make_spec(n_layer=2, n_mtp_layers=1),)},
        (0, 1, 2, 3, 4),
    ),
    "a remote device takes layers": ("n_gpu_layers", {"rpc_devices": 1}, tuple(range(30))),
    "all threads where there are few": ("threads", {"machine": make_machine(usable=4)}, (1, 2, 3, 4)),
    "a quota bounds threads": ("threads_batch", {"machine": make_machine(usable=4, physical=8, logical=8)}, (1, 2, 3, 4)),
    "micro-batches up to the prompt, the default for all beyond": ("ubatch_size", {}, (32, 64, 128, 256, 512)),
    "micro-batches for a long prompt": (
        "ubatch_size",
        {"workload": PRESETS["code"]},
        (32, 64, 128, 256, 512, 1024, 2048, 4096),
    ),
    "prompts of several users are read together": ("ubatch_size", {"workload": FOUR_USERS}, (32, 64, 128, 256, 512, 1024)),
    "batches up to the prompt": ("batch_size", {}, (256, 2048)),
    "careful cache formats": ("cache_type_k", {}, ("f16", "q8_0")),
    "all cache formats": (
        "cache_type_v",
        {"allow_quality_loss": True},
        ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
    ),
    "flash attention on a CPU": ("flash_attn", {}, ("on", "off")),
    "flash attention where only a run can tell": (
        "flash_attn",
        {"machine": make_machine(gpus=1, backend="Vulkan")},
        ("auto", "off"),
    ),
    "slots up to the users": ("parallel", {"workload": TWENTY_USERS}, (1, 2, 4, 8, 16, 20)),
    "experts to keep": ("n_cpu_moe", {"machine": GPU, "models": (MOE,)}, (0, 2, 5, 7, 9, 12, 14, 16, 19, 21, 23, 26, 28)),
    "two devices": ("split_mode", {"machine": TWO_GPUS}, ("layer", "none", "row", "tensor")),
    "two remote devices": ("split_mode", {"rpc_devices": 2}, ("layer", "none")),
    "two devices without flash attention": ("split_mode", {"machine": TWO_GPUS, "models": (GROK,)}, ("layer", "none", "row")),
    "which device": ("main_gpu", {"machine": TWO_GPUS}, (0, 1)),
    "shares": ("tensor_split", {"machine": TWO_GPUS}, ((), (1.0, 1.0), (3.0, 1.0), (1.0, 3.0))),
    "cache in main memory": ("no_kv_offload", {"machine": GPU}, (False, True)),
    "host weights on the device": ("op_offload", {"machine": GPU}, (True, False)),
    "two nodes": ("numa", {"machine": make_machine(nodes=2)}, ("off", "distribute", "isolate")),
    "weights that nearly fill memory": ("load_mode", {"machine": make_machine(available_bytes=GIB)}, ("auto", "none")),
    "two files": ("model", {"models": (make_spec(path="/m/a.gguf"), make_spec(path="/m/b.gguf"))}, ("/m/a.gguf", "/m/b.gguf")),
    "contexts for the context goal": ("ctx_size", {"goals": ("context",)}, (768, 1024, 2048, 4096, 8192)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    """What is searched there."""
    dimension, situation, expected = VALUES[name]
    assert find_values(dimension, **situation) == expected


ABSENT: dict[str, tuple[str, dict[str, Any], str]] = {
    "layers on a build without GPU": ("n_gpu_layers", {}, "this llama.cpp build cannot use a GPU"),
    "layers without a device": ("n_gpu_layers", {"machine": make_machine(can_offload=True)}, "sees no device"),
    "layers that the file does not tell": (
        "n_gpu_layers",
        {"machine": GPU, "models": (make_spec(n_layer=None),)},
        "how many layers",
    ),
    "experts without a device": ("n_cpu_moe", {"models": (MOE,)}, "cannot use a GPU"),
    "experts of a dense model": ("n_cpu_moe", {"machine": GPU}, "no experts"),
    "split of one device": ("split_mode", {"machine": GPU}, "not two devices"),
    "shares of one device": ("tensor_split", {"machine": GPU}, "not two devices"),
    "main device without choice": ("main_gpu", {"machine": GPU}, "not two devices"),
    "cache offload without a device": ("no_kv_offload", {}, "cannot use a GPU"),
    "operation offload without a device": ("op_offload", {}, "cannot use a GPU"),
    "one thread": ("threads", {"machine": make_machine(usable=1)}, "one thread at a time"),
    "decode threads with several users": ("threads", {"workload": FOUR_USERS}, "threads_batch counts"),
    "slots for one user": ("parallel", {}, "one user"),
    "K format of a recurrent model": ("cache_type_k", {"models": (RECURRENT,)}, "fixed state"),
    "V format of a recurrent model": ("cache_type_v", {"models": (RECURRENT,)}, "fixed state"),
    "flash attention of a recurrent model": ("flash_attn", {"models": (RECURRENT,)}, "no attention"),
    "flash attention of grok": ("flash_attn", {"models": (GROK,)}, "turns flash attention off"),
    "V format of grok": ("cache_type_v", {"models": (GROK,)}, "needs flash attention"),
    "V format with latent attention": ("cache_type_v", {"models": (MLA,)}, "keys only"),
    "K format with head 80": ("cache_type_k", {"models": (HEAD_80,)}, "80 is not a multiple of 32"),
    "V format with head 80": ("cache_type_v", {"models": (HEAD_80,)}, "80 is not a multiple of 32"),
    "K format of unknown heads": ("cache_type_k", {"models": (SILENT,)}, "how large a head is"),
    "V format of unknown heads": ("cache_type_v", {"models": (SILENT,)}, "how large a head is"),
    "K format where even the layers are unknown": (
        "cache_type_k",
        {"models": (make_spec(n_layer=None, context_length=None),)},
        "how large a head is",
    ),
    "window without window layers": ("swa_full", {}, "no sliding-window layers"),
    "window with window layers": ("swa_full", {"models": (WINDOW,)}, "costs memory and time"),
    "one node": ("numa", {}, "one NUMA node"),
    "loading with memory to spare": ("load_mode", {}, "does not change speed"),
    "loading where memory is unknown": ("load_mode", {"machine": make_machine(available_bytes=None)}, "does not change speed"),
    "context for speed": ("ctx_size", {}, "tokens in use"),
    "one file": ("model", {}, "only one model file"),
    "micro-batches of a tiny prompt": (
        "ubatch_size",
        {"workload": Workload(name="tiny", prompt_tokens=8, output_tokens=8)},
        "too short",
    ),
}


@pytest.mark.parametrize("name", ABSENT)
def test_absent(name: str) -> None:
    """What means nothing there goes, and says why."""
    dimension, situation, reason = ABSENT[name]
    verdict = find_domain(dimension, make_situation(**situation))
    assert isinstance(verdict, Absent)
    assert reason in verdict.reason


def test_a_recurrent_model_keeps_k_formats_when_some_layer_attends() -> None:
    """Hybrids have a cache too."""
    hybrid = make_spec(layers=(make_layer(kind="recurrent"), make_layer()), n_layer=2)
    assert find_values("cache_type_k", models=(hybrid,)) == ("f16", "q8_0")


@pytest.mark.parametrize(
    ("usable", "physical", "marks"),
    [(16, 8, {1, 4, 7, 8, 16}), (32, 32, {1, 16, 31, 32}), (96, 48, {1, 24, 48, 72, 96}), (9, 9, {1, 8, 9})],
)
def test_many_threads_are_spread_around_the_cores(usable: int, physical: int, marks: set[int]) -> None:
    """One, half of the cores, the cores and all threads are there; none is beyond what may run at once."""
    values = find_values("threads_batch", machine=make_machine(usable=usable, physical=physical))
    assert marks <= set(values)
    assert max(values) == usable
    assert len(values) <= 16


DEFAULTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "two threads a core: the cores": ("threads", {"machine": make_machine(usable=16, physical=8)}, 8),
    "a quota below the cores": ("threads", {"machine": make_machine(usable=4, physical=8)}, 4),
    "one thread at least": ("threads", {"machine": make_machine(usable=1, physical=1)}, 1),
    "prefill threads like decode's": ("threads_batch", {"machine": make_machine(usable=16, physical=8)}, 8),
    "one slot for one user": ("parallel", {}, 1),
    "three slots for three users": ("parallel", {"workload": Workload(name="w", prompt_tokens=8, output_tokens=8, users=3)}, 3),
    "four slots for many": ("parallel", {"workload": TWENTY_USERS}, 4),
    "the workload's context": ("ctx_size", {}, 768),
    "the workload's context with history": ("ctx_size", {"workload": PRESETS["chat"]}, 2816),
    "the workload's context for each slot": ("ctx_size", {"workload": TWENTY_USERS}, 4 * 512),
    "not the training context": ("ctx_size", {"models": (make_spec(context_length=1_024_000),)}, 768),
    "all layers with a device": ("n_gpu_layers", {"machine": GPU}, -1),
    "no layer without": ("n_gpu_layers", {}, 0),
    "batch": ("batch_size", {}, 2048),
    "micro-batch": ("ubatch_size", {}, 512),
    "K": ("cache_type_k", {}, "f16"),
    "V": ("cache_type_v", {}, "f16"),
    "flash attention": ("flash_attn", {}, "auto"),
    "window": ("swa_full", {"models": (WINDOW,)}, False),
    "first file": ("model", {"models": (make_spec(path="/m/a.gguf"), make_spec(path="/m/b.gguf"))}, "/m/a.gguf"),
    "experts with their blocks": ("n_cpu_moe", {"machine": GPU, "models": (MOE,)}, 0),
    "split by layers": ("split_mode", {"machine": TWO_GPUS}, "layer"),
    "shares by free memory": ("tensor_split", {"machine": TWO_GPUS}, ()),
    "the first device": ("main_gpu", {"machine": TWO_GPUS}, 0),
    "the cache with its layers": ("no_kv_offload", {"machine": GPU}, False),
    "host weights on the device": ("op_offload", {"machine": GPU}, True),
    "loading": ("load_mode", {}, "auto"),
    "no NUMA policy": ("numa", {"machine": make_machine(nodes=2)}, "off"),
}


def test_the_default_of_every_setting_is_told() -> None:
    """So that a new one is not forgotten above."""
    assert {dimension for dimension, _, _ in DEFAULTS.values()} == set(RunConfig.__struct_fields__)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_llama_servers(name: str) -> None:
    """Within what this process may use, and with the room that the workload needs."""
    dimension, situation, expected = DEFAULTS[name]
    found = find_dimension(dimension)
    assert found is not None
    assert found.find_default(make_situation(**situation)) == expected


PARSED: tuple[tuple[str, object, Any], ...] = (
    ("flash_attn", True, "on"),
    ("flash_attn", False, "off"),
    ("flash_attn", "AUTO", "auto"),
    ("flash_attn", "1", "on"),
    ("numa", False, "off"),
    ("ctx_size", "8k", 8192),
    ("ctx_size", 8192, 8192),
    ("ctx_size", "0", 0),
    ("ubatch_size", "1K", 1024),
    ("n_gpu_layers", "all", -1),
    ("n_gpu_layers", "auto", -1),
    ("n_gpu_layers", -1, -1),
    ("n_gpu_layers", "99", 99),
    ("cache_type_k", "Q8_0", "q8_0"),
    ("tensor_split", "3,1", (3.0, 1.0)),
    ("tensor_split", [3, 1], (3.0, 1.0)),
    ("tensor_split", "auto", ()),
    ("swa_full", "on", True),
    ("swa_full", 1, True),
    ("op_offload", False, False),
    ("load_mode", None, "none"),
    ("load_mode", "mmap+mlock", "mmap+mlock"),
    ("threads", "4", 4),
)


@pytest.mark.parametrize(("name", "given", "expected"), PARSED)
def test_values_as_people_and_yaml_write_them(name: str, given: object, expected: Any) -> None:
    """What YAML made of a word is made undone."""
    dimension = find_dimension(name)
    assert dimension is not None
    value = dimension.parse_value(given)
    assert (type(value), value) == (type(expected), expected)


BAD: tuple[tuple[str, object, str], ...] = (
    ("threads", 0, "from 1 to 512"),
    ("threads", "many", "from 1 to 512"),
    ("threads", 100_000, "from 1 to 512"),
    ("threads", True, "from 1 to 512"),
    ("threads", 2.5, "from 1 to 512"),
    ("threads", None, "from 1 to 512"),
    ("ubatch_size", -32, "from 1"),
    ("ctx_size", -5, "from 0"),
    ("ctx_size", "99999999999999999999999", "from 0"),
    ("parallel", 1000, "from 1 to 256"),
    ("cache_type_k", "q8_1", "f32, f16, bf16, q8_0"),
    ("cache_type_v", 8, "f32, f16, bf16, q8_0"),
    ("flash_attn", "maybe", "auto, on, off"),
    ("split_mode", "diagonal", "none, layer, row, tensor"),
    ("tensor_split", "0,0", "one share per device"),
    ("tensor_split", [1] * 17, "one share per device"),
    ("tensor_split", {"a": 1}, "one share per device"),
    ("no_kv_offload", "perhaps", "on or off"),
    ("load_mode", "dvd", "auto, none, mmap"),
    ("numa", "socket", "off, distribute"),
    ("model", "", "path of a GGUF file"),
    ("model", 7, "path of a GGUF file"),
    ("n_gpu_layers", -3, "from 0"),
)


@pytest.mark.parametrize(("name", "given", "accepted"), BAD)
def test_what_a_setting_does_not_take(name: str, given: object, accepted: str) -> None:
    """The message names the setting and lists what it takes."""
    dimension = find_dimension(name)
    assert dimension is not None
    with pytest.raises(BadInputError) as refused:
        dimension.parse_value(given)
    assert name in refused.value.message
    assert accepted in refused.value.hint


def test_with_several_slots_decode_is_moved_by_threads_batch() -> None:
    """llama.cpp computes several sequences as a batch."""
    threads, threads_batch = find_dimension("threads"), find_dimension("threads_batch")
    assert threads is not None
    assert threads_batch is not None
    one, several = make_situation(), make_situation(workload=FOUR_USERS)
    assert (threads.affects_in(one), threads.affects_in(several)) == ({"decode"}, frozenset())
    assert (threads_batch.affects_in(one), threads_batch.affects_in(several)) == ({"prefill"}, {"prefill", "decode"})


def test_loading_moves_speed_only_where_memory_is_short() -> None:
    """Otherwise the weights are in memory, however they came there."""
    load_mode = find_dimension("load_mode")
    assert load_mode is not None
    assert load_mode.affects_in(make_situation()) == {"memory"}
    assert "decode" in load_mode.affects_in(make_situation(machine=make_machine(available_bytes=GIB)))
