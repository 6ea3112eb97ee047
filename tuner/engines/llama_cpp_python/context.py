"""One llama.cpp context: decoding, and what its slots hold. Return codes become EngineErrors with llama.cpp's words."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from tuner.engines.base import EngineError
from tuner.engines.llama_cpp_python.batches import Batch
from tuner.engines.llama_cpp_python.native import Native
from tuner.engines.llama_cpp_python.settings import ContextSettings, build_context_params

_DECODE_ERRORS: Final = {
    1: ("invalid", "the context has no room for the batch"),
    2: ("failed", "decoding was aborted"),
    -1: ("failed", "llama.cpp found the batch invalid"),
    -2: ("out_of_memory", "llama.cpp could not allocate memory for the computation"),
    -3: ("failed", "the computation failed"),
}


class Context:
    """Owns a llama_context of `model`; `close` gives it back."""

    def __init__(self, native: Native, model: Any, settings: ContextSettings, *, threads: int, threads_batch: int) -> None:
        native.log.start_context()
        params = build_context_params(native, settings, threads=threads, threads_batch=threads_batch)
        self._native = native
        self._api = native.api
        self._pointer = self._api.llama_init_from_model(model, params)
        if not self._pointer:
            raise _explain_refusal(native)
        self.settings = settings
        self.threads = (threads, threads_batch)
        self._memory = self._api.llama_get_memory(self._pointer)
        if not self._memory:
            self.close()
            raise EngineError("invalid", "this model keeps no context, so it cannot write text")
        self.n_batch = int(self._api.llama_n_batch(self._pointer))
        self.n_ubatch = int(self._api.llama_n_ubatch(self._pointer))
        self.ctx_per_slot = int(self._api.llama_n_ctx_seq(self._pointer))
        self.n_swa = max(0, int(self._api.llama_model_n_swa(model)))
        self.can_trim = not _keeps_a_part_only(self._api, model, swa_full=settings.swa_full)

    def set_threads(self, threads: int, threads_batch: int) -> None:
        """Change the thread counts of the live context."""
        self._api.llama_set_n_threads(self._pointer, threads, threads_batch)
        self.threads = (threads, threads_batch)

    def decode(self, batch: Batch) -> None:
        """Compute one batch; it may still be running on a device when this returns."""
        code = self._api.llama_decode(self._pointer, batch.value)
        if code != 0:
            kind, text = _DECODE_ERRORS.get(code, ("failed", f"llama_decode returned {code}"))
            said = self._native.log.complaint
            raise EngineError(kind, f"{text}: {said}" if said else text)

    def synchronize(self) -> None:
        """Wait until all that was submitted is computed."""
        self._api.llama_synchronize(self._pointer)

    def get_logits(self, index: int) -> Any:
        """Pointer to the logits of the batch's token `index`; waits for them."""
        return self._api.llama_get_logits_ith(self._pointer, index)

    def count_tokens(self, slot: int) -> int:
        """Tokens that a slot holds."""
        return int(self._api.llama_memory_seq_pos_max(self._memory, slot)) + 1

    def clear(self) -> None:
        """Empty all slots."""
        self._api.llama_memory_clear(self._memory, False)

    def trim(self, slot: int, length: int) -> bool:
        """Drop what a slot holds beyond `length` tokens; False where the cache cannot."""
        removed = bool(self._api.llama_memory_seq_rm(self._memory, slot, length, -1))
        return removed and self.count_tokens(slot) == length

    def measure_state(self) -> int:
        """Bytes that slot 0's state needs."""
        return int(self._api.llama_state_seq_get_size(self._pointer, 0))

    def save_state(self) -> Any:
        """Slot 0's state, or None where it cannot be had."""
        self.synchronize()
        size = self.measure_state()
        try:
            blob = (ctypes.c_uint8 * size)()
        except MemoryError:
            return None
        return blob if size and self._api.llama_state_seq_get_data(self._pointer, blob, size, 0) == size else None

    def restore_state(self, blob: Any, slot: int) -> bool:
        """Put a saved state (ctypes or numpy bytes) into a slot; False where it does not fit this context."""
        address = ctypes.cast(blob if isinstance(blob, ctypes.Array) else blob.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        return bool(self._api.llama_state_seq_set_data(self._pointer, address, len(blob), slot))

    def close(self) -> None:
        """Free the context."""
        if self._pointer:
            self._api.llama_free(self._pointer)
            self._pointer = None


def _explain_refusal(native: Native) -> EngineError:
    said = native.log.complaint or "llama.cpp gave no reason for refusing the context"
    return EngineError("out_of_memory" if native.log.says_out_of_memory else "invalid", said)


def _keeps_a_part_only(api: Any, model: Any, *, swa_full: bool) -> bool:
    """Recurrent states and window caches cannot go back to an earlier length by dropping tokens."""
    recurrent = api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model)
    return bool(recurrent) or (int(api.llama_model_n_swa(model)) > 0 and not swa_full)
