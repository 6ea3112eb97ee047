"""How to get a llama.cpp build that uses what this machine has, as a command line that can be pasted."""

from __future__ import annotations

from typing import Final

from tuner.hardware.record import BuildFacts

_KEPT: Final = {
    "CUDA": "-DGGML_CUDA=on",
    "Vulkan": "-DGGML_VULKAN=on",
    "ROCm": "-DGGML_HIP=on",
    "SYCL": "-DGGML_SYCL=on",
    "RPC": "-DGGML_RPC=on",
}
"""Backends that a new build must not lose, and llama.cpp's flag for each."""

_WITHOUT_AMX: Final = ("-DCMAKE_C_FLAGS=-mno-amx-int8", "-DCMAKE_CXX_FLAGS=-mno-amx-int8")


def write_rebuild(build: BuildFacts, *flags: str, compiler: str = "") -> str:
    """The pip command that builds this version of llama-cpp-python anew with what it has now and CMake `flags` more.

    `compiler`: version suffix of GCC, such as 14; "" leaves the choice to CMake. Nothing is taken from a cache, since pip
    keys it by name and version, whatever the flags were.
    """
    kept = [flag for name, flag in _KEPT.items() if name in build.backends and flag not in flags]
    cmake = " ".join((*kept, *flags))
    words = [
        *([f"CC=gcc-{compiler} CXX=g++-{compiler}"] if compiler else []),
        *([f"CMAKE_ARGS='{cmake}'"] if cmake else []),
        "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python",
        f"llama-cpp-python=={build.package_version}" if build.package_version else "llama-cpp-python",
    ]
    return " ".join(words)


def explain_missing_simd(build: BuildFacts) -> list[str]:
    """Vector features of this CPU that the build leaves unused, and the ways out; [] when there are none.

    AMX stands apart: GCC's `_tile_loadconfig` tells the optimiser of only 8 of the 64 bytes it reads (seen in 12.2's header;
    newer compilers have a built-in for it), so that llama.cpp's tile set-up is compiled to nothing and the first batch dies of
    an illegal instruction. Such a build is worse than one without.
    """
    others = [name for name in build.missing_simd if not name.startswith("AMX")]
    amx = [name for name in build.missing_simd if name.startswith("AMX")]
    notes = []
    if others:
        flags = _WITHOUT_AMX if amx else ()
        notes.append(
            f"This CPU has {', '.join(others)}, which the llama.cpp build does not use: build it here, with "
            f"`{write_rebuild(build, *flags)}`."
        )
    if amx:
        notes.append(
            f"This CPU has {', '.join(amx)}, which the llama.cpp build does not use. To use it, build with GCC 14 or newer: "
            f"`{write_rebuild(build, compiler='14')}`. With an older GCC leave it out, since its AMX code crashes, and use "
            f"every other feature: `{write_rebuild(build, *_WITHOUT_AMX)}`."
        )
    return notes
