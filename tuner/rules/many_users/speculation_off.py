"""USR05: speculation under load."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import change_point

_GUESSES: Final = 4
_ENOUGH: Final = 2.0
"""With less head-room than this, guesses that are right half of the time do not pay for being checked."""


class SpeculationOff(Rule):
    """Speculation lets something cheap guess the next few tokens and has the model check them together. For one user that is
    nearly free, because the arithmetic of the machine is idle while weights are read. Several users at once use that idle
    arithmetic up: their tokens are computed together already. Checking guesses for each of them then takes time from the
    others. A public report tells of 33 tokens per second with one session and 10.8 with four of them.

    The rule speaks when many users are what you asked about, and predicts what computing four times as many tokens at once
    would cost here. Where that brings less than twice the tokens, speculation should be off: start llama-server without
    `--spec-type` (off is its default) and without a draft model, which frees that model's memory as well.

    When this is wrong: with few users on a large GPU there may be head-room left even for guesses; then the rule is silent.
    Compare with and without it under your real load.
    """

    code: ClassVar[str] = "USR05"
    title: ClassVar[str] = "Speculation off under load"
    symptoms: ClassVar[frozenset[str]] = frozenset({"many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config = situation.config
        if situation.symptom != "many-users" or situation.workload.users < 2 or config.parallel < 2:
            return ()
        wide = change_point(situation, {"parallel": config.parallel * _GUESSES, "ctx_size": config.ctx_size * _GUESSES})
        now, checked = (situation.predict(situation.model, each, situation.workload) for each in (config, wide))
        if now is None or checked is None or now.throughput.value <= 0:
            return ()
        headroom = checked.throughput.value / now.throughput.value
        if headroom >= _ENOUGH:
            return ()
        finding = Finding(
            code=self.code,
            title="With this many users there is no idle arithmetic left for speculation.",
            severity="hint",
            evidence=(
                Evidence(what="conversations at once", value=config.parallel, unit="slots", basis="measured"),
                Evidence(
                    what="tokens per second with four times as many computed at once", value=headroom, unit="times",
                    basis=checked.throughput.basis,
                ),
            ),
            remedy="Leave speculation off: no `--spec-type` and no draft model.",
            costs="A user who is alone for a while gets output no faster than without it.",
        )  # fmt: skip
        return (finding,)
