"""DEC11: head-room for speculation."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.figures import feels_slow_output, tell_figure
from tuner.rules.points import change_point

_GUESSES: Final = 4
_ENOUGH: Final = 2.0
"""Guesses are right half of the time or less in most texts, so checking must be at least twice as cheap as writing."""


class SpeculationHeadroom(Rule):
    """Writing one token fetches all weights and leaves most arithmetic idle. Checking several guessed tokens at once fetches
    them once as well, so it costs little more than writing one. Speculation makes use of that: something cheap guesses the next
    few tokens (a small model of the same family, or a look-up in the text so far), the model checks them together and keeps
    those that it would have written itself. The answer is the same, only sooner.

    The rule speaks when the output is slow for one user, and predicts how much cheaper four tokens are together than one by
    one. That is the head-room. How much of it becomes speed depends on how often the guesses are right, which no one can
    predict: often in code and in texts that repeat their source, rarely in free prose. With llama-server, `--spec-type
    ngram-mod` needs no second model; `--spec-type draft-simple -md SMALL.gguf` uses one.

    When this is wrong: with wrong guesses speculation is slower than none, even at ninety percent right where checking is dear.
    Try at least three kinds of your own texts and keep it only if the worst is not slower. Leave it off with several users at
    once: they use up the same idle arithmetic. A second model takes memory too.
    """

    code: ClassVar[str] = "DEC11"
    title: ClassVar[str] = "Head-room for speculation"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        is_shared = situation.workload.users > 1 or situation.config.parallel > 1
        if is_shared or situation.draft is not None or not feels_slow_output(situation):
            return ()
        headroom = find_headroom(situation)
        if headroom is None or headroom < _ENOUGH:
            return ()
        finding = Finding(
            code=self.code,
            title="Several tokens could be checked in little more than the time of one.",
            severity="hint",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(
                    what=f"speed of {_GUESSES} tokens together against one", value=headroom, unit="times", basis="predicted"
                ),
            ),
            remedy="Try speculation on three kinds of your own texts: in llama-server `--spec-type ngram-mod`, or a small "
            "model of the family with `--spec-type draft-simple -md SMALL.gguf`; keep it only if none of them gets slower.",
            costs="Wrong guesses cost time, a second model costs memory, and with several users at once it slows all of them.",
        )
        return (finding,)


def find_headroom(situation: Situation) -> float | None:
    """Tokens per second when four tokens are computed at once, against one at a time, without history; None: nobody can say."""
    config = situation.config
    one_turn = msgspec.structs.replace(situation.workload, depth_tokens=0)
    together = change_point(situation, {"parallel": _GUESSES, "ctx_size": config.ctx_size * _GUESSES})
    alone = situation.predict(situation.model, config, one_turn)
    joint = situation.predict(situation.model, together, one_turn)
    return joint.throughput.value / alone.throughput.value if alone and joint and alone.throughput.value else None
