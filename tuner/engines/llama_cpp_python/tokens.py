"""Token ids to compute with: deterministic, valid, never a control or end token, different for every slot.

Speed does not depend on what is said, except where experts are chosen by token; so slots must not say the same.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from tuner.engines.llama_cpp_python.native import Native

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]

_POOL: Final = 4096
_HISTORY_SEED: Final = 1
_PROMPT_SEED: Final = 1_000
_ANSWER_SEED: Final = 2_000


class TokenSource:
    """Draws token ids from a sample of one model's vocabulary."""

    def __init__(self, native: Native, model: Any) -> None:
        import numpy as np

        api = native.api
        vocab = api.llama_model_get_vocab(model)
        self.n_vocab = int(api.llama_vocab_n_tokens(vocab))
        has_text = int(api.llama_vocab_type(vocab)) != 0
        self._bos = int(api.llama_vocab_bos(vocab)) if has_text and api.llama_vocab_get_add_bos(vocab) else None
        chosen = random.Random(0).sample(range(self.n_vocab), min(_POOL, self.n_vocab))
        if has_text:
            chosen = [t for t in chosen if not api.llama_vocab_is_control(vocab, t) and not api.llama_vocab_is_eog(vocab, t)]
        self._pool = np.array(chosen or [0], dtype=np.int32)

    def draw_history(self, length: int) -> Ids:
        """The first `length` tokens of a conversation; the vocabulary's first token first, if it has one."""
        return self._begin(self._draw(_HISTORY_SEED, length))

    def draw_prompt(self, slot: int, length: int, *, starts: bool) -> Ids:
        """A slot's prompt; `starts` when nothing stands before it."""
        ids = self._draw(_PROMPT_SEED + slot, length)
        return self._begin(ids) if starts else ids

    def draw_answer(self, slot: int, length: int) -> Ids:
        """What a slot is made to answer."""
        return self._draw(_ANSWER_SEED + slot, length)

    def _draw(self, seed: int, length: int) -> Ids:
        import numpy as np

        picks = np.random.Generator(np.random.PCG64(seed)).integers(0, len(self._pool), size=length)
        return self._pool[picks]

    def _begin(self, ids: Ids) -> Ids:
        if self._bos is not None and len(ids):
            ids[0] = self._bos
        return ids
