"""CHT03: an 8-bit cache to make a long history faster."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.memory import kv_bytes
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import find_best_change
from tuner.rules.figures import tell_figure
from tuner.rules.points import change_point
from tuner.runconfig import CACHE_TYPES

_CAREFUL = "q8_0"
_LEAST_DEPTH = 2048


class FasterCache(Rule):
    """With a long history each token reads the whole KV cache, the model's notes on the text so far. In the format q8_0 the
    cache is 53 percent of its size, so there are fewer bytes to read, but they have to be unpacked. Which of the two wins
    depends on the machine: on most GPUs and on processors with slow memory it gets faster, on others slower.

    When this machine was calibrated (`rooftune calibrate`), both formats were measured, and the rule predicts output with an
    8-bit cache at your history and proposes it where that should be clearly faster. It never goes below 8 bits, and K and V get
    the same format. Flash attention, another way of computing the look back, is switched on with it, because values (V) in 8
    bits need it.

    When this is wrong: for a few families (gpt-oss, Qwen 2) people found that an 8-bit K changes answers; compare some of your
    own with it and without. For short chats the cache hardly matters.
    """

    code: ClassVar[str] = "CHT03"
    title: ClassVar[str] = "8-bit cache for a long history"
    symptoms: ClassVar[frozenset[str]] = frozenset({"long-chat", "slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config, model = situation.config, situation.model
        types = (config.cache_type_k, config.cache_type_v)
        precise = all(CACHE_TYPES.index(kind) < CACHE_TYPES.index(_CAREFUL) for kind in types)
        if situation.workload.depth_tokens < _LEAST_DEPTH or not precise or not model.has_kv:
            return ()
        change: dict[str, Any] = {"cache_type_k": _CAREFUL, "cache_type_v": _CAREFUL}
        change |= {"flash_attn": "on"} if config.flash_attn == "off" else {}
        best = find_best_change(situation, [change], "tpot")
        if best is None:
            return ()
        sizes = [kv_bytes(model, change_point(situation, each)) for each in ({}, change)]
        names = ("KV cache now", "KV cache in 8 bits")
        finding = Finding(
            code=self.code,
            title="With an 8-bit cache the long history should be read faster.",
            severity="slows",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(what="history", value=situation.workload.depth_tokens, unit="tokens", basis="measured"),
                *(
                    Evidence(what=name, value=size, unit="bytes", basis="predicted")
                    for name, size in zip(names, sizes, strict=True)
                    if size is not None
                ),
            ),
            change=best[0],
            remedy="Set cache_type_k and cache_type_v to q8_0, with flash attention on.",
            expected=best[1],
            costs="A little precision: hardly any for most models.",
        )
        return (finding,)
