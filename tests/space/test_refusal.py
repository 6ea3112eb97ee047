"""What llama.cpp would refuse is told beforehand, in its own terms."""

from __future__ import annotations

import pytest

from tests.builders.situations import make_layer, make_situation, make_spec
from tuner.model.spec import ModelSpec
from tuner.runconfig import RunConfig
from tuner.space.refusal import RefusalFacts, find_refusal, find_warnings
from tuner.space.traits import draw_refusal_facts

EVEN = RefusalFacts(head_sizes_k=(64, 128), head_sizes_v=(64, 128), context_length=8192)

REFUSED = {
    "quantised V, flash attention off": ({"cache_type_v": "q8_0", "flash_attn": "off"}, {}, "requires flash attention"),
    "quantised V where the architecture has no flash attention": (
        {"cache_type_v": "q4_0", "flash_attn": "on"},
        {"flash_attn_possible": False},
        "runs without flash attention",
    ),
    "K in blocks, head 80": ({"cache_type_k": "q8_0"}, {"head_sizes_k": (80,)}, "80 is not a multiple of 32"),
    "K in blocks, head 80, flash attention off": (
        {"cache_type_k": "q4_0", "flash_attn": "off"},
        {"head_sizes_k": (80,)},
        "80 is not a multiple of 32",
    ),
    "V in blocks, one layer of head 80": ({"cache_type_v": "q8_0"}, {"head_sizes_v": (64, 80)}, "80 is not a multiple of 32"),
    "K and V apart with latent attention": (
        {"cache_type_k": "q8_0"},
        {"one_cache_type": True},
        "different K (q8_0) and V (f16)",
    ),
    "a K type that crashes": ({"cache_type_k": "q8_1"}, {}, "q8_1 is no cache type"),
    "a V type that is none": ({"cache_type_v": "q4_K"}, {}, "q4_K is no cache type"),
    "257 slots": ({"parallel": 257, "ctx_size": 257 * 256}, {}, "at most 256"),
    "no slot": ({"parallel": 0}, {}, "at least 1"),
    "tensor split without a device": ({"split_mode": "tensor"}, {}, "at least one device"),
    "tensor split without flash attention": (
        {"split_mode": "tensor", "flash_attn": "off"},
        {"n_devices": 2},
        "needs flash attention",
    ),
    "batch 0": ({"batch_size": 0}, {}, "batch_size is 0"),
    "both batches 0": ({"batch_size": 0, "ubatch_size": 0}, {}, "cannot both be 0"),
    "a batch below nothing": ({"batch_size": -1}, {}, "negative"),
    "an embedding model": ({}, {"encoder_only": True}, "makes embeddings"),
    "slots that are too small": ({"ctx_size": 8192, "parallel": 2}, {"tokens_per_slot": 4097}, "4096 per slot"),
    "slots that are far too small": ({"ctx_size": 1024, "parallel": 4}, {"tokens_per_slot": 512}, "256 per slot"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_refuses(name: str) -> None:
    """One reason in plain words for each."""
    settings, facts, said = REFUSED[name]
    known = {"head_sizes_k": (64,), "head_sizes_v": (64,)} | facts
    assert said in (find_refusal(RunConfig(**settings), RefusalFacts(**known)) or "")


ACCEPTED = {
    "the default": {},
    "quantised K, f16 V, flash attention off": {"cache_type_k": "q8_0", "flash_attn": "off"},
    "quantised V, flash attention auto": {"cache_type_v": "q8_0"},
    "quantised V, flash attention on": {"cache_type_v": "q4_0", "cache_type_k": "q4_0", "flash_attn": "on"},
    "micro-batch 0, which means the batch": {"ubatch_size": 0},
    "256 slots": {"parallel": 256, "ctx_size": 65_536},
    "more layers than there are": {"n_gpu_layers": 999},
    "more threads than cores": {"threads": 64, "threads_batch": 600},
    "beyond the training context": {"ctx_size": 32_768},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_llama_cpp_takes(name: str) -> None:
    """Nothing is refused that would run."""
    assert find_refusal(RunConfig(**ACCEPTED[name]), EVEN) is None


@pytest.mark.parametrize(("head", "refused"), [(32, False), (64, False), (80, True), (96, False), (100, True), (128, False)])
def test_blocks_must_divide_the_head(head: int, refused: bool) -> None:
    """Blocks hold 32 values."""
    facts = RefusalFacts(head_sizes_k=(head,), head_sizes_v=(head,))
    both = RunConfig(cache_type_k="q8_0", cache_type_v="q8_0")
    assert (find_refusal(both, facts) is not None) is refused


def test_context_that_divides_into_enough_is_taken() -> None:
    """8192 cells over two slots are 4096 for each; a remainder is padded up, not down."""
    facts = RefusalFacts(tokens_per_slot=4096)
    assert find_refusal(RunConfig(ctx_size=8192, parallel=2), facts) is None
    assert find_refusal(RunConfig(ctx_size=1000, parallel=3), RefusalFacts(tokens_per_slot=512)) is None


def test_a_refused_context_names_one_that_would_do() -> None:
    """The reason holds the number to use."""
    reason = find_refusal(RunConfig(ctx_size=8192, parallel=2), RefusalFacts(tokens_per_slot=8192))
    assert reason is not None
    assert "ctx_size 16384 would do" in reason


def test_beyond_the_training_context_there_is_only_a_warning() -> None:
    """llama.cpp runs it and says so."""
    assert find_warnings(RunConfig(ctx_size=8192), EVEN) == ()
    assert find_warnings(RunConfig(ctx_size=16_384, parallel=2), EVEN) == ()
    assert "8192" in find_warnings(RunConfig(ctx_size=16_384), EVEN)[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ctx_size": 65_536, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}, "a cache of q4_0 over 65536 tokens"),
        ({"ctx_size": 65_536, "cache_type_v": "q5_1"}, "a cache of q5_1"),
        ({"ctx_size": 65_536, "cache_type_k": "iq4_nl", "cache_type_v": "q4_0"}, "a cache of iq4_nl and q4_0"),
        ({"ctx_size": 65_536, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, ""),
        ({"ctx_size": 32_768, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}, ""),
        ({"ctx_size": 65_536, "parallel": 2, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}, ""),
    ],
)
def test_a_coarse_cache_over_a_long_context_is_warned_of(settings: dict[str, object], said: str) -> None:
    """Below q8_0 and above 32k tokens in one slot."""
    warnings = find_warnings(RunConfig(**settings), RefusalFacts(context_length=131_072))
    assert (said in warnings[0]) if said else warnings == ()


MODELS: dict[str, tuple[ModelSpec, tuple[int, ...], tuple[int, ...]]] = {
    "plain": (make_spec(), (64,), (64,)),
    "window layers of another size": (
        make_spec(layers=(make_layer(head=128), make_layer(kind="sliding", head=80)), n_layer=2),
        (80, 128),
        (80, 128),
    ),
    "recurrent layers have no cache": (
        make_spec(layers=(make_layer(kind="recurrent", head=80), make_layer(head=64)), n_layer=2),
        (64,),
        (64,),
    ),
    "shared layers own no cache": (
        make_spec(layers=(make_layer(), make_layer(kind="shared", head=80)), n_layer=2),
        (64,),
        (64,),
    ),
    "latent attention keeps keys only": (
        make_spec(layers=(make_layer(head=576, head_v=500, mla=True),), n_layer=1, is_mla=True),
        (576,),
        (),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_head_sizes_are_those_of_layers_with_a_cache(name: str) -> None:
    """Per layer, the window's variant included."""
    spec, sizes_k, sizes_v = MODELS[name]
    facts = draw_refusal_facts(make_situation(models=(spec,)), spec)
    assert (facts.head_sizes_k, facts.head_sizes_v) == (sizes_k, sizes_v)
