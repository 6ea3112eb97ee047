"""Our table of number formats against two others: the `gguf` package's and the installed llama.cpp's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from gguf import GGMLQuantizationType, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES

from tuner.model.ggml import FALLBACKS, FILE_TYPE_TENSORS, FILE_TYPES, TENSOR_TYPES

NAMES = {kind.name for kind in TENSOR_TYPES.values()}
WORKING_FORMATS = {"Q8_1", "Q8_K"}
"""Never in a file: llama.cpp's own intermediate products, on whose size the two sources differ."""

ASK = """
import ctypes, json, sys
from llama_cpp import llama_cpp
lib = llama_cpp._lib
for name, result in (("ggml_blck_size", ctypes.c_int64), ("ggml_type_size", ctypes.c_size_t), ("ggml_type_name", ctypes.c_char_p)):
    getattr(lib, name).restype = result
    getattr(lib, name).argtypes = [ctypes.c_int]
print(json.dumps([[i, lib.ggml_type_name(i).decode(), lib.ggml_blck_size(i), lib.ggml_type_size(i)] for i in map(int, sys.argv[1:])]))
"""


def test_the_gguf_package_agrees() -> None:
    """Every format that the package can write has the same block and size here."""
    for kind, (block, size) in GGML_QUANT_SIZES.items():
        assert kind.value in TENSOR_TYPES, kind.name
        if kind.name not in WORKING_FORMATS:
            mine = TENSOR_TYPES[kind.value]
            assert (mine.name, mine.block, mine.size) == (kind.name, block, size)


@pytest.mark.llama
def test_llama_cpp_agrees() -> None:
    """Asked in a child process, as everything of llama.cpp is."""
    told = subprocess.run(
        [sys.executable, "-c", ASK, *map(str, TENSOR_TYPES)], capture_output=True, check=True, text=True, timeout=120
    ).stdout
    theirs = {number: (name.upper(), block, size) for number, name, block, size in json.loads(told.splitlines()[-1])}
    assert theirs == {number: (kind.name, kind.block, kind.size) for number, kind in TENSOR_TYPES.items()}


def test_file_types_carry_the_usual_labels() -> None:
    for kind in LlamaFileType:
        if kind.value in FILE_TYPES:
            assert kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") == FILE_TYPES[kind.value]


def test_labels_point_at_formats_that_exist() -> None:
    assert {name for names in FILE_TYPE_TENSORS.values() for name in names} <= NAMES
    assert set(FALLBACKS) | set(FALLBACKS.values()) <= NAMES
    assert {kind.name for kind in GGMLQuantizationType} <= NAMES
