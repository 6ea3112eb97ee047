"""Commands that make a better build of llama.cpp: they can be pasted, keep what the build has, and name both ways round AMX."""

from __future__ import annotations

import re
import shlex

import pytest

from tuner.hardware.rebuilding import explain_missing_simd, write_rebuild
from tuner.hardware.record import BuildFacts


@pytest.mark.parametrize(
    ("backends", "flags", "cmake"),
    [
        (("CPU",), (), None),
        (("CPU",), ("-DGGML_CUDA=on",), "-DGGML_CUDA=on"),
        (("CUDA", "CPU"), ("-DGGML_CUDA=on",), "-DGGML_CUDA=on"),
        (("RPC", "CPU"), (), "-DGGML_RPC=on"),
        (("CUDA", "RPC", "CPU"), ("-DX=1",), "-DGGML_CUDA=on -DGGML_RPC=on -DX=1"),
    ],
)
def test_a_new_build_keeps_what_the_old_one_has(backends: tuple[str, ...], flags: tuple[str, ...], cmake: str | None) -> None:
    """Its backends, its version, and nothing from pip's cache."""
    words = shlex.split(write_rebuild(BuildFacts(package_version="0.3.36", backends=backends), *flags))
    assert words[-1] == "llama-cpp-python==0.3.36"
    assert "--no-cache-dir" in words
    assert [word for word in words if word.startswith("CMAKE_ARGS=")] == ([f"CMAKE_ARGS={cmake}"] if cmake else [])


def test_an_unknown_version_is_left_to_pip() -> None:
    """The command still names the package."""
    assert write_rebuild(BuildFacts(), compiler="14").startswith("CC=gcc-14 CXX=g++-14 pip install ")
    assert shlex.split(write_rebuild(BuildFacts()))[-1] == "llama-cpp-python"


@pytest.mark.parametrize(
    ("missing", "notes"),
    [
        ((), []),
        (("AVX2", "FMA"), ["This CPU has AVX2, FMA, which"]),
        (("AMX_INT8",), ["This CPU has AMX_INT8, which"]),
        (("AVX512", "AMX_INT8"), ["This CPU has AVX512, which", "This CPU has AMX_INT8, which"]),
    ],
)
def test_each_kind_of_feature_has_its_own_note(missing: tuple[str, ...], notes: list[str]) -> None:
    """None where the build uses all."""
    found = explain_missing_simd(BuildFacts(missing_simd=missing))
    assert [re.match(r"This CPU has .*?, which", note)[0] for note in found] == notes  # type: ignore[index]


def test_both_ways_round_amx_are_told() -> None:
    """A compiler that can, or a build without; with another feature missing, its command does not bring the crash."""
    amx = explain_missing_simd(BuildFacts(missing_simd=("AMX_INT8",), package_version="0.3.36"))[0]
    assert "GCC 14 or newer: `CC=gcc-14 CXX=g++-14 pip install --force-reinstall" in amx
    assert "CMAKE_ARGS='-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8' pip install --force-reinstall" in amx
    other = explain_missing_simd(BuildFacts(missing_simd=("AVX512", "AMX_INT8")))[0]
    assert "-mno-amx-int8" in other
