"""Brings every slot to a wanted length before a turn, as cheaply as is true.

Dropping what a turn added is free and exact where the cache keeps everything; elsewhere a saved state is put back. What is in
no state is computed with as many threads as serve, a long history only in its beginning, whose cells are then repeated (speed
depends on how many there are, not on what is in them); it is saved for the contexts to come. All slots share one history; their
prompts differ.
"""

from __future__ import annotations

from typing import Any

from tuner.engines.base import EngineError
from tuner.engines.llama_cpp_python.batches import build_prompt_batches
from tuner.engines.llama_cpp_python.context import Context
from tuner.engines.llama_cpp_python.model import Model
from tuner.engines.llama_cpp_python.native import Native
from tuner.engines.llama_cpp_python.states import StateKey, StateStore
from tuner.runconfig import pad256

_LEAST_SAMPLE = 512
"""Tokens really computed of a long history: two graph sizes, and enough to warm a default micro-batch, tokens."""


class History:
    """What the slots of one context hold."""

    def __init__(
        self, native: Native, model: Model, context: Context, store: StateStore, *, flash_attn: str | None, depth: int
    ) -> None:
        self._native = native
        self._model = model
        self._context = context
        self._store = store
        self._flash_attn = flash_attn
        self._depth = depth
        self._genuine = 0
        self.computed_tokens = 0

    def bring(self, length: int, *, fill_threads: int) -> None:
        """Make every slot hold exactly `length` tokens: depth, or depth and prompt. Raises EngineError."""
        if not self._trim(length):
            self._rebuild(length, fill_threads)
        slots = range(self._context.settings.parallel)
        held = {self._context.count_tokens(slot) for slot in slots}
        if held != {length}:
            raise EngineError("failed", f"a slot holds {sorted(held)} tokens instead of {length} before the turn")

    def note_turn(self, length: int) -> None:
        """The first `length` tokens of every slot are its history and its own prompt; what follows is the turn's."""
        self._genuine = length

    def forget(self) -> None:
        """The slots may hold anything (an error came in between)."""
        self._genuine = 0

    def _trim(self, length: int) -> bool:
        context = self._context
        slots = range(context.settings.parallel)
        if length == 0:
            context.clear()
            self._genuine = 0
            return True
        if self._genuine < length:
            return False
        if all(context.count_tokens(slot) == length for slot in slots):
            return True
        return context.can_trim and all(context.trim(slot, length) for slot in slots)

    def _rebuild(self, length: int, fill_threads: int) -> None:
        self._genuine = 0
        if not self._restore(length):
            live = self._context.threads
            self._context.set_threads(fill_threads, fill_threads)
            try:
                self._compute(length)
            finally:
                self._context.set_threads(*live)
        self._genuine = length

    def _restore(self, length: int) -> bool:
        key = self._key(length)
        blob = self._store.find(key)
        if blob is None:
            return False
        if self._put(blob, range(self._context.settings.parallel), length):
            return True
        self._store.forget(key)
        return False

    def _put(self, blob: Any, slots: range, length: int) -> bool:
        if slots.start == 0:
            self._context.clear()
        context = self._context
        return all(context.restore_state(blob, slot) and context.count_tokens(slot) == length for slot in slots)

    def _compute(self, length: int) -> None:
        """Compute slot 0, save it, and give the others the same; compute them too where it cannot be saved."""
        if self._spread(length):
            return
        start = self._start_from_depth(length)
        self._read(self._draw(length)[start:], start)
        slots = self._context.settings.parallel
        blob = self._save(length)
        if slots == 1 or (blob is not None and self._put(blob, range(1, slots), length)):
            return
        self._context.clear()
        tokens = [self._draw(length)] * slots
        for batch in build_prompt_batches(self._native, tokens, start=0, most=self._context.n_batch, want_last=False):
            self._context.decode(batch)
        self._context.synchronize()

    def _spread(self, length: int) -> bool:
        """Compute the beginning in slot 0 and repeat its cells; False where that saves nothing or is not possible."""
        from tuner.engines.llama_cpp_python.tiling import tile_state

        sample = max(_LEAST_SAMPLE, pad256(self._context.n_swa + 1) if self._context.n_swa else 0)
        if length < 2 * sample or not self._may_save:
            return False
        self._context.clear()
        self._read(self._draw(length)[:sample], 0)
        if not self._store.has_room(self._context.measure_state() * length // sample):
            return False
        short = self._context.save_state()
        blob = tile_state(short, sample, length) if short is not None else None
        if blob is None or not self._put(blob, range(self._context.settings.parallel), length):
            return False
        self._store.keep(self._key(length), blob)
        return True

    def _read(self, tokens: Any, start: int) -> None:
        """Compute `tokens` in slot 0 from position `start` on."""
        for batch in build_prompt_batches(self._native, [tokens], start=start, most=self._context.n_batch, want_last=False):
            self._context.decode(batch)
        self._context.synchronize()
        self.computed_tokens += len(tokens)

    def _start_from_depth(self, length: int) -> int:
        """How much of slot 0 is there already: the history without the prompt.

        Where it is not saved yet it is computed and saved on the way, since a turn that times the prompt starts there.
        """
        if not 0 < self._depth < length:
            self._context.clear()
            return 0
        blob = self._store.find(self._key(self._depth))
        if blob is None or not self._put(blob, range(1), self._depth):
            self._context.clear()
            self._read(self._draw(self._depth), 0)
            self._save(self._depth)
        return self._depth

    def _save(self, length: int) -> Any:
        """Slot 0's state, kept where there is room; a state that would crowd the machine is not even copied."""
        if not self._may_save or not self._store.has_room(self._context.measure_state()):
            return None
        blob = self._context.save_state()
        if blob is not None:
            self._store.keep(self._key(length), blob)
        return blob

    @property
    def _may_save(self) -> bool:
        """A saved state leaves out what a window hides, so with swa_full less would be restored than a turn attends to."""
        return not (self._context.n_swa and self._context.settings.swa_full)

    def _draw(self, length: int) -> Any:
        import numpy as np

        tokens = self._model.tokens
        history = tokens.draw_history(self._depth)
        prompt = tokens.draw_prompt(0, length - self._depth, starts=self._depth == 0) if length > self._depth else history[:0]
        return np.concatenate([history, prompt])

    def _key(self, length: int) -> StateKey:
        settings = self._context.settings
        return StateKey(
            model=self._model.identity,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attn=self._flash_attn,
            swa_full=settings.swa_full,
            depth=self._depth,
            prompt=length - self._depth,
        )
