"""Writes small llama-shaped models in any tensor format, in a second or less, for llama.cpp to be timed with.

Weights are random blocks whose scales are harmless, so that every number in between stays finite; the answers mean nothing.
A tile of blocks is repeated to the size wanted: what matters is that the bytes are there and must be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_TILE_BYTES: Final = 2**20
_SMALL: Final = b"\x66\x0c"
"""2.7e-4 as a half float: times a block's largest number still far below 1."""
_MEDIUM: Final = b"\x66\x1c"
"""4.3e-3 as a half float."""
_ZERO: Final = b"\x00\x00"

_SCALES: Final[dict[str, tuple[tuple[int, bytes], ...]]] = {
    "Q4_0": ((0, _MEDIUM),),
    "Q4_1": ((0, _MEDIUM), (2, _ZERO)),
    "Q5_0": ((0, _MEDIUM),),
    "Q5_1": ((0, _MEDIUM), (2, _ZERO)),
    "Q8_0": ((0, _SMALL),),
    "Q2_K": ((80, _MEDIUM), (82, _MEDIUM)),
    "Q3_K": ((108, _SMALL),),
    "Q4_K": ((0, _SMALL), (2, _SMALL)),
    "Q5_K": ((0, _SMALL), (2, _SMALL)),
    "Q6_K": ((208, b"\x66\x01"),),
    "IQ4_NL": ((0, _SMALL),),
    "IQ4_XS": ((0, b"\x66\x01"),),
    "MXFP4": ((0, b"\x77"),),
}
"""Where each format's block keeps its scales (ggml-common.h), and what is put there; everything else is random."""

_PLAIN: Final = frozenset({"F32", "F16", "BF16"})

FORMATS: Final = (*sorted(_SCALES), "BF16", "F16")
"""Tensor formats that a model can be written in."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A dense llama model, with an output matrix of its own."""

    n_layer: int
    """Blocks."""
    n_embd: int
    """Hidden size."""
    n_head: int
    """Query heads."""
    n_head_kv: int
    """Key and value heads."""
    head_size: int
    """Length of a key and of a value."""
    n_ff: int
    """Width of the feed-forward part."""
    n_vocab: int
    """Tokens of the vocabulary."""
    format: str
    """Format of every matrix but the input embedding, one of FORMATS."""
    n_ctx: int = 8192
    """Training context, tokens."""

    @property
    def layer_elements(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.n_embd * self.head_size * 2 * (self.n_head + self.n_head_kv)
        return attention + self.feed_forward_elements

    @property
    def feed_forward_elements(self) -> int:
        """Those of them behind the attention."""
        return 3 * self.n_embd * self.n_ff

    @property
    def output_elements(self) -> int:
        """Weights of the output matrix."""
        return self.n_embd * self.n_vocab


class _Tensor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    shape: tuple[int, ...]
    format: str


def write_model(path: Path, shape: Shape) -> Path:
    """Write the file. Raises KeyError for a format that is none of FORMATS, OSError where there is no room."""
    tensors = list(_list_tensors(shape))
    _write_header(path, shape, tensors)
    with path.open("ab") as out:
        for tensor in tensors:
            _pad(out)
            _write_weights(out, tensor)
        _pad(out)
    return path


def _list_tensors(shape: Shape) -> Iterator[_Tensor]:
    embd, ff, form = shape.n_embd, shape.n_ff, shape.format
    queries, keys = shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    yield _Tensor(name="token_embd.weight", shape=(embd, shape.n_vocab), format="F16")
    yield _Tensor(name="output_norm.weight", shape=(embd,), format="F32")
    yield _Tensor(name="output.weight", shape=(embd, shape.n_vocab), format=form)
    for layer in range(shape.n_layer):
        for name, size, kind in (
            ("attn_norm", (embd,), "F32"),
            ("attn_q", (embd, queries), form),
            ("attn_k", (embd, keys), form),
            ("attn_v", (embd, keys), form),
            ("attn_output", (queries, embd), form),
            ("ffn_norm", (embd,), "F32"),
            ("ffn_gate", (embd, ff), form),
            ("ffn_up", (embd, ff), form),
            ("ffn_down", (ff, embd), form),
        ):
            yield _Tensor(name=f"blk.{layer}.{name}.weight", shape=size, format=kind)


def _write_header(path: Path, shape: Shape, tensors: list[_Tensor]) -> None:
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-5)
    for tensor in tensors:
        kind = GGMLQuantizationType[tensor.format]
        size = _count_bytes(tensor)
        writer.add_tensor_info(tensor.name, tuple(reversed(tensor.shape)), np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _write_weights(out: BinaryIO, tensor: _Tensor) -> None:
    left = _count_bytes(tensor)
    tile = _make_tile(tensor.format).tobytes()
    while left > 0:
        out.write(tile[:left])
        left -= len(tile)


def _make_tile(form: str) -> npt.NDArray[np.uint8]:
    """About a MiB of whole blocks; norms are ones."""
    import numpy as np

    draw = np.random.Generator(np.random.PCG64(7))
    if form == "F32":
        return np.ones(_TILE_BYTES // 4, dtype=np.float32).view(np.uint8)
    if form in _PLAIN:
        values = draw.normal(0.0, 0.03, size=_TILE_BYTES // 2).astype(np.float32)
        return (
            values.astype(np.float16).view(np.uint8)
            if form == "F16"
            else (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        )
    size = _block_of(form)[1]
    blocks = draw.integers(0, 256, size=(_TILE_BYTES // size, size), dtype=np.uint8)
    for offset, value in _SCALES[form]:
        blocks[:, offset : offset + len(value)] = np.frombuffer(value, dtype=np.uint8)
    return blocks.reshape(-1)


def _count_bytes(tensor: _Tensor) -> int:
    block, size = _block_of(tensor.format)
    return math.prod(tensor.shape) // block * size


def count_bytes(form: str, elements: int) -> int:
    """Bytes that so many weights of a format take."""
    block, size = _block_of(form)
    return elements // block * size


def _block_of(form: str) -> tuple[int, int]:
    from tuner.model.ggml import TENSOR_TYPES

    found = next(kind for kind in TENSOR_TYPES.values() if kind.name == form)
    return found.block, found.size


def _pad(out: BinaryIO) -> None:
    from gguf.constants import GGUF_DEFAULT_ALIGNMENT

    out.write(b"\0" * (-out.tell() % GGUF_DEFAULT_ALIGNMENT))
