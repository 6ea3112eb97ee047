"""Vector features: the kernel's names, llama.cpp's names, and what a build leaves unused."""

from __future__ import annotations

import pytest

from tuner.hardware.simd import find_missing, name_compiled, name_features, parse_system_info, sort_features


@pytest.mark.parametrize(
    ("flags", "isa", "expected"),
    [
        ("fpu pni ssse3 avx avx2 f16c fma bmi2", "", ("SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2")),
        ("avx512f avx512_vnni amx_int8 avx512_bf16", "", ("AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8")),
        ("fp asimd asimdhp asimddp i8mm sve", "", ("NEON", "ARM_FMA", "FP16_VA", "DOTPROD", "MATMUL_INT8", "SVE")),
        ("", "rv64imafdcv_zicsr", ("RISCV_V",)),
        ("", "rv64imafdc_zvfh", ()),
        ("AVX2", "", ("AVX2",)),
        ("", "", ()),
    ],
)
def test_flags_become_llama_cpps_names(flags: str, isa: str, expected: tuple[str, ...]) -> None:
    """x86, ARM and RISC-V; flags without a counterpart are dropped."""
    assert name_features(flags.split(), isa=isa) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CPU : SSE3 = 1 | AVX2 = 1 | REPACK = 1 | ", {"SSE3": 1, "AVX2": 1, "REPACK": 1}),
        ("CUDA : ARCHS = 890 | F16 = 1 | CPU : AVX2 = 1 | OPENMP = 1 | ", {"AVX2": 1, "OPENMP": 1}),
        ("CPU : AVX = 1 | CUDA : ARCHS = 750 | ", {"AVX": 1}),
        ("AVX = 1 | AVX512 = 0 | ", {"AVX": 1, "AVX512": 0}),
        ("CUDA : ARCHS = 890 | ", {}),
        ("", {}),
    ],
)
def test_the_feature_line_is_read_for_the_cpu_only(text: str, expected: dict[str, int]) -> None:
    """Other backends have features of the same form, older builds no heading, and an empty line tells nothing."""
    assert parse_system_info(text) == expected


def test_compiled_features_are_those_that_are_on() -> None:
    """What is 0, or no property of a CPU, is left out."""
    features = {"AVX2": 1, "AVX512": 0, "REPACK": 1, "OPENMP": 1, "LLAMAFILE": 1, "SSE3": 1}
    assert name_compiled(features) == ("SSE3", "AVX2")


@pytest.mark.parametrize(
    ("cpu", "build", "expected"),
    [
        (("AVX2", "AVX512", "AMX_INT8"), ("AVX2",), ("AVX512", "AMX_INT8")),
        (("AVX2",), ("AVX2", "AVX512"), ()),
        ((), ("AVX2",), ()),
        (("AVX2",), (), ()),
    ],
)
def test_unused_features(cpu: tuple[str, ...], build: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Nothing is called unused where one side is unknown."""
    assert find_missing(cpu, build) == expected


def test_features_keep_llama_cpps_order() -> None:
    """Unknown ones come last, by name."""
    assert sort_features(["ZED", "AVX512", "ALPHA", "AVX", "AVX"]) == ("AVX", "AVX512", "ALPHA", "ZED")
