"""How long a run will take, as the default configuration's own runs tell it, and how a budget is divided by it.

The rounds that prove a gain are set aside first and the search gets the rest; where full turns are too long for that, the
rounds write a shorter answer, and read a prompt that no goal needs in the first of them only.
"""

from __future__ import annotations

import math
from typing import Final, Self

import msgspec

from tuner.measure.record import Outcome, Plan
from tuner.objective import needed_phases
from tuner.study.request import CONFIRM_SHARE, StudyRequest
from tuner.study.strategy import SHORT_DECODE, plan_round

PROOF_SHARE: Final = 0.6
"""Part of what is left after the default was run, that the proof may take from the search where the budget is short."""
FEWEST_PAIRS: Final = 3
"""Rounds of two runs each that bear an interval."""
MOST_PAIRS: Final = 20
"""Rounds after which a gain that is still in doubt is too small to matter."""
SEARCH_SHARE: Final = 0.4
"""Part of what is left after the default was run, that the search keeps however small the gain in hand is."""
_MARGIN: Final = 1.1
"""What is to be proved may well take longer than the default in one of its phases."""
_APART: Final = 0.025
"""Least deviation between runs of one configuration that are apart in time, in log units."""
_POWER: Final = 2.8
"""Deviations of the mean between a gain and none at which a 95 % interval will exclude none four times out of five."""
_OF_STUDENT: Final = 2
"""Rounds more, since the deviation is not known but estimated from the same few rounds."""


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
    """What each run of the first round measures."""
    later_plan: Plan
    """What each run of the rounds after it measures."""
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
    first, later = _fit_rounds(request, pace, room_s, loads=loads, tokens=tokens)
    proof_s = expect_proof(pace, first, later, loads=loads)
    missing_s = max(0.0, proof_s - left_s)
    search_ends_s = usual_ends_s if missing_s else min(usual_ends_s, ends_s - proof_s)
    return Division(search_ends_s=search_ends_s, round_plan=first, later_plan=later, missing_s=missing_s)


def expect_proof(pace: Pace, first: Plan, later: Plan, *, loads: bool) -> float:
    """Seconds that the fewest rounds take."""
    return 2 * _MARGIN * (pace.expect(first, loads=loads) + (FEWEST_PAIRS - 1) * pace.expect(later, loads=loads))


def count_rounds(ratio: float, noise: float, *, fewest: int) -> int:
    """Rounds that will likely prove a gain of `ratio` (above 1), where samples of one run scatter by `noise` (log units).

    The mean of n paired log ratios has the deviation noise * sqrt(2 / n); runs apart in time scatter more than samples of one.
    """
    gain = math.log(max(ratio, 1.0))
    wanted = 2 * (_POWER * max(noise, _APART) / gain) ** 2 + _OF_STUDENT if gain > 0 else math.inf
    return max(fewest, math.ceil(min(wanted, MOST_PAIRS)))


def end_search(pace: Pace, division: Division, *, rounds: int, ends_s: float, began_s: float) -> float:
    """When the search is to end so that `rounds` still fit before `ends_s`, on the study's clock, s.

    Never later than the division has it, and not before its own share of the time since `began_s` is used.
    """
    run_s = pace.expect(division.later_plan)
    earliest_s = began_s + SEARCH_SHARE * (ends_s - began_s)
    return min(division.search_ends_s, max(earliest_s, ends_s - 2 * _MARGIN * rounds * run_s))


def _fit_rounds(request: StudyRequest, pace: Pace, room_s: float, *, loads: bool, tokens: int | None) -> tuple[Plan, Plan]:
    """Plans of the first round and of later ones that fit into `room_s`, or the shortest there are."""
    first = later = plan_round(request)
    if tokens is not None:
        return (_cut(first, tokens),) * 2
    if expect_proof(pace, first, later, loads=loads) <= room_s:
        return first, later
    later = msgspec.structs.replace(later, prefill=needed_phases(request.goals, request.limits)[0])
    over_s = expect_proof(pace, first, later, loads=loads) - room_s
    if over_s <= 0 or pace.token_s <= 0:
        return first, later
    cut = math.ceil(over_s / (2 * FEWEST_PAIRS * _MARGIN * pace.token_s))
    length = max(min(first.decode_tokens, SHORT_DECODE), first.decode_tokens - cut)
    return _cut(first, length), _cut(later, length)


def _cut(plan: Plan, tokens: int) -> Plan:
    return msgspec.structs.replace(plan, decode_tokens=tokens)
