"""How long a run will take, as the default configuration's own runs tell it, and how a budget is divided by it.

The rounds that prove a gain are set aside first and the search gets the rest; where full turns are too long for that, the
rounds write a shorter answer.
"""

from __future__ import annotations

from typing import Final, Self

import msgspec

from tuner.measure.record import Outcome, Plan
from tuner.study.request import CONFIRM_SHARE, StudyRequest
from tuner.study.strategy import SHORT_DECODE, plan_round

PROOF_SHARE: Final = 0.6
"""Part of what is left after the default was run, that the proof may take from the search where the budget is short."""
FEWEST_PAIRS: Final = 3
"""Rounds of two runs each that bear an interval."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made of. Other configurations may be slower; the default is what is known from the start."""

    turn_s: float
    """One measured turn of `tokens`, prompt included, s."""
    tokens: int
    """Tokens that it wrote; 0 where it wrote none."""
    token_s: float
    """Writing one token, s."""
    prompt_s: float
    """Reading the prompt, s."""
    overhead_s: float
    """Building the context, warming up and storing the result, s."""
    load_s: float
    """Loading the model, s."""

    @classmethod
    def of(cls, outcome: Outcome) -> Self | None:
        """The pace of runs of full length; None where there are no figures."""
        found = outcome.measurement
        if found is None:
            return None
        turns = max(1, len(found.samples) + len(found.discarded))
        load_s = found.load_ms / 1000
        return cls(
            turn_s=outcome.measured_s / turns,
            tokens=found.decode_tokens,
            token_s=(found.tpot_ms or 0.0) / 1000,
            prompt_s=(found.ttft_ms or 0.0) / 1000,
            overhead_s=max(0.0, outcome.elapsed_s - outcome.measured_s - load_s),
            load_s=load_s,
        )

    def expect(self, plan: Plan, *, loads: bool = False) -> float:
        """Seconds that a run takes, with the model loaded anew where it `loads`."""
        turn_s = self.turn_s - (self.tokens - plan.decode_tokens) * self.token_s - (0.0 if plan.prefill else self.prompt_s)
        return plan.samples * max(0.0, turn_s) + self.overhead_s + (self.load_s if loads else 0.0)


class Division(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets which part of the budget."""

    search_ends_s: float
    """On the study's clock, s: no trial of the search is to end later."""
    round_plan: Plan
    """What each run of a round measures."""
    missing_s: float = 0.0
    """Time that a proof lacks even with the shortest runs, s; 0 where it fits."""


def divide_budget(
    request: StudyRequest, pace: Pace, *, ends_s: float, elapsed_s: float, loads: bool, tokens: int | None = None
) -> Division:
    """Set the rounds of a proof aside.

    `ends_s`: when everything is to be over, on the study's clock. `loads`: a run may have to load the model. `tokens`: length
    of answers in rounds that an earlier sitting stored; None leaves it to the budget.
    """
    left_s = max(0.0, ends_s - elapsed_s)
    usual_ends_s = min(ends_s, request.budget_s * (1 - CONFIRM_SHARE))
    room_s = max(request.budget_s * CONFIRM_SHARE, left_s * PROOF_SHARE)
    plan = plan_round(request)
    least = min(plan.decode_tokens, SHORT_DECODE)
    if tokens is not None:
        plan = msgspec.structs.replace(plan, decode_tokens=tokens)
    elif pace.token_s > 0:
        over_s = pace.expect(plan, loads=loads) - room_s / (2 * FEWEST_PAIRS)
        fitting = plan.decode_tokens - max(0, -int(-over_s // pace.token_s))
        plan = msgspec.structs.replace(plan, decode_tokens=max(least, fitting))
    proof_s = 2 * FEWEST_PAIRS * pace.expect(plan, loads=loads)
    if proof_s > left_s:
        return Division(search_ends_s=usual_ends_s, round_plan=plan, missing_s=proof_s - left_s)
    return Division(search_ends_s=min(usual_ends_s, ends_s - proof_s), round_plan=plan)
