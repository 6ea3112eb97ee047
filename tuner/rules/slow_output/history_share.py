"""DEC09: a large share of each token goes to the history."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from tuner.roofline.record import Prediction
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import compare_predictions, predict_point
from tuner.rules.figures import tell_figure
from tuner.units import format_ms

_MUCH: Final = 1 / 3
"""Below a third, halving the history saves less than a sixth of the time, which nobody notices."""
_LEAST_DEPTH: Final = 512


class HistoryShare(Rule):
    """For every token the model looks back at all text before it. That look costs time in proportion to the length of the
    history, on top of what the weights cost, which never changes. In a short chat the weights are nearly all of it. In a long
    one the history grows until it is half of each token and more: the same model writes slower and slower.

    The rule tells what a token costs with and without your history, and what each further thousand tokens add. It speaks when
    the history takes more than a third. What helps: a new chat for a new subject, a summary in place of what was said long ago,
    fewer documents kept in the prompt. Flash attention on or off matters here as well (DEC10).

    When this is wrong: models with sliding windows or a recurrent state look back at a fixed length in most of their layers,
    and their cost grows less than the length suggests; the prediction counts that. Dropping the history drops what it says.
    """

    code: ClassVar[str] = "DEC09"
    title: ClassVar[str] = "The history's share of each token"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output", "long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        now, workload = predict_point(situation, situation.config), situation.workload
        if now is None or workload.depth_tokens < _LEAST_DEPTH or now.decode.attention_share < _MUCH:
            return ()
        short = self._predict_short(situation)
        if short is None or short.tpot.value >= now.tpot.value:
            return ()
        per_thousand = (now.tpot.value - short.tpot.value) / workload.depth_tokens * 1000
        finding = Finding(
            code=self.code,
            title="Much of each token's time goes to looking back at a long history.",
            severity="hint",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(what="history", value=workload.depth_tokens, unit="tokens", basis="measured"),
                Evidence(what="share of a token's time", value=now.decode.attention_share, unit="share", basis=now.tpot.basis),
                Evidence(what="time per token without it", value=short.tpot.value, unit="ms", basis=short.tpot.basis),
                Evidence(what="each 1000 tokens of history add", value=per_thousand, unit="ms", basis=now.tpot.basis),
            ),
            remedy=f"Begin a new chat for a new subject, or replace old turns by a summary: each thousand tokens less save "
            f"{format_ms(per_thousand)} per token.",
            expected=self._assume(now, short),
            costs="The model no longer knows what was dropped.",
        )
        return (finding,)

    def _predict_short(self, situation: Situation) -> Prediction | None:
        short = msgspec.structs.replace(situation.workload, depth_tokens=0)
        return situation.predict(situation.model, situation.config, short)

    def _assume(self, now: Prediction, short: Prediction) -> Expected | None:
        """With the history gone as a whole: the most that can be had."""
        expected = compare_predictions(now, short, "tpot")
        return None if expected is None else msgspec.structs.replace(expected, basis="assumed")
