"""From a file to a spec: bytes by purpose, labels, shards, what is refused, and two real models."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.builders.gguf_files import (
    BF16,
    F16,
    F32,
    Q4_0,
    Q4_K,
    Q6_K,
    Q8_0,
    Tensor,
    llama_metadata,
    llama_tensors,
    tensor_bytes,
    write_facts,
    write_gguf,
    write_llama,
    write_shards,
)
from tests.model.kv_sum import kv_bytes
from tuner.errors import BadInputError
from tuner.model import ModelSpec, read_model, require_decoder, require_same_model


def test_bytes_add_up(tmp_path: Path) -> None:
    """Blocks, embedding, output and the rest are all the tensors, each once, and the file is little more."""
    spec = read_model(write_llama(tmp_path / "m.gguf", n_layer=3, n_head_kv=2))
    assert (
        spec.block_bytes + spec.token_embd_bytes + spec.output_bytes + spec.other_bytes + spec.mtp_bytes == spec.weights_bytes
    )
    assert spec.weights_bytes == sum(size for _, size in spec.bytes_by_type)
    assert spec.file_bytes == (tmp_path / "m.gguf").stat().st_size > spec.weights_bytes
    assert spec.bits_per_weight == pytest.approx(8 * spec.weights_bytes / spec.parameters)
    assert (spec.token_embd_bytes, spec.output_bytes, spec.other_bytes) == (131_072, 131_072, 1024)


def test_tied_embeddings(tmp_path: Path) -> None:
    """Without an output matrix the embedding serves twice; its bytes are what the output's device needs again."""
    spec = read_model(write_llama(tmp_path / "m.gguf", n_embd=2048, n_head=32, n_vocab=32000, tied=True))
    assert (spec.tied_embeddings, spec.output_bytes, spec.token_embd_bytes, spec.token_embd_type) == (
        True,
        0,
        131_072_000,
        "F16",
    )
    assert not read_model(write_llama(tmp_path / "n.gguf")).tied_embeddings


def test_encoders_are_never_tied(tmp_path: Path) -> None:
    """A model without an output has no second copy of its embedding."""
    assert not read_model(write_facts(tmp_path / "m.gguf", "bert", {"block_count": 1})).tied_embeddings


def test_offload_counts_the_output(tmp_path: Path) -> None:
    assert read_model(write_llama(tmp_path / "m.gguf", n_layer=28)).full_offload == 29


def test_experts(tmp_path: Path) -> None:
    """Only the routed experts' tensors count as expert bytes."""
    spec = read_model(write_llama(tmp_path / "m.gguf", n_expert=8, n_expert_used=2))
    assert (spec.is_moe, spec.n_expert, spec.n_expert_used) == (True, 8, 2)
    assert [layer.expert_bytes for layer in spec.layers] == [3 * tensor_bytes((256, 512, 8), F16)] * 2
    assert spec.expert_bytes < spec.block_bytes
    assert read_model(write_llama(tmp_path / "n.gguf")).expert_bytes == 0


def test_draft_blocks_have_bytes_of_their_own(tmp_path: Path) -> None:
    metadata = llama_metadata(architecture="glm4moe", n_layer=3, extra={"glm4moe.nextn_predict_layers": 1})
    spec = read_model(write_gguf(tmp_path / "m.gguf", metadata, llama_tensors(n_layer=3)))
    assert (spec.n_layer, spec.n_mtp_layers) == (2, 1)
    assert spec.mtp_bytes == spec.layers[0].weight_bytes
    assert spec.block_bytes == 2 * spec.mtp_bytes


def weights(*kinds: tuple[object, int], row: int = 256) -> list[Tensor]:
    """One block tensor per (format, number of rows)."""
    return [(f"blk.0.part{i}.weight", (row, rows), kind) for i, (kind, rows) in enumerate(kinds)]  # type: ignore[misc]


LABELS = {
    "the file's label is finer and right": (15, weights((Q4_K, 90), (Q6_K, 10)), "Q4_K_M"),
    "small": (14, weights((Q4_K, 90), (Q6_K, 10)), "Q4_K_S"),
    "a 4-bit label on 8-bit weights": (15, weights((Q8_0, 10)), "Q8_0"),
    "an F16 label on 4-bit weights": (1, weights((Q4_0, 10)), "Q4_0"),
    "no label": (None, weights((Q4_K, 90), (Q6_K, 10)), "Q4_K"),
    "an unknown label": (999, weights((Q8_0, 10)), "Q8_0"),
    "bytes decide, not tensors": (None, weights((Q8_0, 100), (F32, 1), (F32, 1), (F32, 1)), "Q8_0"),
    "half precision": (32, weights((BF16, 10)), "BF16"),
    "the replacement for rows of 64": (7, weights((Q8_0, 10), row=64), "Q8_0"),
    "Q6_K where rows forced Q8_0": (18, weights((Q8_0, 10), row=64), "Q6_K"),
    "Q6_K that is Q8_0 without need": (18, weights((Q8_0, 10)), "Q8_0"),
}


@pytest.mark.parametrize("name", LABELS)
def test_quantisation_label(name: str, tmp_path: Path) -> None:
    """Told by bytes in the blocks; the file's own label only where it fits them."""
    file_type, tensors, expected = LABELS[name]
    metadata: dict[str, object] = {"general.architecture": "llama"}
    if file_type is not None:
        metadata["general.file_type"] = file_type
    path = write_gguf(tmp_path / "mistral-7b.Q2_K.gguf", metadata, [*tensors, ("token_embd.weight", (256, 4000), F16)])
    assert read_model(path).quant == expected


def test_bits_per_weight_are_measured(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.Q2_K.gguf", {"general.architecture": "llama", "general.file_type": 10}, weights((Q8_0, 10)))
    assert read_model(path).bits_per_weight == 8.5


def test_any_shard_stands_for_all(tmp_path: Path) -> None:
    """Whichever shard is given, the model is the same, and the first file is the one to load."""
    whole = read_model(write_llama(tmp_path / "whole.gguf"))
    shards = write_shards(tmp_path, count=3)
    specs = [read_model(path) for path in shards]
    assert specs[0] == specs[1] == specs[2]
    assert specs[0].path == str(shards[0])
    assert specs[0].shards == tuple(map(str, shards))
    assert (specs[0].weights_bytes, specs[0].layers, specs[0].n_embd) == (whole.weights_bytes, whole.layers, whole.n_embd)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_shard_is_named(missing: int, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, count=3)
    shards[missing].unlink()
    with pytest.raises(BadInputError, match=rf"missing, first {shards[missing].name}"):
        read_model(shards[(missing + 1) % 3])


def test_a_cut_shard_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, count=3)
    size = shards[2].stat().st_size
    with shards[2].open("rb+") as stream:
        stream.truncate(size - 5000)
    with pytest.raises(BadInputError, match=rf"{shards[2].name}: the file is incomplete"):
        read_model(shards[0])


def test_shards_of_two_models(tmp_path: Path) -> None:
    """The same file under two names, and a shard under the wrong number."""
    shards = write_shards(tmp_path, count=2)
    shutil.copy(shards[0], shards[1])
    with pytest.raises(BadInputError, match=r"shard 0|repeats tensors"):
        read_model(shards[0])


def test_a_renamed_shard_is_no_whole_model(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, count=3)
    renamed = shards[0].rename(tmp_path / "model.gguf")
    with pytest.raises(BadInputError, match="one of 3 shards"):
        read_model(renamed)


def test_shard_count_in_a_name_is_not_believed(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m-00001-of-99999.gguf")
    with pytest.raises(BadInputError, match="99999 shards"):
        read_model(path)


NO_MODELS = {
    "clip": ({"general.architecture": "clip"}, "projector", "--mmproj"),
    "mmproj": ({"general.architecture": "qwen2vl", "general.type": "mmproj"}, "projector", "--mmproj"),
    "adapter": ({"general.architecture": "llama", "general.type": "adapter"}, "adapter", "model"),
    "imatrix": ({"general.architecture": "llama", "general.type": "imatrix"}, "importance matrix", "model"),
    "vocab": ({"general.architecture": "llama", "general.type": "vocab"}, "vocabulary", "model"),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_companions_are_refused(name: str, tmp_path: Path) -> None:
    """Projectors, adapters and their like say what they are and what to give instead."""
    metadata, what, hint = NO_MODELS[name]
    with pytest.raises(BadInputError, match=what) as caught:
        read_model(write_gguf(tmp_path / "m.gguf", metadata, [("x", (32,), F32)]))
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "architecture", ["bert", "nomic-bert", "jina-bert-v3", "t5encoder", "modern-bert", "gemma-embedding", "eurobert"]
)
def test_encoders_are_read_but_not_tuned(architecture: str, tmp_path: Path) -> None:
    facts = {"block_count": 12, "embedding_length": 384, "attention.head_count": 12, "context_length": 512}
    spec = read_model(write_facts(tmp_path / "m.gguf", architecture, facts))
    assert spec.is_encoder_only
    assert kv_bytes(spec, 512) == 0
    with pytest.raises(BadInputError, match="cannot be tuned"):
        require_decoder(spec)


@pytest.mark.parametrize("architecture", ["llada", "dream", "t5"])
def test_other_models_without_decoding(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be tuned"):
        require_decoder(read_model(write_facts(tmp_path / "m.gguf", architecture, {"block_count": 1})))


def test_a_decoder_may_be_tuned(tmp_path: Path) -> None:
    require_decoder(read_model(write_llama(tmp_path / "m.gguf")))


def test_a_decoder_made_bidirectional_is_an_encoder(tmp_path: Path) -> None:
    """Embedding models built on decoders say so by attention.causal."""
    spec = read_model(write_facts(tmp_path / "m.gguf", "llama-embed", {"block_count": 1, "attention.causal": False}))
    assert spec.is_encoder_only


def test_grok_has_no_flash_attention(tmp_path: Path) -> None:
    assert read_model(write_facts(tmp_path / "m.gguf", "grok", {"block_count": 1})).flash_attn_forced_off
    assert not read_model(write_llama(tmp_path / "n.gguf")).flash_attn_forced_off


def test_identity_follows_content(tmp_path: Path) -> None:
    """A copy under another name is the same model; another header or another size is another model."""
    first = write_llama(tmp_path / "a.gguf")
    copy = shutil.copy(first, tmp_path / "b.gguf")
    other = write_llama(tmp_path / "c.gguf", n_ctx=8192)
    longer = shutil.copy(first, tmp_path / "d.gguf")
    with longer.open("ab") as stream:
        stream.write(bytes(64))
    identity = read_model(first).identity
    assert len(identity) == 64
    assert identity == read_model(copy).identity
    assert len({identity, read_model(other).identity, read_model(longer).identity}) == 3


def test_quantisations_of_one_model(tmp_path: Path) -> None:
    one, two = (read_model(write_llama(tmp_path / f"{kind.name}.gguf", kind=kind)) for kind in (F16, Q8_0))
    require_same_model([one, two])
    require_same_model([])
    with pytest.raises(BadInputError, match="not quantisations of one model"):
        require_same_model([one, read_model(write_llama(tmp_path / "deep.gguf", n_layer=3))])


def test_rope_facts(tmp_path: Path) -> None:
    extra = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32768,
    }
    spec = read_model(write_llama(tmp_path / "m.gguf", extra=extra))
    assert (spec.rope_freq_base, spec.rope_scaling, spec.rope_scaling_factor, spec.rope_original_context) == (
        10000.0,
        "yarn",
        4.0,
        32768,
    )


def test_numbers_of_other_widths_are_read(tmp_path: Path) -> None:
    """Converters differ in how wide they write a count."""
    spec = read_model(write_llama(tmp_path / "m.gguf", extra={"llama.context_length": np.uint16(2048)}))
    assert spec.context_length == 2048


def test_smollm2(smollm2: Path) -> None:
    spec = read_model(smollm2)
    assert (spec.architecture, spec.quant, spec.n_layer, spec.n_embd, spec.n_vocab) == ("llama", "Q4_1", 30, 576, 49152)
    assert {(layer.kind, layer.n_head, layer.n_head_kv, layer.key_length) for layer in spec.layers} == {("attention", 9, 3, 64)}
    assert (spec.tied_embeddings, spec.has_chat_template, spec.kv_basis, spec.notes) == (True, True, "exact", ())
    assert spec.parameters == 134_515_008
    assert kv_bytes(spec, 8192) == 8192 * 30 * 2 * 3 * 64 * 2


def test_gemma3(gemma3: Path) -> None:
    """262,144 tokens, windows, and formats that replaced others because rows are 640 wide."""
    spec = read_model(gemma3)
    assert (spec.architecture, spec.quant, spec.n_layer, spec.n_swa, spec.n_tokens) == ("gemma3", "Q4_K_M", 18, 512, 262_144)
    assert [layer.kind for layer in spec.layers].count("attention") == 3
    assert kv_bytes(spec, 4096) == 27 * 2**20
    assert kv_bytes(spec, 4096, swa_full=True) == 75_497_472


def test_reading_needs_no_heavy_library() -> None:
    """A fresh interpreter that imports the room has neither numpy nor llama_cpp nor optuna."""
    code = (
        "import sys, tuner.model; print([m for m in ('numpy', 'llama_cpp', 'optuna', 'gguf', 'textual') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_spec_is_a_plain_value(tmp_path: Path) -> None:
    """It can be hashed, compared and sent to another process."""
    import msgspec

    spec = read_model(write_llama(tmp_path / "m.gguf"))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec
    assert len({spec, read_model(tmp_path / "m.gguf")}) == 1
