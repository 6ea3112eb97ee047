"""One loaded model: weights in memory under settings that only a new load can change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from tuner.engines.base import EngineError
from tuner.engines.llama_cpp_python.amx import AMX_WARNING, amx_crashes
from tuner.engines.llama_cpp_python.native import Native
from tuner.engines.llama_cpp_python.settings import ModelSettings, NativeModelParams
from tuner.engines.llama_cpp_python.tokens import TokenSource

_SETTINGS_AT_FAULT: Final = re.compile(r"SPLIT_MODE|split mode|main_gpu|devices", re.IGNORECASE)


class Model:
    """Owns a llama_model; `close` gives it back."""

    def __init__(self, native: Native, settings: ModelSettings) -> None:
        self._native = native
        self.settings = settings
        self.identity = _identify(settings.path)
        self.pointer: Any = self._load()
        if "weights AMX" in native.log.buffers and not native.amx_runs:
            self._try_amx()
        self._refuse_encoder()
        self.tokens = TokenSource(native, self.pointer)

    def _load(self) -> Any:
        native, settings = self._native, self.settings
        native.log.start_model()
        params = NativeModelParams(native, settings)
        pointer = native.api.llama_model_load_from_file(settings.path.encode(), params.value)
        if not pointer:
            raise _explain_refusal(native, settings.path)
        return pointer

    def _try_amx(self) -> None:
        """Once a process; where it crashes, load again without repacking."""
        self._native.amx_crashes = amx_crashes(self._native, self.pointer)
        self._native.amx_runs = not self._native.amx_crashes
        if self._native.amx_crashes:
            self._native.log.take(3, f"{AMX_WARNING}\n")
            self.close()
            self.pointer = self._load()

    def is_unchanged(self) -> bool:
        """Whether the file is still the one that was loaded."""
        return _identify(self.settings.path) == self.identity

    def close(self) -> None:
        """Free the weights."""
        if self.pointer:
            self._native.api.llama_model_free(self.pointer)
            self.pointer = None

    def _refuse_encoder(self) -> None:
        if self._native.api.llama_model_has_encoder(self.pointer):
            self.close()
            raise EngineError("invalid", "this model has an encoder; only models that write token by token can be measured")


def _identify(path: str) -> tuple[str, int, int]:
    try:
        found = Path(path).stat()
    except OSError as error:
        raise EngineError("unreadable", f"cannot read {path}: {error.strerror}") from error
    return path, found.st_size, found.st_mtime_ns


def _explain_refusal(native: Native, path: str) -> EngineError:
    said = native.log.complaint or f"llama.cpp gave no reason for refusing {path}"
    if native.log.says_out_of_memory:
        return EngineError("out_of_memory", said)
    return EngineError("invalid" if _SETTINGS_AT_FAULT.search(said) else "unreadable", said)
