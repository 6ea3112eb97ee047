"""What is known about a model before it is loaded: one frozen record, made from the header alone.

Nothing here is invented: what the file does not say and llama.cpp's rules do not settle is None, with a note that says so.
Bytes of weights are exact (from the tensor table), whatever the file's name or label claims.
"""

from __future__ import annotations

from typing import Literal

import msgspec

LayerKind = Literal["attention", "sliding", "recurrent", "shared", "none"]
"""What a block caches: all positions, a window, a state of fixed size, nothing of its own, nothing at all."""


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One block of the main context."""

    kind: LayerKind
    """Which cache the block has. A block of kind "attention" may carry a recurrent state as well (Falcon-H1)."""
    n_head: int | None
    """Query heads; None: not stated."""
    n_head_kv: int | None
    """Key and value heads of this block's own cache, 0 where it has none; None: not stated."""
    key_length: int | None
    """Elements of one key head, the window's variant where that applies; None: not stated."""
    value_length: int | None
    """Elements of one value head, the window's variant where that applies; None: not stated."""
    caches_values: bool = True
    """False with multi-head latent attention, whose cache holds keys only."""
    index_k_elements: int = 0
    """Elements per position of the sparse attention's extra key cache, 0 for almost all models."""
    index_v_elements: int = 0
    """Elements per position of the sparse attention's extra value cache, 0 for almost all models."""
    recurrent_r: int = 0
    """f32 elements of convolution (or token shift) state per sequence."""
    recurrent_s: int = 0
    """f32 elements of the state itself per sequence."""
    weight_bytes: int = 0
    """Bytes of this block's tensors, experts included, exact."""
    expert_bytes: int = 0
    """Bytes of its routed experts' tensors, exact; 0 in a dense block."""
    matrices: tuple[tuple[str, int], ...] = ()
    """(format, bytes) of the matrices that every token meets, exact, also where a block runs again; () where nobody told."""
    feed_forward: tuple[tuple[str, int], ...] = ()
    """(format, bytes) of those among `matrices` that come after the cache was read; part of them, exact."""
    expert_matrices: tuple[tuple[str, int], ...] = ()
    """(format, bytes) of its routed experts' matrices, exact."""

    @property
    def k_elements(self) -> int | None:
        """Elements of K that one position adds to this block's own cache; None: unknown."""
        return _elements(self, self.key_length)

    @property
    def v_elements(self) -> int | None:
        """Elements of V that one position adds to this block's own cache; None: unknown."""
        return _elements(self, self.value_length) if self.caches_values else 0

    @property
    def recurrent_state(self) -> int:
        """f32 elements of fixed state per sequence."""
        return self.recurrent_r + self.recurrent_s


def _elements(layer: LayerSpec, length: int | None) -> int | None:
    if layer.kind not in {"attention", "sliding"} or layer.n_head_kv == 0:
        return 0
    if layer.n_head_kv is None or length is None:
        return None
    return layer.n_head_kv * length


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model file (or its shards), as its header tells it."""

    path: str
    """The file to hand to llama.cpp: the only file, or the first shard."""
    shards: tuple[str, ...]
    """All files of the model, in order; one for an unsplit model."""
    name: str
    """general.name, else the file's name."""
    architecture: str
    """general.architecture."""
    quant: str
    """The format that holds most of the block weights by bytes, with _S/_M/_L where the file's own label agrees."""
    file_type_label: str | None
    """What general.file_type claims; None: it claims nothing known. Never used for sizes."""
    file_bytes: int
    """Bytes of all files, exact."""
    weights_bytes: int
    """Bytes of all tensors, exact."""
    parameters: int
    """Elements of all tensors, exact."""
    bits_per_weight: float
    """8 × weights_bytes / parameters."""
    bytes_by_type: tuple[tuple[str, int], ...]
    """(format, bytes) of all tensors, most bytes first."""

    n_layer: int | None
    """Blocks of the main context, draft (MTP) blocks left out; None: neither stated nor countable."""
    n_mtp_layers: int
    """Draft blocks (multi-token prediction) at the end, which the main context never runs."""
    n_embd: int | None
    """Width of the hidden state; None: not stated."""
    n_vocab: int | None
    """Rows of logits; None: not stated."""
    context_length: int | None
    """Positions that the model was trained on; None: not stated."""
    layers: tuple[LayerSpec, ...]
    """One per block of the main context; empty when their number is unknown."""
    n_swa: int | None
    """Sliding window in tokens that llama.cpp uses; None: no window."""
    v_elements_max: int | None
    """Widest V row of any block; without flash attention every block's V row gets this width. None: unknown."""
    kv_basis: Literal["exact", "upper_bound", "unknown"]
    """Whether the layers' facts give llama.cpp's own KV size, at most that, or nothing; `notes` say why."""

    n_expert: int
    """Routed experts, 0 for a dense model."""
    n_expert_used: int
    """Routed experts per token (the most of any block), 0 for a dense model."""
    n_expert_shared: int
    """Experts that every token passes."""

    rope_freq_base: float | None
    """Base frequency; None: not stated."""
    rope_scaling: str | None
    """"linear", "yarn", …; None: not stated."""
    rope_scaling_factor: float | None
    """Factor of that scaling; None: not stated."""
    rope_original_context: int | None
    """Positions before scaling; None: not stated."""

    token_embd_bytes: int
    """Bytes of the input embedding, exact; 0 when the file has none."""
    token_embd_type: str | None
    """Its format; None: no such tensor."""
    output_bytes: int
    """Bytes of the output matrix, exact; 0 when the input embedding serves for both."""
    output_type: str | None = None
    """Its format; None: no such tensor."""
    tied_embeddings: bool
    """True when the output reuses the input embedding, which llama.cpp then copies to the output's device."""
    mtp_bytes: int
    """Bytes of the draft blocks, exact."""
    other_bytes: int
    """Bytes of what is left: norms, rope factors, per-layer embeddings, encoders; exact."""

    is_mla: bool
    """Multi-head latent attention: the cache holds keys only."""
    is_encoder_only: bool
    """Text in, vector out: no KV cache, nothing to decode."""
    flash_attn_forced_off: bool
    """llama.cpp runs this architecture without flash attention whatever it is told."""

    n_tokens: int | None
    """Entries of the tokenizer's vocabulary; None: it has none."""
    tokenizer_model: str | None
    """tokenizer.ggml.model; None: not stated."""
    has_chat_template: bool
    """A chat template is stored in the file."""
    identity: str
    """sha256 (hexadecimal) over every shard's header bytes and file size: content told by header and size, not by weights."""
    notes: tuple[str, ...]
    """What is unusual or unknown about this model, one sentence each."""

    @property
    def is_moe(self) -> bool:
        return self.n_expert > 0

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts in the main context's blocks."""
        return sum(layer.expert_bytes for layer in self.layers)

    @property
    def block_bytes(self) -> int:
        """Bytes of the main context's blocks."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def n_layer_all(self) -> int | None:
        """Blocks that `n_gpu_layers` counts, draft blocks included."""
        return None if self.n_layer is None else self.n_layer + self.n_mtp_layers

    @property
    def full_offload(self) -> int | None:
        """The `n_gpu_layers` that offloads everything: all blocks and the output."""
        return None if self.n_layer_all is None else self.n_layer_all + 1

    @property
    def kv_known(self) -> bool:
        """The layers give a KV size, exact or an upper bound."""
        return self.kv_basis != "unknown"

    @property
    def has_recurrent_state(self) -> bool:
        return any(layer.recurrent_state for layer in self.layers)

    @property
    def has_kv(self) -> bool:
        """Some block has a KV cache that grows with the context."""
        return any(layer.k_elements != 0 for layer in self.layers)
