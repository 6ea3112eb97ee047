"""The facts of each block against the installed llama.cpp: the caches it makes have exactly the cells and elements we say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model.kv_sum import pad256
from tuner.model import ModelSpec, read_model

CONTEXT = 8192
BASE: dict[str, object] = {
    "context_length": CONTEXT,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "vocab_size": 256,
    "block_count": 8,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
WINDOW = {"attention.sliding_window": 512}
PATTERN = {"attention.sliding_window_pattern": [True, False, True, True, True, False, True, False]}
EXPERTS = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 64,
    "leading_dense_block_count": 1,
    "expert_gating_func": 2,
}
STATE = {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 64, "ssm.group_count": 2, "ssm.time_step_rank": 8}
HYBRID = {"attention.head_count_kv": [0, 0, 2, 0, 0, 2, 0, 0]}
HEADS = {"attention.key_length": 64, "attention.value_length": 64}
NARROW = {"attention.key_length_swa": 32, "attention.value_length_swa": 32}
LATENT = {
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 96,
    "attention.value_length_mla": 64,
    "attention.kv_lora_rank": 64,
    "attention.q_lora_rank": 64,
    "rope.dimension_count": 32,
}
ONE_HEAD = LATENT | {"attention.head_count_kv": 1}
INDEX = {"attention.indexer.key_length": 64, "attention.indexer.head_count": 2, "attention.indexer.top_k": 64}
DELTA = {"kda.head_dim": 64, "ssm.conv_kernel": 4}

MODELS = {
    "afmoe": WINDOW | EXPERTS,
    "cohere2": WINDOW,
    "cohere2moe": WINDOW | EXPERTS,
    "deci": {"attention.head_count_kv": [2, 0, 0, 2, 1, 2, 2, 2], "attention.head_count": [4, 0, 4, 4, 4, 4, 4, 4]},
    "deepseek2": ONE_HEAD | EXPERTS,
    "deepseek32": ONE_HEAD | EXPERTS | INDEX,
    "dots3note": ONE_HEAD | EXPERTS | INDEX | WINDOW | PATTERN | {"attention.indexer.types": [1] * 8},
    "exaone-moe": WINDOW | EXPERTS,
    "exaone4": WINDOW,
    "falcon-h1": STATE,
    "gemma2": {},
    "gemma3": WINDOW,
    "gemma4": WINDOW | PATTERN | HEADS | NARROW | {"attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 64},
    "glm4moe": EXPERTS | {"nextn_predict_layers": 1},
    "glm5-next": LATENT | EXPERTS | INDEX | HYBRID | DELTA | {"attention.indexer.kpool": 4},
    "gpt-oss": WINDOW | EXPERTS,
    "granite_swa": WINDOW | PATTERN,
    "granitehybrid": STATE | HYBRID,
    "grok": EXPERTS,
    "hy_v4": ONE_HEAD | EXPERTS | INDEX | {"attention.indexer.types": [1, 0, 1, 0, 1, 0, 1, 0]},
    "jamba": STATE | HYBRID | EXPERTS,
    "kimi-linear": LATENT | EXPERTS | HYBRID | DELTA,
    "lfm2": HYBRID | {"shortconv.l_cache": 3},
    "llama": {},
    "llama4": EXPERTS | {"interleave_moe_layer_step": 1},
    "mamba": STATE,
    "mamba2": STATE,
    "mimo2": WINDOW | PATTERN | EXPERTS,
    "minimax-01": EXPERTS,
    "minimax-m3": EXPERTS | INDEX,
    "nanbeige": {"num_loops": 2},
    "nemotron_h": STATE | HYBRID | {"feed_forward_length": [0, 512, 0, 0, 512, 0, 0, 512]},
    "olmo2": WINDOW,
    "phi3": WINDOW | {"rope.dimension_count": 64},
    "plamo3": WINDOW,
    "qwen2": WINDOW,
    "qwen3next": STATE | EXPERTS,
    "rwkv6qwen2": {"wkv.head_size": 64, "token_shift_count": 1},
    "smallthinker": WINDOW | EXPERTS,
    "step35": WINDOW | PATTERN | EXPERTS,
}

Sizes = tuple[float, float, float]


def ask_llama_cpp(path: Path, architecture: str, facts: dict[str, object]) -> Sizes:
    """MiB of (KV, convolution state, state)."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, "-m", "tests.model.llama_child", str(path), architecture, json.dumps(facts)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=250)
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines, ended.stderr[-1000:]
    kv = sum(float(line[3]) + float(line[4]) for line in lines if line[0] == "size")
    states = [line for line in lines if line[0] == "state"]
    return kv, sum(float(line[1]) for line in states), sum(float(line[2]) for line in states)


def add_up(spec: ModelSpec) -> Sizes:
    """The same three from the layers' facts."""
    elements = 0
    for layer in spec.layers:
        cells = CONTEXT if layer.kind != "sliding" else pad256(min(CONTEXT, (spec.n_swa or 0) + 512))
        assert layer.k_elements is not None
        assert layer.v_elements is not None
        elements += cells * (layer.k_elements + layer.v_elements) + CONTEXT * (layer.index_k_elements + layer.index_v_elements)
    r, s = sum(layer.recurrent_r for layer in spec.layers), sum(layer.recurrent_s for layer in spec.layers)
    return elements * 2 / 2**20, r * 4 / 2**20, s * 4 / 2**20


@pytest.mark.llama
@pytest.mark.parametrize("architecture", MODELS)
def test_llama_cpp_makes_the_same_caches(architecture: str, tmp_path: Path) -> None:
    """KV of full and sliding blocks, index caches and recurrent states, to the hundredth MiB that llama.cpp prints."""
    path = tmp_path / "model.gguf"
    theirs = ask_llama_cpp(path, architecture, BASE | MODELS[architecture])
    spec = read_model(path)
    assert spec.kv_basis == "exact"
    assert add_up(spec) == pytest.approx(theirs, abs=0.021)
