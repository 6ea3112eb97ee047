"""CHT05: a coarse cache under a long history."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import is_possible
from tuner.runconfig import CACHE_TYPES, pad_context

_CAREFUL: Final = "q8_0"
_LONG: Final = 32_768


class CoarseCache(Rule):
    """The KV cache, the model's notes on the text so far, can be stored in formats below 8 bits. They save memory, and in short
    texts the loss is small. But each token rests on all notes before it, so errors in the notes add up with the length of the
    text. Beyond some 32 thousand tokens people see answers get worse, first in code, in numbers and in quotations. Keys (K)
    suffer more than values (V): a K that is coarser than V is the wrong way round.

    The rule speaks when a conversation may have more than 32768 tokens and the cache is coarser than q8_0, and proposes q8_0
    for both if that fits. It also speaks, whatever the length, when K is coarser than V.

    When this is wrong: models differ a lot, and for some even 4 bits do. Ask the same long questions with a cache in f16 or
    q8_0: if the answers are as good with yours, keep it.
    """

    code: ClassVar[str] = "CHT05"
    title: ClassVar[str] = "Coarse cache for a long text"
    symptoms: ClassVar[frozenset[str]] = frozenset({"long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config = situation.config
        slots = max(1, config.parallel)
        share = pad_context(config.ctx_size, slots) // slots if config.ctx_size else situation.model.context_length
        k, v = (CACHE_TYPES.index(kind) for kind in (config.cache_type_k, config.cache_type_v))
        coarse = max(k, v) > CACHE_TYPES.index(_CAREFUL)
        if share is None or not situation.model.has_kv or not (k > v or (coarse and share > _LONG)):
            return ()
        change: dict[str, Any] = {"cache_type_k": _CAREFUL, "cache_type_v": _CAREFUL}
        possible = is_possible(situation, change)
        finding = Finding(
            code=self.code,
            title="Keys are stored more coarsely than values, which loses more than it saves."
            if k > v
            else "The cache is stored so coarsely that answers in a long text may suffer.",
            severity="hint",
            evidence=(
                Evidence(
                    what="cache types", value=f"{config.cache_type_k} for K, {config.cache_type_v} for V", basis="measured"
                ),
                Evidence(what="context per slot", value=share, unit="tokens", basis="measured"),
            ),
            change=change if possible else {},
            remedy="Set cache_type_k and cache_type_v to q8_0."
            if possible
            else "Compare some answers with those of a finer cache at a shorter context; at this length it does not fit.",
            costs="Memory for a larger cache; it fits here." if possible else "",
        )
        return (finding,)
