"""Small models whose work can be counted by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.builders.situations import make_spec
from tuner.model.spec import LayerSpec, ModelSpec

MIB = 2**20


def layer(**facts: Any) -> LayerSpec:
    """8 query heads, 2 KV heads of 64, one MiB of Q8_0."""
    plain: dict[str, Any] = {
        "kind": "attention", "n_head": 8, "n_head_kv": 2, "key_length": 64, "value_length": 64, "weight_bytes": MIB,
        "matrices": (("Q8_0", MIB),),
    }  # fmt: skip
    return LayerSpec(**(plain | facts))


def model(*layers: LayerSpec, **facts: Any) -> ModelSpec:
    """Two plain layers, hidden size 256, an output matrix of one MiB of Q8_0 unless told otherwise."""
    plain: dict[str, Any] = {
        "n_embd": 256, "n_vocab": 1000, "output_bytes": MIB, "output_type": "Q8_0", "token_embd_bytes": MIB,
        "token_embd_type": "Q8_0", "context_length": 8192, "bytes_by_type": (("Q8_0", 4 * MIB),), "weights_bytes": 4 * MIB,
    }  # fmt: skip
    chosen = layers or (layer(), layer())
    return make_spec(layers=chosen, n_layer=len(chosen), **(plain | facts))


def mixture() -> ModelSpec:
    """One layer: a MiB that every token meets and 8 experts of a MiB each, of which a token passes 2."""
    each = layer(weight_bytes=9 * MIB, expert_bytes=8 * MIB, expert_matrices=(("Q4_0", 8 * MIB),))
    return model(each, n_expert=8, n_expert_used=2)


def windowed() -> ModelSpec:
    """One layer that looks at everything, one at 512 tokens."""
    return model(layer(), layer(kind="sliding"), n_swa=512)


def hybrid() -> ModelSpec:
    """One layer that looks back, one with a state of 1000 elements."""
    return model(layer(), layer(kind="recurrent", n_head_kv=0, recurrent_s=900, recurrent_r=100))


def latent() -> ModelSpec:
    """Multi-head latent attention: one key head of 576, values within the keys."""
    each = layer(n_head=16, n_head_kv=1, key_length=576, value_length=512, caches_values=False)
    return model(each, is_mla=True)


def tied() -> ModelSpec:
    """The input embedding, a MiB of Q6_K, serves as the output matrix."""
    return model(output_bytes=0, output_type=None, tied_embeddings=True, token_embd_type="Q6_K")


def rename(spec: ModelSpec, path: str) -> ModelSpec:
    return msgspec.structs.replace(spec, path=path, shards=(path,))


ARCHITECTURES = {
    "dense": model(),
    "mixture": mixture(),
    "windowed": windowed(),
    "hybrid": hybrid(),
    "latent": latent(),
    "tied": tied(),
}
