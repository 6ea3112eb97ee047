"""The name of a quantisation, told by the bytes in the file and not by what the file is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tuner.model.ggml import FALLBACKS, FILE_TYPE_TENSORS, FILE_TYPES, SUPER_BLOCK
from tuner.model.gguf import TensorInfo


def count_bytes(tensors: Iterable[TensorInfo]) -> tuple[tuple[str, int], ...]:
    """(format, bytes), most bytes first."""
    counter: Counter[str] = Counter()
    for tensor in tensors:
        counter[tensor.type_name] += tensor.n_bytes
    return tuple(sorted(counter.items(), key=lambda item: (-item[1], item[0])))


def label_quant(tensors: tuple[TensorInfo, ...], file_type: int | None) -> str:
    """The format with most bytes among the blocks' tensors; the file's own, finer label where it agrees with that.

    It agrees as well where llama.cpp had to write the replacement format because rows are no multiple of 256 values.
    """
    blocks = tuple(tensor for tensor in tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1)
    dominant = count_bytes(blocks or tensors)[0][0]
    wanted = FILE_TYPE_TENSORS.get(-1 if file_type is None else file_type, ())
    if dominant in wanted or any(_replaces(dominant, name, blocks) for name in wanted):
        return FILE_TYPES[file_type or 0]
    return dominant


def _replaces(dominant: str, wanted: str, blocks: tuple[TensorInfo, ...]) -> bool:
    """Most of the dominant format's bytes lie in rows that the wanted format cannot hold."""
    if FALLBACKS.get(wanted) != dominant:
        return False
    mine = [tensor for tensor in blocks if tensor.type_name == dominant]
    forced = sum(tensor.n_bytes for tensor in mine if tensor.shape[0] % SUPER_BLOCK)
    return 2 * forced > sum(tensor.n_bytes for tensor in mine)
