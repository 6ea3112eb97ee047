"""PRE07: the same beginning of the prompt is read again each turn."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from tuner.roofline.record import Prediction
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import compare_predictions, predict_point
from tuner.rules.figures import feels_slow_start, tell_figure
from tuner.units import format_ms

_LONG: Final = 1024
"""Prompts below this are rarely worth a thought about caching, tokens."""
_SHARED: Final = 0.75
"""Share of the prompt that is assumed to be the same as last time: instructions, tools, former turns."""


class PromptReread(Rule):
    """What was read once can stay in the KV cache, the model's notes on the text so far. If the next prompt begins with exactly
    the same text, those notes are used and only the new end is read. A chat of twenty turns read from the start every time
    costs twenty times the beginning; with the beginning kept, each turn costs its own few hundred tokens.

    Your workload says that nothing is in the cache and the prompt is long. The rule shows what the first token would take if
    three quarters of that prompt were the same as last time. The remedy is no setting of speed but order: put what never
    changes first (instructions, tools, documents), what changes last, and nothing variable such as the date at the top.
    llama-server keeps the beginning by itself as long as the same slot (the place of one conversation) is used; in
    llama-cpp-python use one `Llama` object with a cache.

    When this is wrong: when every prompt really is new, as with single documents; then say so to yourself and ignore this. With
    sliding-window models the beginning can only be used again where the whole window is kept (`swa_full`), and models that keep
    a running state in place of a cache (recurrent ones) can go back to a few marks only. The three quarters are assumed, not
    measured.
    """

    code: ClassVar[str] = "PRE07"
    title: ClassVar[str] = "The prompt is read anew each turn"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start", "long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        workload = situation.workload
        if workload.depth_tokens or workload.prompt_tokens < _LONG or not feels_slow_start(situation):
            return ()
        before, after = predict_point(situation, situation.config), self._predict_kept(situation)
        if before is None or after is None:
            return ()
        expected = compare_predictions(before, after, "ttft")
        kept = int(workload.prompt_tokens * _SHARED)
        finding = Finding(
            code=self.code,
            title="A long prompt is read from its beginning although much of it may be known from the turn before.",
            severity="hint",
            evidence=(
                *tell_figure(situation, "ttft"),
                Evidence(what="prompt", value=workload.prompt_tokens, unit="tokens", basis="measured"),
                Evidence(what="of it the same as last time", value=kept, unit="tokens", basis="assumed"),
                Evidence(what="time to first token then", value=after.ttft.value, unit="ms", basis=after.ttft.basis),
            ),
            remedy="Keep the beginning of the prompt the same from turn to turn, and what changes at its end: with three "
            f"quarters kept, the first token comes after {format_ms(after.ttft.value)}." + _warn_of_window(situation),
            expected=None if expected is None else msgspec.structs.replace(expected, basis="assumed"),
            costs="The cache must hold the kept text, which is memory; each answer pays a little for a longer history.",
        )
        return (finding,) if _is_worth_it(expected) else ()

    def _predict_kept(self, situation: Situation) -> Prediction | None:
        workload = situation.workload
        kept = int(workload.prompt_tokens * _SHARED)
        later = msgspec.structs.replace(workload, depth_tokens=kept, prompt_tokens=workload.prompt_tokens - kept)
        return situation.predict(situation.model, situation.config, later)


def _is_worth_it(expected: Expected | None) -> bool:
    return expected is not None and expected.ratio > 1.5


def _warn_of_window(situation: Situation) -> str:
    if situation.model.n_swa is None or situation.config.swa_full:
        return ""
    return " This model has sliding windows: the beginning can be used again only with swa_full, which takes more memory."
