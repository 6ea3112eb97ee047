"""What the installed llama.cpp can do, asked of the build itself in a child process, since loading it may crash.

What was requested when it was built proves nothing; only the device list says whether a GPU is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tuner.hardware.record import BuildFacts, DeviceFacts
from tuner.hardware.simd import find_missing, name_compiled, parse_system_info

TIME_LIMIT_S: Final = 20.0
_TOOLS: Final = (
    "llama-bench", "llama-batched-bench", "llama-perplexity", "llama-quantize", "llama-imatrix", "llama-fit-params",
    "llama-server", "llama-cli", "ggml-rpc-server",
)  # fmt: skip


class ToldDevice(msgspec.Struct, kw_only=True):
    """One entry of llama.cpp's device list, as the child tells it."""

    name: str
    description: str = ""
    kind: str = "CPU"
    backend: str = ""
    total: int = 0
    free: int = 0
    device_id: str = ""


class Told(msgspec.Struct, kw_only=True):
    """The child's answer."""

    import_error: str = ""
    package_version: str | None = None
    llama_cpp_version: str | None = None
    commit: str | None = None
    library: str | None = None
    system_info: str | None = None
    gpu_offload: bool | None = None
    rpc: bool | None = None
    mmap: bool | None = None
    mlock: bool | None = None
    backends: list[str] = []
    devices: list[ToldDevice] = []


def probe_build(cpu_simd: tuple[str, ...], *, ask: Callable[[], bytes] | None = None) -> tuple[BuildFacts | None, str]:
    """The build's facts, and a note when it could not be asked (then the facts are None)."""
    try:
        told = msgspec.json.decode((ask or ask_build)(), type=Told)
    except subprocess.TimeoutExpired:
        return None, "llama.cpp did not answer within its time limit when asked what it can do."
    except (BuildDiedError, OSError) as error:
        return None, f"llama.cpp could not be asked what it can do: {error}."
    except msgspec.DecodeError:
        return None, "llama.cpp's answer about what it can do could not be read."
    return form_facts(told, cpu_simd), told.import_error and f"llama_cpp cannot be loaded: {told.import_error}"


class BuildDiedError(Exception):
    """The child that was asked ended without an answer."""


def ask_build() -> bytes:
    """The answer of `tuner.engines.llama_cpp_python.describe`, run on its own. Raises BuildDiedError, TimeoutExpired."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _ENTER, *filter(None, sys.path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIME_LIMIT_S,
        check=False,
        start_new_session=True,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        ending = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise BuildDiedError(f"its process ended with {ending}" + (f" ({words[-1][:200]})" if words else ""))
    return done.stdout


_ENTER: Final = (
    "import sys; sys.path[:] = sys.argv[1:] + [p for p in sys.path if p not in sys.argv];"
    "from tuner.engines.llama_cpp_python.describe import main; main()"
)
"""The same places to import from as here, and not the current folder."""


def form_facts(told: Told, cpu_simd: tuple[str, ...]) -> BuildFacts:
    """The child's answer seen with the CPU's features."""
    features = parse_system_info(told.system_info or "")
    compiled = name_compiled(features)
    return BuildFacts(
        importable=not told.import_error,
        import_error=told.import_error,
        package_version=told.package_version,
        llama_cpp_version=told.llama_cpp_version,
        llama_cpp_commit=told.commit,
        library_digest=told.library,
        system_info=told.system_info,
        simd=compiled,
        missing_simd=find_missing(cpu_simd, compiled),
        repack=bool(features.get("REPACK")) if features else None,
        openmp=bool(features.get("OPENMP")) if features else None,
        supports_gpu_offload=told.gpu_offload,
        supports_rpc=told.rpc,
        supports_mmap=told.mmap,
        supports_mlock=told.mlock,
        backends=tuple(told.backends),
        devices=tuple(_form_device(device) for device in told.devices),
        tools=find_tools(),
    )


def find_tools() -> dict[str, str]:
    """llama.cpp's own programs where the wheel puts them, name to path."""
    places = (Path(sysconfig.get_path("platlib")) / "bin", Path(sys.prefix) / "bin")
    found = {name: place / name for place in reversed(places) for name in _TOOLS if os.access(place / name, os.X_OK)}
    return {name: str(path) for name, path in sorted(found.items())}


def _form_device(told: ToldDevice) -> DeviceFacts:
    kind = told.kind if told.kind in ("CPU", "GPU", "IGPU", "ACCEL", "META") else "GPU"
    return msgspec.convert(
        {
            "name": told.name,
            "description": told.description or None,
            "kind": kind,
            "backend": told.backend or None,
            "total_bytes": told.total or None,
            "free_bytes": told.free or None,
            "pci_bus_id": told.device_id.lower() or None,
            "unified": kind == "IGPU" or told.backend in {"Metal", "MTL"},
        },
        DeviceFacts,
    )
