"""Vector features of a CPU under the names that llama.cpp prints for its build, so that the two can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

FLAG_NAMES: Final = {
    "pni": "SSE3",
    "sse3": "SSE3",
    "ssse3": "SSSE3",
    "avx": "AVX",
    "avx_vnni": "AVX_VNNI",
    "avx2": "AVX2",
    "f16c": "F16C",
    "fma": "FMA",
    "bmi2": "BMI2",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "neon": "NEON",
    "asimd": "NEON",
    "asimdhp": "FP16_VA",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
    "sme": "SME",
    "vx": "VXE",
    "lsx": "LSX",
    "lasx": "LASX",
}
"""The kernel's flag to llama.cpp's name."""

_ALWAYS_WITH: Final = {"asimd": "ARM_FMA"}
_BUILD_ONLY: Final = frozenset({"LLAMAFILE", "ACCELERATE", "KLEIDIAI", "OPENMP", "REPACK", "SVE_CNT"})
_ORDER: Final = (
    "SSE3", "SSSE3", "AVX", "AVX_VNNI", "AVX2", "F16C", "FMA", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI",
    "AVX512_BF16", "AMX_INT8", "NEON", "ARM_FMA", "FP16_VA", "DOTPROD", "MATMUL_INT8", "SVE", "SME", "RISCV_V", "VSX",
    "VXE", "LSX", "LASX",
)  # fmt: skip


def name_features(flags: Iterable[str], *, isa: str = "") -> tuple[str, ...]:
    """llama.cpp's names for the kernel's CPU flags; `isa` is the RISC-V string (rv64imafdcv_…)."""
    present = {flag.lower() for flag in flags}
    names = {FLAG_NAMES[flag] for flag in present if flag in FLAG_NAMES}
    names.update(name for flag, name in _ALWAYS_WITH.items() if flag in present)
    if re.match(r"rv\d+[a-u]*v", isa.lower().split("_")[0]):
        names.add("RISCV_V")
    return sort_features(names)


def parse_system_info(text: str) -> dict[str, int]:
    """llama.cpp's feature line ("CPU : AVX2 = 1 | REPACK = 1 |") as numbers by name, those of the CPU backend only.

    Features that are off are left out by llama.cpp; an older line names them with 0.
    """
    groups = re.split(r"(?:^|\|)\s*(\w+)\s*:", text)
    if len(groups) == 1:
        return _parse_features(text)
    sections = dict(zip(groups[1::2], groups[2::2], strict=True))
    return _parse_features(sections.get("CPU", ""))


def _parse_features(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+) = (\d{1,6})", text)}


def name_compiled(features: dict[str, int]) -> tuple[str, ...]:
    """Vector features in a parsed feature line."""
    return sort_features({name for name, value in features.items() if value and name not in _BUILD_ONLY})


def find_missing(cpu: Iterable[str], build: Iterable[str]) -> tuple[str, ...]:
    """What the CPU has and the build does not use; empty when either is unknown."""
    have, used = set(cpu), set(build)
    return sort_features(have - used) if have and used else ()


def sort_features(names: Iterable[str]) -> tuple[str, ...]:
    """Features in llama.cpp's order, unknown ones last."""
    rank = {name: place for place, name in enumerate(_ORDER)}
    return tuple(sorted(set(names), key=lambda name: (rank.get(name, len(rank)), name)))
