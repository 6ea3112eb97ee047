"""Synthetic GGUF files: a real header written by the `gguf` package, and weights that are holes in a sparse file.

A model of tens of gigabytes takes kilobytes on disk. Weights read as zeros, so llama.cpp loads such a file (the tokenizer is
"no_vocab") and its memory can be asked; its answers mean nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGUFValueType

F32, F16, BF16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16
Q8_0, Q4_0, Q4_K, Q6_K = (
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q6_K,
)

Tensor = tuple[str, tuple[int, ...], GGMLQuantizationType]
"""(name, shape with the fastest dimension first as llama.cpp prints it, format)"""
Facts = Mapping[str, object]


def tensor_bytes(shape: Sequence[int], kind: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def write_gguf(path: Path, metadata: Facts, tensors: Sequence[Tensor] = ()) -> Path:
    """Header from `metadata` (general.architecture included) and a hole of the right length for each tensor."""
    writer = GGUFWriter(path, str(metadata["general.architecture"]))
    alignment = int(str(metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)))
    if "general.alignment" in metadata:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        if key not in {"general.architecture", "general.alignment"}:
            _add(writer, key, value)
    for name, shape, kind in tensors:
        writer.add_tensor_info(name, tuple(reversed(shape)), np.dtype(np.float32), tensor_bytes(shape, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    end = _padded(path.stat().st_size, alignment)
    for _, shape, kind in tensors:
        end += _padded(tensor_bytes(shape, kind), alignment)
    os.truncate(path, end)
    return path


def write_facts(path: Path, architecture: str, facts: Facts, tensors: Sequence[Tensor] | None = None) -> Path:
    """A file for reading only: `facts` are keys without the architecture's prefix, the weights one small embedding unless given."""
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in facts.items()}
    return write_gguf(path, metadata, [("token_embd.weight", (64, 32), F16)] if tensors is None else tensors)


def llama_metadata(
    *,
    architecture: str = "llama",
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int | Sequence[int] | None = None,
    n_embd: int = 256,
    n_ff: int = 512,
    n_vocab: int = 256,
    n_ctx: int = 4096,
    head_size: int | None = None,
    n_expert: int = 0,
    n_expert_used: int = 2,
    extra: Facts | None = None,
) -> dict[str, object]:
    """Metadata of a llama-shaped model that llama.cpp loads; `extra` keys are whole and win."""
    facts: dict[str, object] = {
        "vocab_size": n_vocab,
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    if n_head_kv is not None:
        facts["attention.head_count_kv"] = n_head_kv
    if head_size is not None:
        facts |= {"attention.key_length": head_size, "attention.value_length": head_size, "rope.dimension_count": head_size}
    if n_expert:
        facts |= {"expert_count": n_expert, "expert_used_count": n_expert_used}
    metadata = {f"{architecture}.{key}": value for key, value in facts.items()}
    named: dict[str, object] = {"general.architecture": architecture, "tokenizer.ggml.model": "no_vocab"}
    return named | metadata | dict(extra or {})


def llama_tensors(
    *,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int | Sequence[int] | None = None,
    n_embd: int = 256,
    n_ff: int = 512,
    n_vocab: int = 256,
    head_size: int | None = None,
    n_expert: int = 0,
    kind: GGMLQuantizationType = F16,
    embd_kind: GGMLQuantizationType | None = None,
    tied: bool = False,
) -> list[Tensor]:
    """The tensors that llama.cpp expects of such a model."""
    head = head_size or n_embd // n_head
    kv_heads = (
        [n_head if n_head_kv is None else n_head_kv] * n_layer if not isinstance(n_head_kv, Sequence) else list(n_head_kv)
    )
    tensors: list[Tensor] = [
        ("token_embd.weight", (n_embd, n_vocab), embd_kind or kind),
        ("output_norm.weight", (n_embd,), F32),
    ]
    if not tied:
        tensors.append(("output.weight", (n_embd, n_vocab), embd_kind or kind))
    for i in range(n_layer):
        kv = int(kv_heads[i]) * head
        block: list[Tensor] = [
            ("attn_norm", (n_embd,), F32),
            ("attn_q", (n_embd, n_head * head), kind),
            ("attn_k", (n_embd, kv), kind),
            ("attn_v", (n_embd, kv), kind),
            ("attn_output", (n_head * head, n_embd), kind),
            ("ffn_norm", (n_embd,), F32),
        ]
        tensors += [
            (f"blk.{i}.{name}.weight", shape, form) for name, shape, form in (*block, *_ffn(n_embd, n_ff, n_expert, kind))
        ]
    return tensors


def write_llama(path: Path, *, extra: Facts | None = None, **shape: object) -> Path:
    """A whole llama-shaped model of the given shape (see `llama_metadata` and `llama_tensors` for the names)."""
    return write_gguf(
        path, llama_metadata(extra=extra, **_only(llama_metadata, shape)), llama_tensors(**_only(llama_tensors, shape))
    )


def write_shards(folder: Path, stem: str = "model", *, count: int = 3, **shape: object) -> list[Path]:
    """The same model split the way llama-gguf-split does: metadata in the first file, tensors dealt out in order."""
    metadata, tensors = llama_metadata(**_only(llama_metadata, shape)), llama_tensors(**_only(llama_tensors, shape))
    paths = []
    for number in range(count):
        part = tensors[number * len(tensors) // count : (number + 1) * len(tensors) // count]
        split = {"split.no": np.uint16(number), "split.count": np.uint16(count), "split.tensors.count": np.int32(len(tensors))}
        kept = metadata if number == 0 else {"general.architecture": metadata["general.architecture"]}
        paths.append(write_gguf(folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf", {**kept, **split}, part))
    return paths


def write_vocabulary(path: Path, n_tokens: int) -> Path:
    """A small model with a large tokenizer: tokens, scores and types, about 16 bytes a token."""
    tokens = [f"tok{i:07d}" for i in range(n_tokens)]
    extra = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.5] * n_tokens,
        "tokenizer.ggml.token_type": [1] * n_tokens,
    }
    return write_llama(path, extra=extra, n_vocab=n_tokens, n_layer=1, n_embd=64, n_head=1, n_ff=64)


def _ffn(n_embd: int, n_ff: int, n_expert: int, kind: GGMLQuantizationType) -> list[Tensor]:
    if not n_expert:
        return [("ffn_gate", (n_embd, n_ff), kind), ("ffn_up", (n_embd, n_ff), kind), ("ffn_down", (n_ff, n_embd), kind)]
    return [
        ("ffn_gate_inp", (n_embd, n_expert), F32),
        ("ffn_gate_exps", (n_embd, n_ff, n_expert), kind),
        ("ffn_up_exps", (n_embd, n_ff, n_expert), kind),
        ("ffn_down_exps", (n_ff, n_embd, n_expert), kind),
    ]


def _only(function: object, shape: Mapping[str, object]) -> dict[str, object]:
    known = set(llama_metadata.__kwdefaults__) | set(llama_tensors.__kwdefaults__)
    unknown = set(shape) - known
    if unknown:
        raise TypeError(f"no such part of a llama-shaped model: {sorted(unknown)}")
    accepted = function.__kwdefaults__  # type: ignore[attr-defined]
    return {name: value for name, value in shape.items() if name in accepted}


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _add(writer: GGUFWriter, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case np.uint16():
            writer.add_uint16(key, int(value))
        case np.int32():
            writer.add_int32(key, int(value))
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list() | tuple():
            writer.add_key_value(key, list(value), GGUFValueType.ARRAY)
        case _:
            raise TypeError(f"{key}: {type(value).__name__} has no GGUF type")
