"""Synthetic models of every architecture that llama.cpp loads: it says itself which keys and tensors it misses, and their shapes.

Run as a program (`python -m tests.builders.architectures FOLDER VARIANT...`), because llama.cpp may abort on the way. The results
are sparse files with a true header, good for asking about memory and for nothing else.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.builders.gguf_files import F32, Tensor, write_gguf

MISSING_KEY = re.compile(r"key not found in model: ([^;\s]+)")
MISSING_TENSOR = re.compile(r"tensor '([^']+)'(?: not found|$|;)")
WRONG_SHAPE = re.compile(r"tensor '([^']+)' has wrong shape; expected ([\d, ]+), got")
BLOCK = re.compile(r"blk\.(\d+)")
MOST_TRIES = 2000
N_LAYER = 6

Facts = dict[str, Any]
"""Metadata without the architecture's prefix; None takes a key away."""

BASE: Facts = {
    "block_count": N_LAYER,
    "context_length": 16384,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "vocab_size": 1024,
}

WHEN_ASKED: Facts = {
    "attention.clamp_kqv": 1.0,
    "attention.decay_lora_rank": 32,
    "attention.gate_lora_rank": 32,
    "attention.group_norm_epsilon": 1e-5,
    "attention.group_norm_groups": 4,
    "attention.iclr_lora_rank": 32,
    "attention.indexer.block_size": 64,
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 32,
    "attention.indexer.top_k": 64,
    "attention.key_length_mla": 48,
    "attention.key_length_swa": 64,
    "attention.kv_lora_rank": 64,
    "attention.max_alibi_bias": 8.0,
    "attention.q_lora_rank": 96,
    "attention.relative_buckets_count": 32,
    "attention.scale": 1.0,
    "attention.shared_kv_layers": 2,
    "attention.sliding_window": 512,
    "attention.sliding_window_pattern": [True, True, True, True, True, False],
    "attention.value_length_mla": 32,
    "attention.value_length_swa": 64,
    "attention.value_residual_mix_lora_rank": 32,
    "convnext.block_count": 2,
    "convnext.embedding_length": 256,
    "embedding_length_per_layer_input": 32,
    "embedding_scale": 1.0,
    "expert_count": 8,
    "expert_feed_forward_length": 128,
    "expert_gating_func": 1,
    "expert_group_scale": 1.0,
    "expert_chunk_feed_forward_length": 64,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 128,
    "expert_used_count": 2,
    "expert_weights_scale": 1.0,
    "experts_per_group": 2,
    "features_length": 256,
    "hyper_connection.count": 2,
    "hyper_connection.epsilon": 1e-5,
    "hyper_connection.low_rank": 16,
    "interleave_moe_layer_step": 1,
    "kda.gate_lower_bound": -5.0,
    "kda.head_dim": 32,
    "leading_dense_block_count": 1,
    "logit_scale": 1.0,
    "posnet.block_count": 2,
    "posnet.embedding_length": 256,
    "rescale_every_n_layers": 6,
    "residual_scale": 1.0,
    "rope.dimension_count": 32,
    "rope.dimension_sections": [4, 4, 4, 0],
    "rope.scaling.yarn_log_multiplier": 0.1,
    "shortconv.l_cache": 3,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 512,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 16,
    "swiglu_clamp_exp": 7.0,
    "time_decay_extra_dim": 32,
    "time_mix_extra_dim": 32,
    "token_shift_count": 2,
    "use_parallel_residual": True,
    "wkv.head_size": 64,
    "xielu.alpha_n": [1.0] * N_LAYER,
    "xielu.alpha_p": [1.0] * N_LAYER,
    "xielu.beta": [1.0] * N_LAYER,
    "xielu.eps": [1.0] * N_LAYER,
}
"""What a key gets when llama.cpp says that it needs it."""

EXPERTS: Facts = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 128}
MLA: Facts = {
    "attention.head_count_kv": 1,
    "attention.key_length": 80,
    "attention.value_length": 64,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 32,
    "attention.kv_lora_rank": 64,
    "attention.q_lora_rank": 96,
    "rope.dimension_count": 16,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
}
OLD_MLA: Facts = MLA | {
    "attention.head_count_kv": 8,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": None,
    "attention.value_length_mla": None,
}
WINDOW: Facts = {"attention.sliding_window": 512}
GATED: Facts = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 256,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 4,
}
SOME_HEADS: Facts = {"attention.head_count_kv": [0, 0, 2, 0, 0, 2]}
GRADED_HEADS: Facts = {"attention.head_count_kv": [1, 2, 4, 8, 4, 2], "attention.head_count": [8] * N_LAYER}

PLAIN = (
    "arcee baichuan bitnet bloom chatglm codeshell cogvlm command-r dream ernie4_5 exaone falcon gemma "
    "glm4 gpt2 gptneox granite granitehybrid hunyuan-dense internlm2 jais jais2 jamba llada llama maincoder mamba mamba2 minicpm "
    "mistral3 mpt nanbeige nemotron nemotron_h nemotron_h_moe neo-bert olmo orion paddleocr pangu-embedded phi2 "
    "plamo plamo2 qwen qwen2 qwen2vl qwen3 qwen3vl refact seed_oss smollm3 stablelm starcoder starcoder2 talkie "
    "xverse"
)
"""Architectures that need nothing said but `BASE`."""

MIXTURES = (
    "arctic bailingmoe bailingmoe2 dbrx deepseek ernie4_5-moe glm4moe granitemoe grok grovemoe hunyuan-moe hy_v3 "
    "llada-moe mellum phimoe qwen2moe qwen3moe qwen3vlmoe rnd1"
)
"""Architectures that need experts."""

SPECIAL: dict[str, tuple[str, Facts]] = {
    "apertus": ("apertus", {}),
    "bert": ("bert", {"tokenizer.ggml.token_type_count": 2}),
    "cohere2": ("cohere2", WINDOW),
    "cohere2moe": ("cohere2moe", WINDOW | EXPERTS),
    "deci, graded heads": ("deci", GRADED_HEADS),
    "deepseek2, keys only": ("deepseek2", MLA | EXPERTS),
    "deepseek2, old file": ("deepseek2", OLD_MLA | EXPERTS),
    "exaone4, no window": ("exaone4", {}),
    "exaone-moe": ("exaone-moe", WINDOW | EXPERTS),
    "gemma2": ("gemma2", WINDOW),
    "gemma3": ("gemma3", WINDOW),
    "gemma3, wide window": ("gemma3", {"attention.sliding_window": 4096}),
    "gemma3n": ("gemma3n", WINDOW | {"block_count": 24}),
    "gemma4": ("gemma4", WINDOW),
    "gemma-embedding": ("gemma-embedding", WINDOW),
    "gpt-oss": ("gpt-oss", WINDOW | EXPERTS),
    "granite_swa": ("granite_swa", WINDOW),
    "kimi-linear": ("kimi-linear", MLA | EXPERTS | {"attention.head_count_kv": [0, 0, 1, 0, 0, 1]}),
    "lfm2": ("lfm2", SOME_HEADS),
    "lfm2moe": ("lfm2moe", SOME_HEADS | EXPERTS),
    "llama, experts": ("llama", EXPERTS),
    "llama, wide heads": ("llama", {"attention.key_length": 128, "attention.value_length": 128}),
    "llama4": ("llama4", EXPERTS | {"attention.chunk_size": 512}),
    "maple": ("maple", WINDOW | EXPERTS),
    "mimo2": ("mimo2", WINDOW | EXPERTS),
    "minimax-01": ("minimax-01", EXPERTS),
    "mistral4": ("mistral4", MLA | EXPERTS),
    "modern-bert": ("modern-bert", WINDOW),
    "muse-glimmer": ("muse-glimmer", WINDOW),
    "olmo2": ("olmo2", {}),
    "olmo2, window": ("olmo2", WINDOW),
    "openelm, graded heads": ("openelm", GRADED_HEADS | {"feed_forward_length": [512] * N_LAYER}),
    "plamo3": ("plamo3", WINDOW),
    "spark2_5": ("spark2_5", WINDOW | EXPERTS),
    "step35": ("step35", WINDOW | EXPERTS),
}

SPECIAL |= {
    "dots1": (
        "dots1",
        EXPERTS
        | {"expert_gating_func": 2, "expert_shared_count": 1, "leading_dense_block_count": 1, "attention.head_count_kv": 8},
    ),
    "falcon-h1": ("falcon-h1", {}),
    "minimax-m2": ("minimax-m2", EXPERTS | {"expert_gating_func": 2}),
    "olmoe": ("olmoe", EXPERTS | {"attention.head_count_kv": 8}),
    "phi3": ("phi3", {}),
    "phi3, unused window": ("phi3", WINDOW),
    "qwen3next": ("qwen3next", GATED | EXPERTS | {"block_count": 8}),
    "qwen3next, interval 2": ("qwen3next", GATED | EXPERTS | {"block_count": 8, "full_attention_interval": 2}),
    "qwen35": ("qwen35", GATED | {"block_count": 8}),
    "qwen35moe": ("qwen35moe", GATED | EXPERTS | {"block_count": 8}),
    "smallthinker": ("smallthinker", WINDOW | EXPERTS | {"expert_gating_func": 2}),
}

_GATED_BY_4 = [i for i in range(8) if (i + 1) % 4]
_GATED_BY_2 = [i for i in range(8) if (i + 1) % 2]
_GATED_TENSORS = {"attn_qkv.weight": (256, 512), "attn_gate.weight": (256, 256)}
UNASKED: dict[str, tuple[list[int], dict[str, tuple[int, ...]]]] = {
    "falcon-h1": (list(range(N_LAYER)), {"ssm_conv1d.bias": (576,), "ssm_norm.weight": (256, 2)}),
    "phi3": (list(range(N_LAYER)), {"attn_qkv.weight": (256, 384)}),
    "phi3, unused window": (list(range(N_LAYER)), {"attn_qkv.weight": (256, 384)}),
    "qwen3next": (_GATED_BY_4, _GATED_TENSORS),
    "qwen3next, interval 2": (_GATED_BY_2, _GATED_TENSORS),
    "qwen35": (_GATED_BY_4, _GATED_TENSORS),
    "qwen35moe": (_GATED_BY_4, _GATED_TENSORS),
}
"""Tensors that llama.cpp loads a model without, but cannot compute it: variant → (blocks, name in the block → shape)."""

VARIANTS: dict[str, tuple[str, Facts]] = (
    {name: (name, {}) for name in PLAIN.split()} | {name: (name, EXPERTS) for name in MIXTURES.split()} | SPECIAL
)
"""Name → architecture, metadata that differs from `BASE`."""


class NotLearnedError(Exception):
    """llama.cpp asks for something that this builder has no answer to."""


def learn(variant: str, path: Path, complain: Callable[[Path], str]) -> None:
    """Write `path`, ask, add what is missing, until llama.cpp has no complaint left."""
    architecture, facts = VARIANTS[variant]
    metadata: dict[str, object] = {"general.architecture": architecture, "tokenizer.ggml.model": "no_vocab"}
    for key, value in (BASE | facts).items():
        if value is not None:
            metadata[key if key.startswith("tokenizer.") else f"{architecture}.{key}"] = value
    blocks, unasked = UNASKED.get(variant, ([], {}))
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (256, 1024)}
    shapes |= {f"blk.{i}.{name}": shape for i in blocks for name, shape in unasked.items()}
    for _ in range(MOST_TRIES):
        tensors: list[Tensor] = [(name, shape, F32) for name, shape in shapes.items()]
        write_gguf(path, metadata, tensors)
        said = complain(path)
        if not said:
            return
        if not (_answer_shape(said, shapes) or _answer_tensor(said, shapes) or _answer_key(said, metadata, architecture)):
            raise NotLearnedError(said)
    raise NotLearnedError("no end of complaints")


def _answer_shape(said: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    if found := WRONG_SHAPE.search(said):
        shapes[found[1]] = tuple(int(size) for size in found[2].split(","))
    return found is not None


def _answer_tensor(said: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    found = MISSING_TENSOR.search(said)
    if found is None:
        return False
    before = BLOCK.sub(lambda block: f"blk.{int(block[1]) - 1}", found[1])
    shapes[found[1]] = shapes.get(before, (1,))
    return True


def _answer_key(said: str, metadata: dict[str, object], architecture: str) -> bool:
    found = MISSING_KEY.search(said)
    if found is None:
        return False
    key = found[1]
    value = WHEN_ASKED.get(key.removeprefix(f"{architecture}."))
    if value is None or key in metadata:
        return False
    metadata[key] = value
    return True


class Complainer:
    """Asks one llama.cpp library about file after file."""

    def __init__(self) -> None:
        from tuner.engines.llama_cpp_python.native import Native

        self.native = Native()

    def ask(self, path: Path) -> str:
        """What llama.cpp says against the file; "" when it loads."""
        from tuner.engines.llama_cpp_python.log import NativeLog

        self.native.log = NativeLog(lambda _: None)
        params = self.native.api.llama_model_default_params()
        params.no_alloc, params.load_mode, params.use_extra_bufts = True, 0, False
        model = self.native.api.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            return self.native.log.complaint or "refused without a word"
        self.native.api.llama_model_free(model)
        return ""


def main(folder: str, *variants: str) -> None:
    """One file per variant; a variant that aborts llama.cpp takes only its own fork along."""
    complainer, failed = Complainer(), []
    for variant in variants:
        child = os.fork()
        if child == 0:
            try:
                learn(variant, place(folder, variant), complainer.ask)
            except NotLearnedError as refusal:
                sys.stderr.write(f"{variant}: {refusal}\n")
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            failed.append(variant)
    if failed:
        sys.exit(f"not learned: {', '.join(failed)}")


def place(folder: str | Path, variant: str) -> Path:
    return Path(folder) / f"{re.sub('[^a-z0-9]+', '-', variant)}.gguf"


if __name__ == "__main__":
    main(*sys.argv[1:])
