"""KV bytes of published shapes, exact to the byte, from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders.gguf_files import write_facts
from tuner.memory import choose_context, default_config, kv_bytes, kv_table, recurrent_bytes
from tuner.model import ModelSpec, read_model
from tuner.runconfig import RunConfig

LLAMA_8B: dict[str, Any] = {
    "block_count": 32,
    "embedding_length": 4096,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "context_length": 131072,
}
QWEN3_4B: dict[str, Any] = {
    "block_count": 36,
    "embedding_length": 2560,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "context_length": 262144,
}
LFM2: dict[str, Any] = {
    "block_count": 16,
    "embedding_length": 2048,
    "attention.head_count": 32,
    "attention.head_count_kv": [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0],
    "shortconv.l_cache": 3,
    "context_length": 128000,
}
GPT_OSS: dict[str, Any] = {
    "block_count": 24,
    "embedding_length": 2880,
    "attention.head_count": 64,
    "attention.head_count_kv": 8,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.sliding_window": 128,
    "context_length": 131072,
}
DEEPSEEK: dict[str, Any] = {
    "block_count": 61,
    "embedding_length": 7168,
    "attention.head_count": 128,
    "attention.head_count_kv": 1,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "context_length": 163840,
}
OLD_DEEPSEEK: dict[str, Any] = {
    "block_count": 61,
    "embedding_length": 7168,
    "attention.head_count": 128,
    "attention.head_count_kv": 128,
    "attention.key_length": 192,
    "attention.value_length": 128,
    "context_length": 163840,
}
HYBRID: dict[str, Any] = {
    "block_count": 64,
    "embedding_length": 5120,
    "attention.head_count": 24,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4096,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "context_length": 262144,
}
GEMMA3_270M: dict[str, Any] = {
    "block_count": 18,
    "embedding_length": 640,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.sliding_window": 512,
    "context_length": 32768,
}
NEMO: dict[str, Any] = {
    "block_count": 40,
    "embedding_length": 5120,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "context_length": 1024000,
}

MIB = 2**20


def make(folder: Path, architecture: str, facts: dict[str, Any]) -> ModelSpec:
    return read_model(write_facts(folder / "model.gguf", architecture, facts))


@pytest.mark.parametrize(
    ("architecture", "facts", "settings", "expected"),
    [
        ("llama", LLAMA_8B, {"ctx_size": 8192}, 1_073_741_824),
        ("llama", LLAMA_8B, {"ctx_size": 131072}, 17_179_869_184),
        ("llama", LLAMA_8B, {"ctx_size": 8192, "cache_type_k": "q8_0", "flash_attn": "off"}, 822_083_584),
        ("qwen3", QWEN3_4B, {"ctx_size": 32768}, 4_831_838_208),
        ("qwen3", QWEN3_4B, {"ctx_size": 262144}, 38_654_705_664),
        ("lfm2", LFM2, {"ctx_size": 32768}, 402_653_184),
        ("lfm2", LFM2, {"ctx_size": 4096}, 50_331_648),
        ("gpt-oss", GPT_OSS, {"ctx_size": 131072}, 3_240_099_840),
        ("gpt-oss", GPT_OSS, {"ctx_size": 131072, "swa_full": True}, 6_442_450_944),
        ("deepseek2", DEEPSEEK, {"ctx_size": 32768}, 2_302_672_896),
        ("deepseek2", DEEPSEEK, {"ctx_size": 163840}, 11_513_364_480),
        ("deepseek2", DEEPSEEK, {"ctx_size": 4096}, 287_834_112),
        ("deepseek2", OLD_DEEPSEEK, {"ctx_size": 4096}, 20_468_203_520),
        ("qwen35", HYBRID, {"ctx_size": 262144}, 17_179_869_184),
        ("mistral3", NEMO, {"ctx_size": 16384}, 2_684_354_560),
        ("mistral3", NEMO, {"ctx_size": 1024000}, 167_772_160_000),
    ],
)
def test_published_shapes(
    tmp_path: Path, architecture: str, facts: dict[str, Any], settings: dict[str, Any], expected: int
) -> None:
    """Grouped heads, stated head sizes, per-layer heads, windows, latent attention and hybrids each have their own formula."""
    assert kv_bytes(make(tmp_path, architecture, facts), RunConfig(**settings)) == expected


@pytest.mark.parametrize(
    ("ctx_size", "slots", "mebibytes"), [(4096, 1, 27), (4096, 2, 42), (4096, 4, 72), (4096, 8, 72), (8192, 1, 39)]
)
def test_window_cache_grows_with_slots(tmp_path: Path, ctx_size: int, slots: int, mebibytes: int) -> None:
    """Each slot keeps a window and a batch of its own, until its whole context is smaller: what llama-server reports."""
    model = make(tmp_path, "gemma3", GEMMA3_270M)
    assert kv_bytes(model, RunConfig(ctx_size=ctx_size, parallel=slots)) == mebibytes * MIB


def test_front_ends_differ_for_windows(tmp_path: Path) -> None:
    """The binding keeps whole caches by default: 2.7 times as much, until it is told not to."""
    model = make(tmp_path, "gemma3", GEMMA3_270M)
    binding = default_config("llama-cpp-python", model).replace(ctx_size=4096)
    server = default_config("llama-server", model).replace(ctx_size=4096)
    assert kv_bytes(model, binding) == 75_497_472
    assert kv_bytes(model, binding.replace(swa_full=False)) == 28_311_552
    assert kv_bytes(model, server) == 28_311_552


def test_state_is_fixed_and_told_apart(tmp_path: Path) -> None:
    """A recurrent layer's state does not grow with the context, but with the slots."""
    hybrid, conv = make(tmp_path, "qwen35", HYBRID), make(tmp_path, "lfm2", LFM2)
    assert recurrent_bytes(hybrid, RunConfig(ctx_size=4096)) == 48 * 2_195_456
    assert recurrent_bytes(hybrid, RunConfig(ctx_size=262144, parallel=2)) == 2 * 48 * 2_195_456
    assert recurrent_bytes(conv, RunConfig(ctx_size=32768)) == 163_840


def test_recurrent_list_wins_over_the_interval(tmp_path: Path) -> None:
    """Only one layer attends although the interval says sixteen."""
    listed = make(tmp_path, "qwen35", HYBRID | {"attention.recurrent_layers": [True] * 63 + [False]})
    assert kv_bytes(listed, RunConfig(ctx_size=4096)) == 4096 * 4096
    assert recurrent_bytes(listed, RunConfig(ctx_size=4096)) == 63 * 2_195_456


def test_purely_recurrent_model_has_no_kv(tmp_path: Path) -> None:
    """No heads at all: nothing is divided by them."""
    facts = {"block_count": 4, "embedding_length": 256, "wkv.head_size": 64, "context_length": 4096}
    model = make(tmp_path, "rwkv7", facts)
    assert kv_bytes(model, RunConfig(ctx_size=4096)) == 0
    assert recurrent_bytes(model, RunConfig(ctx_size=4096)) == 4 * (2 * 256 + 256 * 64) * 4


def test_encoder_has_no_kv(tmp_path: Path) -> None:
    """An embedding model reads and forgets."""
    model = make(
        tmp_path, "bert", {"block_count": 12, "embedding_length": 384, "attention.head_count": 12, "context_length": 512}
    )
    assert kv_bytes(model, RunConfig(ctx_size=512)) == 0


def test_missing_heads_are_unknown_not_zero(tmp_path: Path) -> None:
    """Nothing is made up where the file is silent; missing KV heads are as many as query heads."""
    silent = make(tmp_path, "llama", {"block_count": 4, "embedding_length": 256, "context_length": 4096})
    assert kv_bytes(silent, RunConfig(ctx_size=4096)) is None
    alike = make(
        tmp_path, "llama", {"block_count": 4, "embedding_length": 256, "attention.head_count": 4, "context_length": 4096}
    )
    assert kv_bytes(alike, RunConfig(ctx_size=4096)) == 4 * 4096 * 2 * 256 * 2


def test_training_context_is_no_default(tmp_path: Path) -> None:
    """A model trained for a million tokens starts at a chosen context, a small one at its own."""
    assert choose_context(make(tmp_path, "mistral3", NEMO)) == 8192
    assert choose_context(make(tmp_path, "mistral3", NEMO | {"context_length": 2048})) == 2048


def test_unified_cache_is_one_pool(tmp_path: Path) -> None:
    """One cache for all slots: a window per slot in it, but one batch."""
    model = make(tmp_path, "gemma3", GEMMA3_270M)
    one_pool = kv_bytes(model, RunConfig(ctx_size=4096, parallel=4), unified=True)
    assert one_pool == 3 * 4096 * 1024 + 15 * (4 * 512 + 512) * 1024


def test_table_has_a_row_per_context_and_type(tmp_path: Path) -> None:
    """Values of a table are those of the single question."""
    rows = kv_table(make(tmp_path, "llama", LLAMA_8B), (4096, 8192), ("f16", "q8_0"))
    assert [(row.ctx_size, row.cache_type, row.kv_bytes) for row in rows] == [
        (4096, "f16", 536_870_912),
        (4096, "q8_0", 285_212_672),
        (8192, "f16", 1_073_741_824),
        (8192, "q8_0", 570_425_344),
    ]
