"""Facts of each block, by architecture: each row is a model people got wrong, with the cache size that its facts must give."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from tests.builders.gguf_files import F16, write_facts
from tests.model.kv_sum import kv_bytes, state_bytes
from tuner.errors import BadInputError
from tuner.model import ModelSpec, read_model

GIB = 2**30


def spec_of(tmp_path: Path, architecture: str, **facts: object) -> ModelSpec:
    """`a__b` in a name stands for the dot in a key."""
    named = {name.replace("__", "."): value for name, value in facts.items()}
    return read_model(write_facts(tmp_path / "model.gguf", architecture, named))


def heads(
    n_layer: int, n_embd: int, n_head: int, n_head_kv: object = None, key: int | None = None, **more: object
) -> dict[str, object]:
    facts: dict[str, object] = {"block_count": n_layer, "embedding_length": n_embd, "attention__head_count": n_head}
    if n_head_kv is not None:
        facts["attention__head_count_kv"] = n_head_kv
    if key is not None:
        facts |= {"attention__key_length": key, "attention__value_length": key}
    return facts | more


LFM2_HEADS = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]
GPT_OSS = heads(24, 2880, 64, 8, 64, attention__sliding_window=128)
DEEPSEEK = heads(
    61,
    7168,
    128,
    1,
    attention__key_length=576,
    attention__value_length=512,
    attention__key_length_mla=192,
    attention__value_length_mla=128,
)
DEEPSEEK_OLD = heads(61, 7168, 128, 128, attention__key_length=192, attention__value_length=128)
QWEN_NEXT = heads(
    64,
    5120,
    24,
    4,
    256,
    full_attention_interval=4,
    ssm__conv_kernel=4,
    ssm__inner_size=4096,
    ssm__state_size=128,
    ssm__group_count=16,
)
GEMMA_270M = heads(18, 640, 4, 1, 256, attention__sliding_window=512)

SIZES = {
    "grouped queries": ("llama", heads(32, 4096, 32, 8), 8192, GIB),
    "grouped queries at full context": ("llama", heads(32, 4096, 32, 8), 131072, 17_179_869_184),
    "stated head size wins over the quotient": ("qwen3", heads(36, 2560, 32, 8, 128), 32768, 4_831_838_208),
    "stated head size at 256k": ("qwen3", heads(36, 2560, 32, 8, 128), 262144, 36 * GIB),
    "KV heads as an array that starts with 0": (
        "lfm2",
        heads(16, 2048, 32, LFM2_HEADS, shortconv__l_cache=3),
        32768,
        402_653_184,
    ),
    "the same at 4096": ("lfm2", heads(16, 2048, 32, LFM2_HEADS, shortconv__l_cache=3), 4096, 50_331_648),
    "every second layer slides": ("gpt-oss", GPT_OSS, 131072, 3_240_099_840),
    "five of six layers slide": ("gemma3", GEMMA_270M, 4096, 27 * 2**20),
    "five of six at 8192": ("gemma3", GEMMA_270M, 8192, 39 * 2**20),
    "latent attention keeps keys only": ("deepseek2", DEEPSEEK, 32768, 2_302_672_896),
    "latent attention at full context": ("deepseek2", DEEPSEEK, 163840, 11_513_364_480),
    "the same family in an old file": ("deepseek2", DEEPSEEK_OLD, 4096, 20_468_203_520),
    "one layer of four attends": ("qwen3next", QWEN_NEXT, 262144, 17_179_869_184),
    "a million tokens of training context": (
        "llama",
        heads(40, 5120, 32, 8, 128, context_length=1_024_000),
        1_024_000,
        167_772_160_000,
    ),
    "the same at a usable context": ("llama", heads(40, 5120, 32, 8, 128, context_length=1_024_000), 16384, 2_684_354_560),
}


@pytest.mark.parametrize("name", SIZES)
def test_kv_size(name: str, tmp_path: Path) -> None:
    """The facts of all blocks give llama.cpp's own KV size, to the byte."""
    architecture, facts, n_ctx, expected = SIZES[name]
    spec = spec_of(tmp_path, architecture, **facts)
    assert spec.kv_basis == "exact"
    assert kv_bytes(spec, n_ctx) == expected


def test_whole_cache_of_sliding_layers(tmp_path: Path) -> None:
    """With the window switched off, sliding blocks are as large as the others."""
    assert kv_bytes(spec_of(tmp_path, "gpt-oss", **GPT_OSS), 131072, swa_full=True) == 6_442_450_944


STATES = {
    "short convolution": ("lfm2", heads(16, 2048, 32, LFM2_HEADS, shortconv__l_cache=3), 163_840),
    "gated delta net": ("qwen3next", QWEN_NEXT, 48 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096) * 4),
    "mamba": (
        "mamba",
        {"block_count": 24, "embedding_length": 768, "ssm__conv_kernel": 4, "ssm__inner_size": 1536, "ssm__state_size": 16},
        24 * (3 * 1536 + 16 * 1536) * 4,
    ),
    "rwkv": ("rwkv6", {"block_count": 24, "embedding_length": 2048, "wkv__head_size": 64}, 24 * (2 * 2048 + 2048 * 64) * 4),
    "rwkv with heads stated as 0": (
        "rwkv7",
        {"block_count": 12, "embedding_length": 768, "wkv__head_size": 64, "attention__head_count": 0},
        12 * (2 * 768 + 768 * 64) * 4,
    ),
    "rwkv with one token shift": (
        "arwkv7",
        {"block_count": 4, "embedding_length": 768, "wkv__head_size": 64, "token_shift_count": 1, "attention__head_count": 0},
        4 * (768 + 768 * 64) * 4,
    ),
    "kimi delta attention": (
        "kimi-linear",
        heads(4, 2304, 32, [0, 0, 0, 32], 192, kda__head_dim=128, ssm__conv_kernel=4),
        3 * (3 * 3 * 32 * 128 + 128 * 128 * 32) * 4,
    ),
    "lightning attention": ("minimax-01", heads(8, 6144, 64, 8, 128), 7 * 128 * 128 * 64 * 4),
    "attention and state in each block": (
        "falcon-h1",
        heads(6, 1024, 8, 2, 64, ssm__conv_kernel=4, ssm__inner_size=1536, ssm__state_size=128, ssm__group_count=1),
        6 * (3 * (1536 + 2 * 128) + 128 * 1536) * 4,
    ),
    "feed-forward blocks have neither": (
        "nemotron_h",
        heads(
            4,
            1024,
            8,
            [0, 0, 2, 0],
            64,
            feed_forward_length=[0, 4096, 0, 4096],
            ssm__conv_kernel=4,
            ssm__inner_size=2048,
            ssm__state_size=128,
            ssm__group_count=8,
        ),
        (3 * (2048 + 2 * 8 * 128) + 128 * 2048) * 4,
    ),
    "jamba": (
        "jamba",
        heads(4, 1024, 8, [0, 0, 2, 0], 64, ssm__conv_kernel=4, ssm__inner_size=2048, ssm__state_size=16),
        3 * (3 * 2048 + 16 * 2048) * 4,
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_recurrent_state(name: str, tmp_path: Path) -> None:
    """The fixed state of one sequence, which the context length never changes."""
    architecture, facts, expected = STATES[name]
    spec = spec_of(tmp_path, architecture, **facts)
    assert state_bytes(spec) == expected
    assert spec.kv_basis == "exact"
    assert spec.has_recurrent_state


@pytest.mark.parametrize("architecture", ["mamba", "mamba2", "rwkv6", "rwkv7", "arwkv7", "rwkv6qwen2"])
@pytest.mark.parametrize("n_head", [None, 0])
def test_purely_recurrent_models_have_no_kv(architecture: str, n_head: int | None, tmp_path: Path) -> None:
    """No heads means 0 bytes of KV, no division by zero and no number that is none."""
    facts: dict[str, object] = {
        "block_count": 3,
        "embedding_length": 64,
        "ssm__inner_size": 64,
        "ssm__state_size": 16,
        "wkv__head_size": 8,
    }
    if n_head is not None:
        facts["attention__head_count"] = n_head
    spec = spec_of(tmp_path, architecture, **facts)
    assert kv_bytes(spec, 1 << 20) == 0
    assert not spec.has_kv
    assert [layer.kind for layer in spec.layers] == ["recurrent"] * 3
    assert all(math.isfinite(value) for value in msgspec.to_builtins(spec).values() if isinstance(value, float))


def kinds(spec: ModelSpec) -> str:
    """One letter a block: Attention, Sliding, Recurrent, sHared, None."""
    return "".join(
        {"attention": "A", "sliding": "S", "recurrent": "R", "shared": "H", "none": "-"}[layer.kind] for layer in spec.layers
    )


WINDOW = {"attention__sliding_window": 64}
KINDS = {
    "afmoe": ("SSSASSSA", WINDOW),
    "cohere2": ("SSSASSSA", WINDOW),
    "cohere2moe": ("ASSSASSS", WINDOW),
    "exaone-moe": ("SSSASSSA", {}),
    "exaone4": ("AAAAAAAA", WINDOW),
    "gemma2": ("SASASASA", {}),
    "gemma3": ("SSSSSASS", WINDOW),
    "gemma3n": ("SSSSASSS", WINDOW),
    "gpt-oss": ("SASASASA", WINDOW),
    "laguna": ("ASSSASSS", WINDOW),
    "llama4": ("SSSASSSA", {}),
    "mellum": ("SSSASSSA", WINDOW),
    "muse-glimmer": ("SSSASSSA", WINDOW),
    "olmo2": ("SSSASSSA", WINDOW),
    "plamo3": ("SSSSSSSA", WINDOW),
    "smallthinker": ("ASSSASSS", WINDOW),
    "phi3": ("AAAAAAAA", WINDOW),
    "llama": ("AAAAAAAA", WINDOW),
    "qwen2": ("AAAAAAAA", WINDOW),
    "bert": ("--------", {}),
    "modern-bert": ("--------", WINDOW),
    "gemma-embedding": ("--------", WINDOW),
    "llada": ("--------", {}),
    "falcon-h1": ("AAAAAAAA", {"ssm__inner_size": 64, "ssm__state_size": 16}),
    "qwen35": ("RRRARRRA", {"ssm__inner_size": 64, "ssm__state_size": 16}),
    "qwen3next": ("RARARARA", {"full_attention_interval": 2, "ssm__inner_size": 64, "ssm__state_size": 16}),
    "minimax-01": ("RRRRRRRA", {}),
}


@pytest.mark.parametrize("architecture", KINDS)
def test_kinds_of_blocks(architecture: str, tmp_path: Path) -> None:
    """Which of eight blocks keep a window, a state, everything or nothing, when the file has no pattern of its own."""
    expected, facts = KINDS[architecture]
    spec = spec_of(tmp_path, architecture, **heads(8, 256, 4, 2, 64), **facts)
    assert kinds(spec) == expected
    assert spec.kv_basis == "exact"


WINDOWS = {
    "gemma2": (4096, {}),
    "exaone-moe": (128, {}),
    "llama4": (8192, {"attention__sliding_window": 512}),
    "smallthinker": (4096, {"attention__sliding_window": 512}),
    "gemma3": (512, {"attention__sliding_window": 512}),
    "gpt-oss": (128, {"attention__sliding_window": 128}),
}


@pytest.mark.parametrize("architecture", WINDOWS)
def test_window(architecture: str, tmp_path: Path) -> None:
    """The window that llama.cpp uses, which is not always the one in the file."""
    expected, facts = WINDOWS[architecture]
    assert spec_of(tmp_path, architecture, **heads(8, 256, 4, 2, 64), **facts).n_swa == expected


@pytest.mark.parametrize("architecture", ["gemma3", "llama4", "smallthinker", "olmo2", "afmoe", "phi3", "qwen2"])
def test_window_of_0_is_no_window(architecture: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, architecture, **heads(4, 256, 4, 2, 64), attention__sliding_window=0)
    assert spec.n_swa is None
    assert kinds(spec) == "AAAA"


PATTERNS = {
    "bools": ([True, False, False, True], "SAAS"),
    "numbers": ([1, 0, 1, 0], "SASA"),
    "a period": (2, "SASA"),
    "a period of 0: all slide": (0, "SSSS"),
    "a period of 1: none slides": (1, "AAAA"),
    "an array too short": ([True], "SAAA"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_in_the_file_wins(name: str, tmp_path: Path) -> None:
    """As an array of numbers or truth values, or as a period, the file's pattern replaces the family's."""
    pattern, expected = PATTERNS[name]
    spec = spec_of(tmp_path, "gemma3", **heads(4, 256, 4, 2, 64), **WINDOW, attention__sliding_window_pattern=pattern)
    assert kinds(spec) == expected


def test_exaone4_slides_in_its_large_size_only(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "exaone4", **heads(64, 256, 4, 2, 64))
    assert (spec.n_swa, kinds(spec)[:8]) == (4096, "SSSASSSA")


def test_recurrent_layers_win_over_the_interval(tmp_path: Path) -> None:
    """A list of recurrent blocks is the truth where the file has both."""
    spec = spec_of(tmp_path, "qwen35", **{**QWEN_NEXT, "block_count": 4}, attention__recurrent_layers=[True, False, True, True])
    assert kinds(spec) == "RARR"


def test_unknown_architecture_with_a_window_is_an_upper_bound(tmp_path: Path) -> None:
    """Without a pattern every block counts whole, and the note says that this is a bound."""
    spec = spec_of(tmp_path, "tomorrow", **heads(4, 256, 4, 2, 64), **WINDOW)
    assert (kinds(spec), spec.kv_basis) == ("AAAA", "upper_bound")
    assert any("upper bound" in note and "64 tokens" in note for note in spec.notes)


def test_unknown_architecture_uses_the_files_own_pattern(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path, "tomorrow", **heads(4, 256, 4, 2, 64), **WINDOW, attention__sliding_window_pattern=[True, False, True, False]
    )
    assert (kinds(spec), spec.n_swa) == ("SASA", 64)


def test_family_that_must_bring_its_pattern(tmp_path: Path) -> None:
    """Where llama.cpp has no default pattern either, nothing is guessed."""
    spec = spec_of(tmp_path, "mimo2", **heads(4, 256, 4, 2, 64), **WINDOW)
    assert (kinds(spec), spec.kv_basis) == ("AAAA", "upper_bound")


def test_heads_of_sliding_blocks_may_be_wider(tmp_path: Path) -> None:
    """The *_swa lengths count for sliding blocks alone; without flash attention the widest V row counts for all."""
    facts = heads(4, 256, 4, 2, 128, attention__key_length_swa=64, attention__value_length_swa=32)
    spec = spec_of(tmp_path, "gemma4", **facts, **WINDOW, attention__sliding_window_pattern=[True, True, True, False])
    assert [(layer.key_length, layer.value_length) for layer in spec.layers] == [(64, 32)] * 3 + [(128, 128)]
    assert spec.v_elements_max == 256


def test_shared_kv(tmp_path: Path) -> None:
    """The last blocks read an earlier block's cache and add none."""
    spec = spec_of(
        tmp_path,
        "gemma4",
        **heads(6, 256, 4, 2, 64),
        **WINDOW,
        attention__shared_kv_layers=2,
        attention__sliding_window_pattern=2,
    )
    assert kinds(spec)[-2:] == "HH"
    spec = spec_of(tmp_path, "gemma3n", **heads(30, 2048, 8, 2, 256), attention__sliding_window=512)
    assert kinds(spec) == "SSSSA" * 4 + "H" * 10


def test_draft_blocks_are_counted_apart(tmp_path: Path) -> None:
    """Blocks that only draft ahead have no part in the main context's cache, but n_gpu_layers counts them."""
    spec = spec_of(tmp_path, "glm4moe", **heads(47, 4096, 96, 8, 128), nextn_predict_layers=1)
    assert (spec.n_layer, spec.n_mtp_layers, len(spec.layers), spec.full_offload) == (46, 1, 46, 48)
    hybrid = spec_of(tmp_path, "qwen35", **{**QWEN_NEXT, "block_count": 65}, nextn_predict_layers=1)
    assert kv_bytes(hybrid, 262144) == 17_179_869_184


def test_sparse_attention_counts_its_second_cache(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "deepseek32", **DEEPSEEK, attention__indexer__key_length=128)
    assert {layer.index_k_elements for layer in spec.layers} == {128}
    assert spec.is_mla


def test_caches_of_a_shape_of_their_own_are_not_computed(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "deepseek4", **heads(4, 256, 4, 1, 64), **WINDOW)
    assert spec.kv_basis == "unknown"
    assert any("asked of llama.cpp" in note for note in spec.notes)


def test_kv_heads_not_stated_equal_query_heads(tmp_path: Path) -> None:
    """As llama.cpp has it; said in a note, since it is often a sign of an old converter."""
    spec = spec_of(tmp_path, "llama", **heads(2, 256, 4))
    assert [layer.n_head_kv for layer in spec.layers] == [4, 4]
    assert any("KV heads" in note for note in spec.notes)


def test_no_heads_at_all_is_unknown(tmp_path: Path) -> None:
    """Never a number that nobody stated."""
    spec = spec_of(tmp_path, "llama", block_count=2, embedding_length=256)
    assert [(layer.n_head, layer.n_head_kv, layer.key_length, layer.k_elements) for layer in spec.layers] == [(None,) * 4] * 2
    assert (spec.kv_basis, spec.kv_known) == ("unknown", False)


def test_blocks_are_counted_from_tensors(tmp_path: Path) -> None:
    tensors = [(f"blk.{i}.attn_q.weight", (64, 64), F16) for i in range(5)]
    spec = read_model(write_facts(tmp_path / "m.gguf", "llama", {"embedding_length": 64, "attention.head_count": 1}, tensors))
    assert (spec.n_layer, spec.full_offload) == (5, 6)
    assert any("counted" in note for note in spec.notes)


def test_nothing_to_count_is_unknown(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "llama")
    assert (spec.n_layer, spec.layers, spec.full_offload, spec.context_length, spec.kv_basis) == (
        None,
        (),
        None,
        None,
        "unknown",
    )
    assert spec.notes


REFUSED = {
    "KV heads for another number of blocks": {"attention__head_count_kv": [1, 2, 3]},
    "heads as text": {"attention__head_count": "many"},
    "heads as a fraction": {"attention__head_count": 4.5},
    "endless rope": {"rope__freq_base": math.inf},
    "rope that is no number": {"rope__freq_base": math.nan},
    "more blocks than llama.cpp takes": {"block_count": 513},
    "four billion blocks": {"block_count": 2**32 - 1},
    "a pattern of a hundred thousand": {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True] * 100_000},
    "a pattern of words": {"attention__sliding_window": 8, "attention__sliding_window_pattern": ["a", "b"]},
    "negative heads": {"attention__head_count_kv": [-1, 2]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_nonsense_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        spec_of(tmp_path, "gemma3", **{**heads(2, 256, 4, 2, 64), **REFUSED[name]})
    assert "\n" not in str(caught.value)
