"""CHT01: what a long history costs, standing and going."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tuner.memory import kv_bytes, recurrent_bytes
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.kv_arithmetic import count_per_token
from tuner.units import format_bytes, format_ms

_STEP = 1000
"""Tokens of history that costs are told for."""


class HistoryCost(Rule):
    """A history costs twice. The standing cost is memory: the KV cache, so many bytes for each token of context. It is set
    aside whole when the model starts, however short the chat is then, so it is the context you set that counts and not what you
    have written. The going cost is time: each new token looks back at all tokens before it, so many milliseconds more for each
    thousand tokens of history. Neither depends on the other: a large context that is not filled costs no time.

    The rule answers the question "what do long chats cost me", with the numbers of your model on this machine, when you said
    that long chats are the matter. There is nothing to change by itself; CHT02 tells when a new chat or a summary pays, CHT03
    whether an 8-bit cache makes it faster.

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
            evidence=(*_tell_memory(situation, per_token), *_tell_time(added)),
            remedy=_advise(per_token, added),
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
        ("recurrent state, whatever the length", recurrent_bytes(model, config) or None, "bytes"),
    )
    return tuple(Evidence(what=what, value=value, unit=unit, basis="predicted") for what, value, unit in told if value)


def _tell_time(added: float | None) -> tuple[Evidence, ...]:
    if added is None:
        return ()
    return (Evidence(what="each 1000 tokens of history add to each token", value=added, unit="ms", basis="predicted"),)


def _advise(per_token: int | None, added: float | None) -> str:
    room = f"A thousand tokens of context take {format_bytes(per_token * _STEP)}, set aside at the start" if per_token else ""
    time = f"a thousand tokens of history add {format_ms(added)} to each token" if added is not None else ""
    text = "; ".join(part for part in (room, time) if part)
    return f"{text[0].upper()}{text[1:]}."
