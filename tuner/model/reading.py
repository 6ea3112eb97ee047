"""From files to one `ModelSpec`: reads the headers, refuses what is no text model, adds up the weights block by block."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tuner.errors import BadInputError
from tuner.model import architecture as rules
from tuner.model.ggml import FILE_TYPES
from tuner.model.gguf import Header, TensorInfo, shown
from tuner.model.labels import count_bytes, label_quant
from tuner.model.layers import Blocks, describe_blocks
from tuner.model.metadata import Facts
from tuner.model.shards import ModelFiles, read_files
from tuner.model.spec import LayerSpec, ModelSpec

_BLOCK: Final = re.compile(r"blk\.(\d{1,6})\.")
_EXPERT: Final = re.compile(r"blk\.\d+\.ffn_(up|down|gate|gate_up)_(ch|)exps")
_FEED_FORWARD: Final = re.compile(r"blk\.\d+\.ffn_")
_NO_BLOCKS: Final = Blocks(
    layers=(),
    n_swa=None,
    v_elements_max=None,
    is_mla=False,
    basis="unknown",
    notes=("The file neither states its number of blocks nor has tensors that could be counted.",),
)


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the tensors by what they are for."""

    blocks: dict[int, tuple[int, int]]
    """Block → (bytes, bytes of routed experts)."""
    token_embd: TensorInfo | None
    output: TensorInfo | None
    total: int


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks there are."""

    n_layer: int | None
    """Blocks of the main context; None: unknown."""
    n_mtp: int
    """Draft blocks behind them."""
    notes: tuple[str, ...]


def read_model(path: str | Path) -> ModelSpec:
    """What the header of a GGUF file (any one shard of a split model) says about the model.

    Raises BadInputError with one sentence for a file that is missing, damaged, incomplete or no text model.
    """
    files = read_files(Path(path))
    facts = Facts(files.first, _architecture(files.first))
    if not files.tensors:
        raise BadInputError(f"{shown(path)} holds no tensors, so it is no model.", "Give the file with the weights.")
    weights = _sum_weights(files.tensors)
    depth = _count_blocks(facts, weights)
    if depth.n_layer is None:
        return _assemble(files, facts, weights, _NO_BLOCKS, depth)
    per_block = [weights.blocks.get(i, (0, 0)) for i in range(depth.n_layer)]
    blocks = describe_blocks(facts, depth.n_layer, depth.n_layer + depth.n_mtp, per_block)
    blocks = msgspec.structs.replace(blocks, layers=_add_matrices(blocks.layers, files.tensors, depth.n_layer))
    return _assemble(files, facts, weights, blocks, depth)


def require_decoder(spec: ModelSpec) -> None:
    """Raises BadInputError for a model that writes no text token by token, so that there is nothing to tune."""
    arch = spec.architecture
    if spec.is_encoder_only:
        what = "turns text into vectors (an embedding or reranking model) and decodes nothing"
    elif arch in rules.DIFFUSERS:
        what = "writes all positions at once and has no KV cache"
    elif arch in rules.ENCODER_DECODERS:
        what = "needs an encoder pass before each answer"
    else:
        return
    raise BadInputError(
        f"{shown(spec.path)} cannot be tuned: its architecture {shown(arch)} {what}.",
        "Give a decoder model; `rooftune inspect` still shows this one's facts.",
    )


def _architecture(header: Header) -> str:
    """The architecture's name; refuses files that are something else than a text model."""
    kind = header.metadata.get("general.type")
    arch = header.metadata.get("general.architecture")
    if arch == "clip":
        kind = "mmproj"
    refusal = rules.NOT_MODELS.get(kind) if isinstance(kind, str) else None
    if refusal is not None:
        raise BadInputError(f"{shown(header.path)} is {refusal[0]}, not a text model.", refusal[1])
    if not isinstance(arch, str) or not re.fullmatch(r"[\w.+-]{1,64}", arch):
        raise BadInputError(
            f"{shown(header.path)} cannot be read as a model: it does not say what architecture it is.",
            "Convert or download the model again.",
        )
    return arch


def _sum_weights(tensors: tuple[TensorInfo, ...]) -> Weights:
    blocks: dict[int, tuple[int, int]] = {}
    named = {tensor.name: tensor for tensor in tensors}
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match is None:
            continue
        number = int(match[1])
        whole, experts = blocks.get(number, (0, 0))
        blocks[number] = (whole + tensor.n_bytes, experts + (tensor.n_bytes if _EXPERT.match(tensor.name) else 0))
    return Weights(
        blocks=blocks,
        token_embd=named.get("token_embd.weight"),
        output=named.get("output.weight"),
        total=sum(tensor.n_bytes for tensor in tensors),
    )


def _add_matrices(layers: tuple[LayerSpec, ...], tensors: tuple[TensorInfo, ...], n_layer: int) -> tuple[LayerSpec, ...]:
    """Formats block by block; a block that runs again reads the same matrices again."""
    found: dict[tuple[int, bool], list[TensorInfo]] = {}
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match is not None and len(tensor.shape) > 1:
            found.setdefault((int(match[1]), bool(_EXPERT.match(tensor.name))), []).append(tensor)
    return tuple(
        msgspec.structs.replace(
            layer,
            matrices=count_bytes(found.get((i % n_layer, False), ())),
            feed_forward=count_bytes([each for each in found.get((i % n_layer, False), ()) if _FEED_FORWARD.match(each.name)]),
            expert_matrices=count_bytes(found.get((i % n_layer, True), ())),
        )
        for i, layer in enumerate(layers)
    )


def _count_blocks(facts: Facts, weights: Weights) -> Depth:
    notes: list[str] = []
    n_all = facts.count("block_count")
    if not n_all:
        if not weights.blocks:
            return Depth(n_layer=None, n_mtp=0, notes=())
        n_all = max(weights.blocks) + 1
        notes.append(f"The file does not state its number of blocks; {n_all} are counted from its tensors.")
    if n_all > rules.MOST_LAYERS:
        raise BadInputError(
            f"{shown(facts.header.path)} claims {n_all} blocks, and llama.cpp takes at most {rules.MOST_LAYERS}.",
            "Convert or download the model again.",
        )
    n_mtp = facts.count("nextn_predict_layers") or 0
    if n_mtp >= n_all:
        notes.append("All of its blocks are draft blocks: it is the helper of another model.")
        n_mtp = 0
    elif n_mtp and facts.prefix == "deepseek4" and n_all - n_mtp not in weights.blocks:
        n_mtp = 0
    elif n_mtp:
        notes.append(f"{n_mtp} of its {n_all} blocks only draft tokens ahead; the main context neither runs nor caches them.")
    return Depth(n_layer=n_all - n_mtp, n_mtp=n_mtp, notes=tuple(notes))


def _count_vocabulary(facts: Facts, weights: Weights) -> tuple[int | None, int | None]:
    """(rows of logits, entries of the tokenizer)."""
    tokens = facts.header.metadata.get("tokenizer.ggml.tokens")
    n_tokens = getattr(tokens, "count", None) if not isinstance(tokens, str) else None
    matrix = weights.output or weights.token_embd
    rows = matrix.shape[1] if matrix is not None and len(matrix.shape) > 1 else None
    return n_tokens or facts.count("vocab_size") or rows, n_tokens


def _is_encoder(facts: Facts) -> bool:
    return facts.prefix in rules.ENCODERS or facts.single("attention.causal") == 0


def _file_type(header: Header) -> int | None:
    value = header.metadata.get("general.file_type")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _assemble(files: ModelFiles, facts: Facts, weights: Weights, blocks: Blocks, depth: Depth) -> ModelSpec:
    n_layer, n_mtp = depth.n_layer, depth.n_mtp
    first, tensors, arch = files.first, files.tensors, facts.prefix
    file_type, parameters = _file_type(first), sum(tensor.n_elements for tensor in tensors)
    n_vocab, n_tokens = _count_vocabulary(facts, weights)
    encoder = _is_encoder(facts)
    embd, output = weights.token_embd, weights.output
    embd_bytes, output_bytes = (embd.n_bytes if embd else 0), (output.n_bytes if output else 0)
    mtp_bytes = sum(size for i, (size, _) in weights.blocks.items() if n_layer is not None and i >= n_layer)
    block_bytes = sum(layer.weight_bytes for layer in blocks.layers)
    name = first.metadata.get("general.name")
    tokenizer = first.metadata.get("tokenizer.ggml.model")
    return ModelSpec(
        path=str(first.path),
        shards=tuple(str(header.path) for header in files.headers),
        name=shown(name) if isinstance(name, str) and name.strip() else shown(first.path.stem),
        architecture=arch,
        quant=label_quant(tensors, file_type),
        file_type_label=None if file_type is None else FILE_TYPES.get(file_type),
        file_bytes=files.file_bytes,
        weights_bytes=weights.total,
        parameters=parameters,
        bits_per_weight=8 * weights.total / parameters,
        bytes_by_type=count_bytes(tensors),
        n_layer=None if n_layer is None else len(blocks.layers),
        n_mtp_layers=n_mtp,
        n_embd=facts.count("embedding_length"),
        n_vocab=n_vocab,
        context_length=facts.count("context_length"),
        layers=blocks.layers,
        n_swa=blocks.n_swa,
        v_elements_max=blocks.v_elements_max,
        kv_basis=blocks.basis,
        n_expert=facts.count("expert_count") or 0,
        n_expert_used=facts.count("expert_used_count") or 0,
        n_expert_shared=facts.count("expert_shared_count") or 0,
        rope_freq_base=facts.real("rope.freq_base"),
        rope_scaling=facts.text("rope.scaling.type"),
        rope_scaling_factor=facts.real("rope.scaling.factor"),
        rope_original_context=facts.count("rope.scaling.original_context_length"),
        token_embd_bytes=embd_bytes,
        token_embd_type=embd.type_name if embd else None,
        output_bytes=output_bytes,
        output_type=output.type_name if output else None,
        tied_embeddings=embd is not None and output is None and not encoder,
        mtp_bytes=mtp_bytes,
        other_bytes=weights.total - embd_bytes - output_bytes - mtp_bytes - block_bytes,
        is_mla=blocks.is_mla,
        is_encoder_only=encoder,
        flash_attn_forced_off=arch in rules.FLASH_ATTENTION_OFF,
        n_tokens=n_tokens,
        tokenizer_model=shown(tokenizer) if isinstance(tokenizer, str) else None,
        has_chat_template="tokenizer.chat_template" in first.metadata,
        identity=files.identity,
        notes=(*depth.notes, *blocks.notes),
    )


def require_same_model(specs: Sequence[ModelSpec]) -> None:
    """Raises BadInputError unless all are quantisations of one model: same architecture, depth, width and vocabulary."""
    for spec in specs[1:]:
        first = specs[0]
        same = (first.architecture, first.n_layer, first.n_embd, first.n_vocab)
        if (spec.architecture, spec.n_layer, spec.n_embd, spec.n_vocab) != same:
            raise BadInputError(
                f"{shown(first.path)} and {shown(spec.path)} are not quantisations of one model.",
                "Give files of one model, or tune them one by one.",
            )
