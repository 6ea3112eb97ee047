"""PRE08: the prompt is too long for the promised first token."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.figures import find_figure, tell_figure
from tuner.units import format_ms


class PromptPromise(Rule):
    """You asked for the first token within a certain time. Reading the prompt takes time in proportion to its length, and a
    little more than that for long ones, since every token also looks at all tokens before it. So there is a longest prompt that
    keeps the promise on this machine with this model, and the rule tells it.

    What to do, in this order: use the other findings, which make reading faster; keep the unchanged beginning of the prompt in
    the cache, since only what is new counts (PRE07); then shorten what is sent: fewer documents, or summaries of them.

    When this is wrong: the length is a prediction, and the tighter the promise, the more its error matters; the rule uses the
    middle of the prediction, so at exactly that length one in two prompts is a little late. It knows nothing of the time that a
    network or a waiting line adds.
    """

    code: ClassVar[str] = "PRE08"
    title: ClassVar[str] = "Prompt too long for the promised first token"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        promise, found = situation.promise_ttft_ms, find_figure(situation, "ttft")
        if promise is None or found is None or found[0] <= promise:
            return ()
        longest = find_longest_prompt(situation, promise)
        evidence = (
            *tell_figure(situation, "ttft"),
            Evidence(what="promised", value=promise, unit="ms", basis="measured"),
            Evidence(what="prompt", value=situation.workload.prompt_tokens, unit="tokens", basis="measured"),
        )
        if longest is not None:
            evidence += (Evidence(what="longest prompt in time", value=longest, unit="tokens", basis="predicted"),)
        finding = Finding(
            code=self.code,
            title=f"The prompt is too long for a first token within {format_ms(promise)}.",
            severity="slows",
            evidence=evidence,
            remedy=_advise(longest),
        )
        return (finding,)


def find_longest_prompt(situation: Situation, promise_ms: float) -> int | None:
    """The most new prompt tokens whose first token is predicted within `promise_ms`, at the same history; 0 where not even one
    is; None where nobody can say.
    """
    if situation.predict(situation.model, situation.config, situation.workload) is None:
        return None
    low, high = 0, situation.workload.prompt_tokens
    while low < high:
        middle = (low + high + 1) // 2
        workload = msgspec.structs.replace(situation.workload, prompt_tokens=middle)
        prediction = situation.predict(situation.model, situation.config, workload)
        if prediction is None:
            return None
        low, high = (middle, high) if prediction.ttft.value <= promise_ms else (low, middle - 1)
    return low


def _advise(longest: int | None) -> str:
    rest = "keep its unchanged beginning in the cache, so that less of it is new."
    if longest is None:
        return f"Shorten the prompt, or {rest}"
    if longest == 0:
        return "No prompt is short enough: a smaller model or faster hardware is needed for this promise."
    return f"Send at most {longest} new tokens, or {rest}"
