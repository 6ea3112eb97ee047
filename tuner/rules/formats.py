"""The same model in another number format, worked out on paper: what a file would weigh that is not at hand."""

from __future__ import annotations

from typing import Final

import msgspec

from tuner.model import LayerSpec, ModelSpec
from tuner.model.ggml import SUPER_BLOCK, TENSOR_TYPES

_PLAIN: Final = "F32"
_FORMATS: Final = {each.name: each for each in TENSOR_TYPES.values()}
_FILE_LABELS: Final = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M"}


def recast_model(model: ModelSpec, name: str) -> ModelSpec | None:
    """`model` with all its matrices in the format `name`; norms and biases (F32) stay. None where the file says too little, or
    its rows are no multiple of what the format stores together.
    """
    kind = _FORMATS[name]
    if not model.bytes_by_type or not model.n_embd or (kind.block == SUPER_BLOCK and model.n_embd % SUPER_BLOCK):
        return None
    plain = dict(model.bytes_by_type).get(_PLAIN, 0)
    before, elements = model.weights_bytes - plain, model.parameters - plain // 4
    if before <= 0 or elements <= 0:
        return None
    after = elements * kind.size / kind.block
    factor = after / before
    total = plain + round(after)
    return msgspec.structs.replace(
        model,
        quant=name,
        file_type_label=None,
        file_bytes=model.file_bytes - model.weights_bytes + total,
        weights_bytes=total,
        bits_per_weight=8 * total / model.parameters,
        bytes_by_type=((name, round(after)), *(((_PLAIN, plain),) if plain else ())),
        layers=tuple(_recast_layer(layer, name, factor) for layer in model.layers),
        token_embd_bytes=round(model.token_embd_bytes * factor),
        token_embd_type=name if model.token_embd_type else None,
        output_bytes=round(model.output_bytes * factor),
        output_type=name if model.output_type else None,
        mtp_bytes=round(model.mtp_bytes * factor),
    )


def _recast_layer(layer: LayerSpec, name: str, factor: float) -> LayerSpec:
    return msgspec.structs.replace(
        layer,
        weight_bytes=round(layer.weight_bytes * factor),
        expert_bytes=round(layer.expert_bytes * factor),
        matrices=_recast_matrices(layer.matrices, name),
        feed_forward=_recast_matrices(layer.feed_forward, name),
        expert_matrices=_recast_matrices(layer.expert_matrices, name),
    )


def _recast_matrices(held: tuple[tuple[str, int], ...], name: str) -> tuple[tuple[str, int], ...]:
    """The same elements in the format `name`, to the byte; what is F32 stays."""
    plain = sum(size for kind, size in held if kind == _PLAIN)
    elements = sum(size * 8 / bits_of(kind) for kind, size in held if kind != _PLAIN)
    found = ((name, round(elements * bits_of(name) / 8)), (_PLAIN, plain))
    return tuple(each for each in found if each[1])


def label_file(name: str) -> str:
    """How files of this format are labelled where they are offered."""
    return _FILE_LABELS.get(name, name)


def bits_of(name: str) -> float:
    """Bits per weight of a format."""
    kind = _FORMATS[name]
    return 8 * kind.size / kind.block


def main_format(model: ModelSpec) -> tuple[str, float] | None:
    """The format that holds most of the matrices' bytes, and its share of them; None where the file does not say."""
    held = [(name, size) for name, size in model.bytes_by_type if name != _PLAIN]
    total = sum(size for _, size in held)
    if not total:
        return None
    name, size = max(held, key=lambda pair: pair[1])
    return name, size / total
