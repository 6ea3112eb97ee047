"""Asks llama.cpp how much memory a configuration takes, without taking it. Runs in the child only.

The model is loaded without allocation and stays loaded while only context settings change; a header-only file does as well
as a whole one. The answer is llama.cpp's own breakdown, walked where the C++ library leaves it. That layout is checked before
it is trusted; where it cannot be, the same figures are read from the log, exact to 5 KiB.

Keys are "weights X", "kv X" and "compute X" with X a buffer type of llama.cpp (CPU, CPU_REPACK, CUDA0, RPC0[…], …). "kv" holds
recurrent state as well. The output buffer is not among them: llama.cpp leaves it out.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tuner.engines.base import EngineError, PrepareRequest
from tuner.engines.llama_cpp_python.log import NativeLog
from tuner.engines.llama_cpp_python.native import Native
from tuner.engines.llama_cpp_python.settings import (
    ModelSettings,
    NativeModelParams,
    build_context_params,
    check_config,
    pick_context_settings,
    pick_model_settings,
)
from tuner.runconfig import RunConfig
from tuner.workload import Workload

_BREAKDOWN: Final = "_Z26llama_get_memory_breakdownPK13llama_context"
_MOST_NODES: Final = 256
_MOST_BYTES: Final = 2**53
_LOG_SLACK: Final = 2**14
_CAUSES: Final = ("weights", "kv", "compute")
_CACHE: Final = re.compile(r"(?:llama_kv_cache|llama_memory_recurrent): +size = +([\d.]+) MiB")
_COMPUTE: Final = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")
_NO_WORKLOAD: Final = Workload(name="projection", prompt_tokens=1, output_tokens=2)


class _Header(ctypes.Structure):
    """std::map of libstdc++, returned by value."""

    _fields_ = (
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("root", ctypes.c_void_p),
        ("leftmost", ctypes.c_void_p),
        ("rightmost", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    )


class _Node(ctypes.Structure):
    """One entry of that map: buffer type → bytes of weights, context and compute."""

    _fields_ = (
        ("color", ctypes.c_size_t),
        ("parent", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("buffer_type", ctypes.c_void_p),
        ("weights", ctypes.c_size_t),
        ("kv", ctypes.c_size_t),
        ("compute", ctypes.c_size_t),
    )


class Projector:
    """Keeps one model that was loaded without its weights; `project` may be called as often as wanted."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._loaded: tuple[ModelSettings, bool] | None = None
        self._model: Any = None

    def project(self, config: RunConfig, *, front_end: str, rpc_servers: tuple[str, ...] = ()) -> dict[str, int]:
        """Bytes by cause and buffer type. Raises EngineError with llama.cpp's words where it refuses."""
        check_config(config.replace(threads=1, threads_batch=1))
        outer, lines = self._native.log, list[str]()
        self._native.log = inner = NativeLog(lines.append)
        try:
            self._load(config, rpc_servers)
            context = self._native.api.llama_init_from_model(self._model, _context_params(self._native, config, front_end))
            if not context:
                raise EngineError("invalid", inner.complaint or "llama.cpp gave no reason for refusing the context")
            try:
                return self._read(context, lines)
            finally:
                self._native.api.llama_free(context)
        finally:
            self._native.log = outer

    def close(self) -> None:
        """Give the model back."""
        if self._model:
            self._native.api.llama_model_free(self._model)
        self._model = self._loaded = None

    def _load(self, config: RunConfig, rpc_servers: tuple[str, ...]) -> None:
        request = PrepareRequest(config=config, workload=_NO_WORKLOAD, rpc_servers=rpc_servers)
        settings = msgspec.structs.replace(pick_model_settings(request), load_mode="none")
        wanted = (settings, self._native.amx_crashes)
        if self._model and wanted == self._loaded:
            return
        self.close()
        if not Path(settings.path).is_file():
            raise EngineError("unreadable", f"there is no file {settings.path}")
        params = NativeModelParams(self._native, settings)
        params.value.no_alloc = True
        self._model = self._native.api.llama_model_load_from_file(settings.path.encode(), params.value)
        if not self._model:
            raise EngineError("unreadable", self._native.log.complaint or f"llama.cpp cannot read {settings.path}")
        self._loaded = wanted

    def _read(self, context: Any, lines: list[str]) -> dict[str, int]:
        logged = _read_log(lines, int(self._native.api.llama_model_size(self._model)))
        walked = _walk_breakdown(self._native, context)
        return walked if walked and _agree(walked, logged) else logged


def _context_params(native: Native, config: RunConfig, front_end: str) -> Any:
    """The engine's own parameters; `Llama()` of llama-cpp-python reserves logits for every token of a batch."""
    params = build_context_params(native, pick_context_settings(config), threads=1, threads_batch=1)
    if front_end == "llama-cpp-python":
        params.n_outputs_max = 0
    return params


def _walk_breakdown(native: Native, context: Any) -> dict[str, int]:
    """llama.cpp's breakdown, {} where this build's map cannot be read."""
    if not _has_known_layout() or not hasattr(native.library, _BREAKDOWN):
        return {}
    ask = native.library[_BREAKDOWN]
    ask.restype, ask.argtypes = _Header, [ctypes.c_void_p]
    header = ask(context)
    if header.count > _MOST_NODES:
        return {}
    found: dict[str, int] = {}
    nodes = list(_walk(header.root, int(header.count)))
    for node in nodes:
        name = _name_buffer_type(native, node.buffer_type)
        for cause in _CAUSES:
            if size := int(getattr(node, cause)):
                found[f"{cause} {name}"] = found.get(f"{cause} {name}", 0) + size
    return found if len(nodes) == header.count and all(size < _MOST_BYTES for size in found.values()) else {}


def _walk(address: int | None, most: int) -> Iterator[_Node]:
    pending = [address]
    while pending and most >= 0:
        at = pending.pop()
        if not at:
            continue
        most -= 1
        node = _Node.from_address(at)
        yield node
        pending += [node.left, node.right]


def _has_known_layout() -> bool:
    """The map's layout is that of libstdc++ on 64-bit Linux."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    return "libstdc++" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")


def _name_buffer_type(native: Native, pointer: int) -> str:
    name = native.library.ggml_backend_buft_name
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    return bytes(name(pointer) or b"?").decode(errors="replace")


def _read_log(lines: list[str], weights_bytes: int) -> dict[str, int]:
    """The same from the log: which device holds weights and cache is not told there."""
    found = {"weights CPU": weights_bytes}
    for line in lines:
        if match := _CACHE.search(line):
            found["kv CPU"] = found.get("kv CPU", 0) + _to_bytes(match.group(1))
        elif match := _COMPUTE.search(line):
            found[f"compute {match.group(1)}"] = _to_bytes(match.group(2))
    return found


def _agree(walked: dict[str, int], logged: dict[str, int]) -> bool:
    """The walk says what the log says, as far as the log says it; otherwise the layout was not what it was taken for."""
    pairs = [(_sum(walked, cause), _sum(logged, cause)) for cause in ("kv", "compute")]
    near = all(abs(mine - theirs) <= _LOG_SLACK + len(logged) * _LOG_SLACK for mine, theirs in pairs)
    return near and _sum(walked, "weights") > 0


def _sum(buffers: dict[str, int], cause: str) -> int:
    return sum(size for key, size in buffers.items() if key.startswith(f"{cause} "))


def _to_bytes(mebibytes: str) -> int:
    return round(float(mebibytes) * 2**20)
