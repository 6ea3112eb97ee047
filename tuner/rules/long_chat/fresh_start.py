"""CHT02: when a new chat or a summary pays."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from tuner.roofline.record import Prediction
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import NOTICEABLE
from tuner.units import format_ms

_SHORTER: Final = 8
"""A summary is assumed to be an eighth of what it stands for."""
_LEAST_DEPTH: Final = 4096
"""Below this a summary is not worth the trouble, tokens."""


class FreshStart(Rule):
    """A long chat makes each further token slower. Two things help. A new chat drops the history at once and costs nothing, but
    the model forgets everything. A summary keeps the gist: the model (or you) writes the old turns down in an eighth of the
    length, and a new chat begins with that. It costs something once, because the summary has to be written and then read. From
    then on each token is faster. After so many tokens of answers it has paid for itself.

    The rule computes that number for your history: time per token with the history and with a summary of an eighth, time to
    write the summary and to read it, and the number of tokens after which it pays. It speaks when a token would get at least a
    twelfth faster.

    When this is wrong: an eighth is assumed. A chat about one long document cannot be summarised without losing what it is
    about; then keep the document and drop the rest. If the program keeps the history in its cache, going on costs only the
    slower tokens; if it reads the whole history again each turn, a summary pays at once.
    """

    code: ClassVar[str] = "CHT02"
    title: ClassVar[str] = "When a new chat or a summary pays"
    symptoms: ClassVar[frozenset[str]] = frozenset({"long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        depth = situation.workload.depth_tokens
        if depth < _LEAST_DEPTH or not situation.model.has_kv:
            return ()
        size = depth // _SHORTER
        now, later = _predict(situation), _predict(situation, depth_tokens=size)
        bare, reading = _predict(situation, depth_tokens=0), _predict(situation, depth_tokens=0, prompt_tokens=size)
        if now is None or later is None or bare is None or reading is None or now.tpot.value < NOTICEABLE * later.tpot.value:
            return ()
        once = size * now.tpot.value + reading.ttft.value
        saved = now.tpot.value - later.tpot.value
        pays = round(once / saved)
        finding = Finding(
            code=self.code,
            title="From here on a summary or a new chat would make each token faster.",
            severity="hint",
            evidence=(
                Evidence(what="history", value=depth, unit="tokens", basis="measured"),
                Evidence(what="time per token now", value=now.tpot.value, unit="ms", basis=now.tpot.basis),
                Evidence(what="summary", value=size, unit="tokens", basis="assumed"),
                Evidence(what="time per token with the summary", value=later.tpot.value, unit="ms", basis=later.tpot.basis),
                Evidence(what="time per token in a new chat", value=bare.tpot.value, unit="ms", basis=bare.tpot.basis),
                Evidence(what="writing and reading the summary, once", value=once, unit="ms", basis="assumed"),
                Evidence(what="it pays after", value=pays, unit="tokens", basis="assumed"),
            ),
            remedy=f"Replace the old turns by a summary if you expect more than {pays} further tokens of answers; begin a new "
            f"chat when the subject changes, which saves {format_ms(now.tpot.value - bare.tpot.value)} per token at once.",
            costs="What is not in the summary is forgotten.",
        )
        return (finding,)


def _predict(situation: Situation, **changes: int) -> Prediction | None:
    workload = msgspec.structs.replace(situation.workload, **changes)
    return situation.predict(situation.model, situation.config, workload)
