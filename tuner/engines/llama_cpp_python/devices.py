"""The devices a model is spread over when RPC servers are named: those servers first, then this machine's own.

Without RPC servers llama.cpp chooses by itself, and is left to.
"""

from __future__ import annotations

import ctypes
import socket
from typing import Any, Final

from tuner.engines.base import EngineError
from tuner.engines.llama_cpp_python.native import Native

_GPU: Final = 1
_PATIENCE_S: Final = 5.0


def collect_devices(native: Native, rpc_servers: tuple[str, ...]) -> Any:
    """A NULL-terminated array of devices, or None to leave the choice to llama.cpp.

    Raises EngineError("invalid") when the build has no RPC, or no server answers.
    """
    if not rpc_servers:
        return None
    if not native.api.llama_supports_rpc():
        raise EngineError("invalid", "this llama.cpp build has no RPC backend")
    own = _list_gpus(native)
    found = [device for endpoint in rpc_servers for device in _reach_server(native, endpoint)] + own
    return (ctypes.c_void_p * (len(found) + 1))(*found, None)


def describe_devices(native: Native, rpc_servers: tuple[str, ...]) -> list[dict[str, Any]]:
    """Those devices by name, in the order of main_gpu, with the memory that they tell of, bytes. Raises EngineError."""
    devices = collect_devices(native, rpc_servers)
    return [_describe_device(native, device) for device in devices or () if device]


def _describe_device(native: Native, device: int) -> dict[str, Any]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ask = native.library.ggml_backend_dev_memory
    ask.restype, ask.argtypes = None, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)]
    ask(device, ctypes.byref(free), ctypes.byref(total))
    return {
        "name": native.call_text("ggml_backend_dev_name", (ctypes.c_void_p, device)),
        "description": native.call_text("ggml_backend_dev_description", (ctypes.c_void_p, device)),
        "free_bytes": free.value or None,
        "total_bytes": total.value or None,
    }


def _reach_server(native: Native, endpoint: str) -> list[int]:
    _require_listener(endpoint)
    registry = native.call_pointer("ggml_backend_rpc_add_server", (ctypes.c_char_p, endpoint.encode()))
    if not registry:
        raise EngineError("invalid", f"no RPC server answers at {endpoint}")
    count = native.call_number("ggml_backend_reg_dev_count", (ctypes.c_void_p, registry))
    devices = (
        native.call_pointer("ggml_backend_reg_dev_get", (ctypes.c_void_p, registry), (ctypes.c_size_t, index))
        for index in range(count)
    )
    return [device for device in devices if device]


def _require_listener(endpoint: str) -> None:
    """llama.cpp aborts the process when it cannot connect, so that is tried first."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise EngineError("invalid", f"no RPC server answers at {endpoint} (HOST:PORT): {error}") from error


def _list_gpus(native: Native) -> list[int]:
    found = []
    for index in range(native.call_number("ggml_backend_dev_count")):
        device = native.call_pointer("ggml_backend_dev_get", (ctypes.c_size_t, index))
        kind = native.call_number("ggml_backend_dev_type", (ctypes.c_void_p, device)) & 0xFFFFFFFF
        if device and kind == _GPU:
            found.append(device)
    return found
