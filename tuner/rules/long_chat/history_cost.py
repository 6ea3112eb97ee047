"""CHT01: what a long history costs, standing and going."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tuner.memory import kv_bytes, recurrent_bytes
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.kv_arithmetic import count_per_token
from tuner.runconfig import pad256
from tuner.units import format_bytes, format_ms

_STEP = 1000
"""Tokens of history that costs are told for."""
_BEARABLE = 0.5
"""Share that the history may add to a token's time before it is felt."""


class HistoryCost(Rule):
    """A history costs twice. The standing cost is memory: the KV cache (the model's notes on the text so far), so many bytes
    for each token of context. It is set aside whole when the model starts, however short the chat is then, so it is the context
    you set that counts and not what you have written. The going cost is time: each new token looks back at all tokens before
    it, so many milliseconds more for each thousand tokens of history. Neither depends on the other: a large context that is not
    filled costs no time.

    The rule answers the question "what do long chats cost me", with the numbers of your model on this machine, when you said
    that long chats are the matter. It tells from which history on a limit pays in time, and how much memory a smaller context
    would free. There is nothing to change by itself; CHT02 tells when a new chat or a summary pays, CHT03 whether an 8-bit
    cache makes it faster.

    When this is wrong: models with sliding windows keep and read only the window in most layers, so further history costs them
    little; models with a purely recurrent state keep a block of fixed size, and the length of the chat costs nothing at all.
    The numbers count that. Time per thousand tokens is predicted, and needs a calibration.
    """

    code: ClassVar[str] = "CHT01"
    title: ClassVar[str] = "What the history costs"
    symptoms: ClassVar[frozenset[str]] = frozenset({"long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        if situation.symptom != "long-chat" or not situation.model.has_kv or situation.model.is_encoder_only:
            return ()
        per_token, added = count_per_token(situation), count_ms_per_thousand(situation)
        if not per_token and added is None:
            return ()
        finding = Finding(
            code=self.code,
            title="This is what each further piece of history costs with this model.",
            severity="hint",
            evidence=(*_tell_memory(situation, per_token), *_tell_time(situation, added)),
            remedy=_advise(situation, per_token, added),
        )
        return (finding,)


def count_ms_per_thousand(situation: Situation) -> float | None:
    """Time that a thousand tokens of history add to each token, ms; None where nobody can say or nothing is added."""
    depths = (situation.workload.depth_tokens, situation.workload.depth_tokens + _STEP)
    times = []
    for depth in depths:
        workload = msgspec.structs.replace(situation.workload, depth_tokens=depth)
        prediction = situation.predict(situation.model, situation.config, workload)
        if prediction is None:
            return None
        times.append(prediction.tpot.value)
    return times[1] - times[0] if times[1] > times[0] else None


def _tell_memory(situation: Situation, per_token: int | None) -> tuple[Evidence, ...]:
    model, config = situation.model, situation.config
    told = (
        ("memory for each token of context", per_token, "bytes"),
        ("context that is set", config.ctx_size or None, "tokens"),
        ("cache set aside at the start", kv_bytes(model, config), "bytes"),
        ("of it beyond what the workload needs", count_idle_bytes(situation, per_token), "bytes"),
        ("recurrent state, whatever the length", recurrent_bytes(model, config) or None, "bytes"),
    )
    return tuple(Evidence(what=what, value=value, unit=unit, basis="predicted") for what, value, unit in told if value)


def count_idle_bytes(situation: Situation, per_token: int | None) -> int | None:
    """Cache that a limit on the context at what the workload needs would free, bytes; None: unknown, or nothing."""
    config, slots = situation.config, max(1, situation.config.parallel)
    idle = config.ctx_size - pad256(situation.workload.tokens_per_slot) * slots
    return idle * per_token if per_token and config.ctx_size and idle > 0 else None


def find_bearable_history(situation: Situation, added: float) -> int | None:
    """History with which a token takes half as long again as with none, in whole hundreds of tokens; None: unknown."""
    workload = msgspec.structs.replace(situation.workload, depth_tokens=0)
    bare = situation.predict(situation.model, situation.config, workload)
    return None if bare is None else max(100, round(bare.tpot.value * _BEARABLE / added * _STEP / 100) * 100)


def _tell_time(situation: Situation, added: float | None) -> tuple[Evidence, ...]:
    if added is None:
        return ()
    limit = find_bearable_history(situation, added)
    told = (
        ("each 1000 tokens of history add to each token", added, "ms"),
        ("history that makes a token take half as long again as none", limit, "tokens"),
    )
    return tuple(Evidence(what=what, value=value, unit=unit, basis="predicted") for what, value, unit in told if value)


def _advise(situation: Situation, per_token: int | None, added: float | None) -> str:
    limit = find_bearable_history(situation, added) if added is not None else None
    room = f"A thousand tokens of context take {format_bytes(per_token * _STEP)}, set aside at the start" if per_token else ""
    time = f"a thousand tokens of history add {format_ms(added)} to each token" if added is not None else ""
    text = "; ".join(part for part in (room, time) if part)
    sums = f"{text[0].upper()}{text[1:]}."
    if limit is None:
        return sums
    return f"{sums} To keep writing quick, limit the history to about {limit} tokens; a smaller context saves memory, not time."
