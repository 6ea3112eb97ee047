"""The number formats a GGUF tensor can have, as llama.cpp stores them: values per block, bytes per block.

A format missing here is one that current llama.cpp cannot load either; the reader says so instead of guessing a size.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec


class TensorType(msgspec.Struct, frozen=True, kw_only=True):
    """One number format."""

    name: str
    """llama.cpp's name in capitals, e.g. "Q4_K"."""
    block: int
    """Values in one block; a row holds whole blocks."""
    size: int
    """Bytes of one block, exact."""


_TABLE: Final = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)

TENSOR_TYPES: Final = MappingProxyType(
    {number: TensorType(name=name, block=block, size=size) for number, name, block, size in _TABLE}
)
"""ggml's type number → format."""

REMOVED_TYPES: Final = frozenset({4, 5, 31, 32, 33, 36, 37, 38})
"""Numbers that old files used and llama.cpp no longer reads."""

_FILE_TYPES: Final = (
    (0, "F32", ("F32",)),
    (1, "F16", ("F16",)),
    (2, "Q4_0", ("Q4_0",)),
    (3, "Q4_1", ("Q4_1",)),
    (7, "Q8_0", ("Q8_0",)),
    (8, "Q5_0", ("Q5_0",)),
    (9, "Q5_1", ("Q5_1",)),
    (10, "Q2_K", ("Q2_K", "Q3_K")),
    (11, "Q3_K_S", ("Q3_K",)),
    (12, "Q3_K_M", ("Q3_K",)),
    (13, "Q3_K_L", ("Q3_K",)),
    (14, "Q4_K_S", ("Q4_K",)),
    (15, "Q4_K_M", ("Q4_K",)),
    (16, "Q5_K_S", ("Q5_K",)),
    (17, "Q5_K_M", ("Q5_K",)),
    (18, "Q6_K", ("Q6_K",)),
    (19, "IQ2_XXS", ("IQ2_XXS",)),
    (20, "IQ2_XS", ("IQ2_XS",)),
    (21, "Q2_K_S", ("Q2_K",)),
    (22, "IQ3_XS", ("IQ3_XXS", "IQ3_S")),
    (23, "IQ3_XXS", ("IQ3_XXS",)),
    (24, "IQ1_S", ("IQ1_S",)),
    (25, "IQ4_NL", ("IQ4_NL",)),
    (26, "IQ3_S", ("IQ3_S",)),
    (27, "IQ3_M", ("IQ3_S",)),
    (28, "IQ2_S", ("IQ2_XS",)),
    (29, "IQ2_M", ("IQ2_S",)),
    (30, "IQ4_XS", ("IQ4_XS",)),
    (31, "IQ1_M", ("IQ1_M",)),
    (32, "BF16", ("BF16",)),
    (36, "TQ1_0", ("TQ1_0",)),
    (37, "TQ2_0", ("TQ2_0",)),
    (38, "MXFP4_MOE", ("MXFP4",)),
    (39, "NVFP4", ("NVFP4",)),
    (40, "Q1_0", ("Q1_0",)),
    (41, "Q2_0", ("Q2_0",)),
)

FILE_TYPES: Final = MappingProxyType({number: label for number, label, _ in _FILE_TYPES})
"""general.file_type → the label that quantising tools give it."""

FILE_TYPE_TENSORS: Final = MappingProxyType({number: names for number, _, names in _FILE_TYPES})
"""general.file_type → the formats that may hold most of such a file's block weights."""

FALLBACKS: Final = MappingProxyType(
    {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
    | dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL")
    | {"TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}
)
"""What llama.cpp writes instead where a row is no multiple of the 256 values that the wanted format needs."""

SUPER_BLOCK: Final = 256
"""Values in a block of the K and IQ families."""
