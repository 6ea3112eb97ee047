"""Tells what the installed llama.cpp can do, as one JSON document, from a process of its own.

Native code may print to stdout while it loads, so the answer goes to a private copy of it. The library is loaded by itself:
importing the package around it takes ten times as long, and every command waits for this answer.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_ENDINGS: Final = (".so", ".dylib", ".dll")
_WHOLE_BYTES: Final = 32 * 2**20
"""Libraries up to this size are read wholly for the digest; of larger ones (CUDA kernels) both ends."""
_END_BYTES: Final = 2**20

_KINDS: Final = {0: "CPU", 1: "GPU", 2: "IGPU", 3: "ACCEL", 4: "META"}


class _Caps(c.Structure):
    _fields_ = [(name, c.c_bool) for name in ("async_", "host", "hostptr", "events", "mmap")]


class _Props(c.Structure):
    """ggml_backend_dev_props of ggml-backend.h."""

    _fields_ = [
        ("name", c.c_char_p),
        ("description", c.c_char_p),
        ("free", c.c_size_t),
        ("total", c.c_size_t),
        ("kind", c.c_int),
        ("device_id", c.c_char_p),
        ("caps", _Caps),
    ]


def main() -> None:
    """Write the answer and leave without running native destructors."""
    private = os.dup(1)
    os.dup2(2, 1)
    answer = json.dumps(describe_build()).encode()
    with os.fdopen(private, "wb") as out:
        out.write(answer)
    sys.stderr.flush()
    os._exit(0)


def describe_build() -> dict[str, Any]:
    """Facts by the names that `tuner.hardware.build.Told` reads."""
    try:
        package, folder = find_places()
        lib = c.CDLL(str(_find_library(folder)))
    except Exception as error:  # noqa: BLE001 - a library that fails to load fails in many ways, each worth its words
        return {"import_error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    return {
        "package_version": _read_version(package),
        "llama_cpp_version": _call_text(lib, "llama_version"),
        "commit": _call_text(lib, "ggml_commit"),
        "library": digest_libraries(folder),
        "system_info": _call_text(lib, "llama_print_system_info"),
        "gpu_offload": _call_truth(lib, "llama_supports_gpu_offload"),
        "rpc": _call_truth(lib, "llama_supports_rpc"),
        "mmap": _call_truth(lib, "llama_supports_mmap"),
        "mlock": _call_truth(lib, "llama_supports_mlock"),
        "backends": _list_backends(lib),
        "devices": _list_devices(lib),
    }


def find_places() -> tuple[Path, Path]:
    """The package llama_cpp and the folder that it takes its libraries from. Raises ModuleNotFoundError."""
    spec = find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'llama_cpp'")
    package = Path(next(iter(spec.submodule_search_locations)))
    return package, Path(os.environ.get("LLAMA_CPP_LIB_PATH") or package / "lib")


def digest_libraries(folder: Path) -> str:
    """A short name of the libraries' content: another build has another one, a copy the same."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.iterdir()):
        if path.suffix in _ENDINGS and path.is_file():
            digest.update(f"{path.name} {path.stat().st_size}".encode())
            digest.update(_read_content(path))
    return digest.hexdigest()


def _read_content(path: Path) -> bytes:
    with path.open("rb") as file:
        if path.stat().st_size <= _WHOLE_BYTES:
            return file.read()
        start = file.read(_END_BYTES)
        file.seek(-_END_BYTES, os.SEEK_END)
        return start + file.read()


def _find_library(folder: Path) -> Path:
    """As llama_cpp itself looks for it."""
    names = ("libllama.so", "libllama.dylib", "llama.dll", "libllama.dll")
    found = next((folder / name for name in names if (folder / name).exists()), None)
    if found is None:
        raise FileNotFoundError(f"there is no llama library in {folder}")
    return found


def _read_version(package: Path) -> str | None:
    try:
        found = re.search(r'^__version__ = "([^"]+)"', (package / "__init__.py").read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _list_backends(lib: Any) -> list[str]:
    count = _bind(lib, "ggml_backend_reg_count", c.c_size_t)
    get = _bind(lib, "ggml_backend_reg_get", c.c_void_p, c.c_size_t)
    name = _bind(lib, "ggml_backend_reg_name", c.c_char_p, c.c_void_p)
    return [name(get(index)).decode() for index in range(count())]


def _list_devices(lib: Any) -> list[dict[str, Any]]:
    count = _bind(lib, "ggml_backend_dev_count", c.c_size_t)
    get = _bind(lib, "ggml_backend_dev_get", c.c_void_p, c.c_size_t)
    get_props = _bind(lib, "ggml_backend_dev_get_props", None, c.c_void_p, c.POINTER(_Props))
    get_registry = _bind(lib, "ggml_backend_dev_backend_reg", c.c_void_p, c.c_void_p)
    name = _bind(lib, "ggml_backend_reg_name", c.c_char_p, c.c_void_p)
    devices = []
    for index in range(count()):
        device, props = get(index), _Props()
        get_props(device, c.byref(props))
        devices.append(
            {
                "name": _text(props.name),
                "description": _text(props.description),
                "kind": _KINDS.get(props.kind, "GPU"),
                "backend": _text(name(get_registry(device))),
                "total": props.total,
                "free": props.free,
                "device_id": _text(props.device_id),
            }
        )
    return devices


def _bind(lib: Any, name: str, result: Any, *arguments: Any) -> Any:
    function = lib[name]  # a new object for each look-up: other users' types stay as they are
    function.restype, function.argtypes = result, list(arguments)
    return function


def _call_text(lib: Any, name: str) -> str | None:
    try:
        return _text(_bind(lib, name, c.c_char_p)()) or None
    except AttributeError:
        return None


def _call_truth(lib: Any, name: str) -> bool:
    return bool(_bind(lib, name, c.c_bool)())


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")
