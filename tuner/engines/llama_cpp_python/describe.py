"""Tells what the installed llama.cpp can do, as one JSON document, from a process of its own.

Native code may print to stdout while it loads, so the answer goes to a private copy of it.
"""

from __future__ import annotations

import ctypes as c
import importlib.metadata
import json
import os
import sys
from typing import Any, Final

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
        import llama_cpp
    except Exception as error:  # noqa: BLE001 - a library that fails to load fails in many ways, each worth its words
        return {"import_error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    lib = llama_cpp.llama_cpp._lib  # noqa: SLF001 - the one handle; a second one would load a second copy of ggml
    return {
        "package_version": importlib.metadata.version("llama-cpp-python"),
        "llama_cpp_version": _call_text(lib, "llama_version"),
        "commit": _call_text(lib, "ggml_commit"),
        "system_info": llama_cpp.llama_print_system_info().decode(errors="replace"),
        "gpu_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        "rpc": bool(llama_cpp.llama_supports_rpc()),
        "mmap": bool(llama_cpp.llama_supports_mmap()),
        "mlock": bool(llama_cpp.llama_supports_mlock()),
        "backends": _list_backends(lib),
        "devices": _list_devices(lib),
    }


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


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")
