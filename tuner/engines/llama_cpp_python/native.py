"""Loads the native library once, with its log and its last words before an abort on stderr.

One handle only: a second copy of ggml in the process would have its own globals, so symbols that are not bound in Python
are taken from the binding's own library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from tuner.engines.llama_cpp_python.log import NativeLog


class Native:
    """The bound C API (`api`), the library behind it (`library`) and its log."""

    def __init__(self) -> None:
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        import llama_cpp
        from llama_cpp import llama_cpp as api

        self.version: str = llama_cpp.__version__
        self.api: Any = api
        self.library: Any = api._lib  # noqa: SLF001  - the only handle that shares the binding's globals
        self.log = NativeLog(_write_stderr)
        self.amx_crashes = False
        self.amx_runs = False
        self._log_callback = api.llama_log_callback(self._take_log)
        self._abort_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_say_last_words)
        api.llama_log_set(self._log_callback, None)
        self._install_abort_callback()
        api.llama_backend_init()

    def describe_llama_cpp(self) -> str:
        """Version and commit as the library says them: "0.5.0-dev (0c1e57098)"."""
        version = bytes(self.api.llama_version()).decode(errors="replace")
        try:
            ask = self.library.ggml_commit
        except AttributeError:
            return version
        ask.restype, ask.argtypes = ctypes.c_char_p, []
        return f"{version} ({bytes(ask() or b'').decode(errors='replace')})"

    def call_pointer(self, name: str, *arguments: tuple[Any, Any]) -> int | None:
        """Call an unbound C function that returns a pointer; each argument is (ctypes type, value)."""
        function = getattr(self.library, name)
        function.restype, function.argtypes = ctypes.c_void_p, [kind for kind, _ in arguments]
        found: int | None = function(*(value for _, value in arguments))
        return found

    def call_text(self, name: str, *arguments: tuple[Any, Any]) -> str:
        """The same for one that returns text; "" for none."""
        function = getattr(self.library, name)
        function.restype, function.argtypes = ctypes.c_char_p, [kind for kind, _ in arguments]
        return bytes(function(*(value for _, value in arguments)) or b"").decode(errors="replace")

    def call_number(self, name: str, *arguments: tuple[Any, Any]) -> int:
        """The same for one that returns a number."""
        function = getattr(self.library, name)
        function.restype, function.argtypes = ctypes.c_size_t, [kind for kind, _ in arguments]
        return int(function(*(value for _, value in arguments)))

    def _install_abort_callback(self) -> None:
        try:
            install = self.library.ggml_set_abort_callback
        except AttributeError:
            return
        install.restype, install.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        install(ctypes.cast(self._abort_callback, ctypes.c_void_p))

    def _take_log(self, level: int, text: bytes, _user: Any) -> None:
        self.log.take(level, text.decode(errors="replace"))


def _write_stderr(text: str) -> None:
    sys.stderr.write(text)


def _say_last_words(text: bytes) -> None:
    sys.stderr.write(f"abort: {text.decode(errors='replace')}\n")
    sys.stderr.flush()
