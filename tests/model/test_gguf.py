"""The reader against files that lie: every header ends in a spec or in one clear sentence, quickly and in little memory."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.gguf_files import F16, F32, Q4_K, Q8_0, tensor_bytes, write_facts, write_gguf, write_llama, write_vocabulary
from tests.builders.raw_gguf import ARRAY, DATA, PAIRS, STRING, TENSORS, U32, header, hostile_files, pair, tensor, text, typed
from tuner.errors import BadInputError
from tuner.model import ModelSpec, read_model
from tuner.model.gguf import read_header

GOOD = header()
HEADER_END = len(GOOD) - len(DATA)
BLOCK = pair("llama.block_count", 1)

MORE_HOSTILE = {
    "empty key": header(pairs=(*PAIRS, text("") + struct.pack("<II", U32, 1))),
    "a key twice": header(pairs=(*PAIRS, BLOCK)),
    "key that is no text": header(pairs=(*PAIRS, text(b"\xff\xfe") + struct.pack("<II", U32, 1))),
    "key of 2000 bytes": header(pairs=(*PAIRS, pair("k" * 2000, 1))),
    "tensor name that is no text": header(tensors=(*TENSORS, tensor("x", (32,))[:8] + b"\xff" + tensor("x", (32,))[9:])),
    "tensor name of 64 bytes": header(tensors=(tensor("t" * 64, (32,)),)),
    "no dimensions": header(tensors=(tensor("x", ()),)),
    "5 dimensions": header(tensors=(tensor("x", (2, 2, 2, 2, 2)),)),
    "four large dimensions": header(tensors=(tensor("x", (2**31, 2**31, 2**31, 2**31)),)),
    "dimension 2^64-1": header(tensors=(tensor("x", (2**64 - 1,)),)),
    "a gap in the data": header(tensors=(TENSORS[0], tensor("blk.0.attn_q.weight", (32, 32), offset=2048))),
    "tensors that overlap": header(tensors=(TENSORS[0], tensor("blk.0.attn_q.weight", (32, 32), offset=512))),
    "tensors in the wrong order": header(tensors=TENSORS[::-1]),
    "type of the metadata 13": header(pairs=(*PAIRS, typed("x.y", 13, bytes(8)))),
    "type of the metadata 2^32-1": header(pairs=(*PAIRS, typed("x.y", 2**32 - 1, bytes(8)))),
    "array in an array": header(pairs=(*PAIRS, typed("x.y", ARRAY, struct.pack("<IQIQ", ARRAY, 1, U32, 1) + bytes(4)))),
    "array of 2^64-1 bytes": header(pairs=(*PAIRS, typed("x.y", ARRAY, struct.pack("<IQ", 0, 2**64 - 1)))),
    "array of 2^62 long numbers": header(pairs=(*PAIRS, typed("x.y", ARRAY, struct.pack("<IQ", 10, 2**62)))),
    "string array cut in a length": header(
        pairs=(*PAIRS, typed("x.y", ARRAY, struct.pack("<IQ", STRING, 700) + bytes(9))), tensors=()
    ),
    "string array that jumps over the end": header(pairs=(*PAIRS, typed("x.y", ARRAY, struct.pack("<IQQ", STRING, 2, 2**63)))),
    "alignment of 64 bits": header(pairs=(PAIRS[0], typed("general.alignment", 10, struct.pack("<Q", 32)), *PAIRS[2:])),
    "alignment -32": header(pairs=(PAIRS[0], typed("general.alignment", 5, struct.pack("<i", -32)), *PAIRS[2:])),
    "alignment true": header(pairs=(PAIRS[0], typed("general.alignment", 7, b"\x01"), *PAIRS[2:])),
    "architecture with a line break": header(pairs=(pair("general.architecture", "lla\nma"), *PAIRS[1:])),
    "architecture of 5000 letters": header(pairs=(pair("general.architecture", "a" * 5000), *PAIRS[1:])),
    "empty architecture": header(pairs=(pair("general.architecture", ""), *PAIRS[1:])),
    "a vocabulary": header(pairs=(*PAIRS, pair("general.type", "vocab"))),
    "a projector by its type": header(pairs=(*PAIRS, pair("general.type", "mmproj"))),
    "blocks as text": header(pairs=(*PAIRS[:2], pair("llama.block_count", "1"), *PAIRS[3:])),
    "negative blocks": header(pairs=(*PAIRS[:2], typed("llama.block_count", 5, struct.pack("<i", -1)), *PAIRS[3:])),
    "tensor count beyond the table": header(n_tensors=3),
    "pair count beyond the pairs": header(n_pairs=len(PAIRS) + 40),
    "2^17 tensors": header(n_tensors=2**17 + 1),
    "IQ4_NL by its removed packing": header(tensors=(tensor("x", (32, 1), kind=36),)),
    "tensor type 43": header(tensors=(tensor("x", (32, 1), kind=43),)),
    "tensor type 2^32-1": header(tensors=(tensor("x", (32, 1), kind=2**32 - 1),)),
    "K format with a row of 32": header(tensors=(tensor("x", (32, 1), kind=12),)),
}
HOSTILE = hostile_files() | MORE_HOSTILE


def read_bytes(folder: Path, content: bytes) -> ModelSpec:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return read_model(path)


def check_sentence(error: BadInputError) -> None:
    assert "\n" not in str(error)
    assert error.message.isprintable()
    assert error.message.endswith(".")
    assert 30 < len(str(error)) < 800


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header(name: str, tmp_path: Path) -> None:
    """One sentence, less than a second of processor time, less than 4 MiB."""
    path = tmp_path / "model.gguf"
    path.write_bytes(HOSTILE[name])
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(BadInputError) as caught:
        read_model(path)
    seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check_sentence(caught.value)
    assert seconds < 1
    assert peak < 4 * 2**20


def test_enough_hostile_headers() -> None:
    assert len(HOSTILE) >= 100


def test_each_cut_is_refused(tmp_path: Path) -> None:
    """A good file cut at every single byte of its header, and at several of its data."""
    cuts = [*range(HEADER_END + 1), HEADER_END + 1000, len(GOOD) - 1]
    for cut in cuts:
        with pytest.raises(BadInputError) as caught:
            read_bytes(tmp_path, GOOD[:cut])
        check_sentence(caught.value)


def test_the_good_file_is_read(tmp_path: Path) -> None:
    """Or the tests above would prove nothing."""
    assert read_bytes(tmp_path, GOOD).n_layer == 1
    assert read_bytes(tmp_path, header(version=2)).n_layer == 1


def test_an_incomplete_file_says_how_much_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=rf"incomplete: needs {len(GOOD)} bytes, has {len(GOOD) - 5}\."):
        read_bytes(tmp_path, GOOD[:-5])


@pytest.mark.parametrize(("version", "words"), [(0x03000000, "big-endian"), (1, "version is 1"), (99, "version is 99")])
def test_the_version_is_named(version: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=words):
        read_bytes(tmp_path, header(version=version))


def test_huge_sparse_zeros_cost_nothing(tmp_path: Path) -> None:
    """A file of a terabyte of zeros behind a string array's start is not walked."""
    claims = header(pairs=(*PAIRS, typed("x.y", ARRAY, struct.pack("<IQ", STRING, 2**36))), tensors=(), data=b"")
    path = tmp_path / "model.gguf"
    path.write_bytes(claims)
    os.truncate(path, 2**40)
    started = time.process_time()
    with pytest.raises(BadInputError):
        read_model(path)
    assert time.process_time() - started < 1


def test_a_large_but_empty_array_does_not_fill_memory(tmp_path: Path) -> None:
    """Sparse numbers by the gigabyte: skipped by arithmetic, then refused as too large a header."""
    claims = header(pairs=(*PAIRS, typed("x.y", ARRAY, struct.pack("<IQ", U32, 2**30))), tensors=(), data=b"")
    path = tmp_path / "model.gguf"
    path.write_bytes(claims)
    os.truncate(path, 2**33)
    with pytest.raises(BadInputError, match="header is larger"):
        read_model(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, HEADER_END - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_flipped_bytes_give_a_spec_or_a_sentence(changes: list[tuple[int, int]], tmp_path: Path) -> None:
    """Whatever bytes of the header change: a ModelSpec or a BadInputError, nothing else."""
    content = bytearray(GOOD)
    for position, value in changes:
        content[position] = value
    try:
        spec = read_bytes(tmp_path, bytes(content))
    except BadInputError as error:
        check_sentence(error)
    else:
        assert spec.parameters > 0


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(
        [
            "block_count",
            "embedding_length",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attention.shared_kv_layers",
            "nextn_predict_layers",
            "full_attention_interval",
            "ssm.inner_size",
            "shortconv.l_cache",
            "expert_count",
        ]
    ),
    value=st.one_of(
        st.integers(0, 2**32 - 1),
        st.floats(width=32),
        st.booleans(),
        st.text(max_size=4),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
    ),
    architecture=st.sampled_from(
        ["llama", "gemma3", "gemma4", "lfm2", "qwen35", "mamba", "rwkv7", "nemotron_h", "deepseek2", "tomorrow"]
    ),
)
def test_any_value_under_any_key(key: str, value: object, architecture: str, tmp_path: Path) -> None:
    """Numbers of any size, fractions, words and lists where a count belongs: a ModelSpec or a BadInputError."""
    facts = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4, "attention.sliding_window": 8} | {key: value}
    try:
        spec = read_model(write_facts(tmp_path / "model.gguf", architecture, facts))
    except BadInputError as error:
        check_sentence(error)
    else:
        assert all((layer.k_elements or 0) >= 0 and layer.recurrent_state >= 0 for layer in spec.layers)


def test_a_large_vocabulary_is_cheap(tmp_path: Path) -> None:
    """150,000 tokens: no object per token; the time bound is generous, since machines are busy."""
    path = write_vocabulary(tmp_path / "model.gguf", 150_000)
    read_model(path)
    started = time.process_time()
    spec = read_model(path)
    assert time.process_time() - started < 2
    tracemalloc.start()
    read_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (spec.n_tokens, spec.n_vocab) == (150_000, 150_000)
    assert peak < 10 * 2**20


def test_time_per_token_does_not_grow(tmp_path: Path) -> None:
    """Ten times the tokens take about ten times as long, not a hundred."""

    def seconds(path: Path) -> float:
        taken = []
        for _ in range(3):
            started = time.process_time()
            read_header(path)
            taken.append(time.process_time() - started)
        return min(taken)

    small, large = write_vocabulary(tmp_path / "s.gguf", 20_000), write_vocabulary(tmp_path / "l.gguf", 200_000)
    assert seconds(large) < 40 * seconds(small)


def test_strings_across_the_reading_window(tmp_path: Path) -> None:
    """Tokens that straddle the buffer, and one larger than it, are walked all the same."""
    tokens = ["a" * length for length in (0, 1, 7, 2**20 - 9, 2**20, 2**20 + 1, 3 * 2**20, 5)]
    path = write_llama(tmp_path / "m.gguf", extra={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.pre": "x" * 9000})
    spec = read_model(path)
    assert (spec.n_tokens, spec.n_layer) == (len(tokens), 2)


@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_alignment_moves_the_data(alignment: int, tmp_path: Path) -> None:
    """Any power of two is a valid alignment, and the data section starts on it."""
    path = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "llama", "general.alignment": alignment},
        [("a", (3,), F32), ("b", (64, 2), Q8_0), ("c", (256, 3), Q4_K), ("d", (5,), F16)],
    )
    found = read_header(path)
    assert (found.alignment, found.data_start % alignment) == (alignment, 0)
    assert [tensor.n_bytes for tensor in found.tensors] == [12, tensor_bytes((64, 2), Q8_0), 432, 10]


def test_files_that_are_none(tmp_path: Path) -> None:
    """A folder, a missing file, a pipe and a file without permission each get their own sentence, and none blocks."""
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "no.gguf", "There is no file"), (pipe, "no regular file")):
        with pytest.raises(BadInputError, match=words):
            read_model(path)
    if os.geteuid():
        secret = tmp_path / "secret.gguf"
        secret.write_bytes(GOOD)
        secret.chmod(0)
        with pytest.raises(BadInputError, match="cannot be opened"):
            read_model(secret)


def test_a_name_with_control_characters_stays_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad\nname\x1b[31m.gguf"
    path.write_bytes(b"nonsense")
    with pytest.raises(BadInputError) as caught:
        read_model(path)
    assert str(caught.value).isprintable()
