"""Who proposes the next point. Strategies see the history and nothing else, so that one can replace another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tuner.measure.record import Outcome, Plan
from tuner.objective import needed_phases
from tuner.runconfig import RunConfig
from tuner.study.attempt import Purpose
from tuner.study.history import History
from tuner.study.request import SHORT_ANSWER, StudyRequest
from tuner.trial import Stage

if TYPE_CHECKING:
    from tuner.space.base import Phase

SHORT_DECODE: Final = SHORT_ANSWER
"""Tokens written by a run that only screens."""
_THOROUGH_SAMPLES: Final = 3


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A point to try next."""

    values: dict[str, Any] | None
    """Values of the searched dimensions; None lets Optuna's sampler choose."""
    plan: Plan
    """How much to measure at first."""
    stage: Stage
    """Where in the study."""
    purpose: Purpose = "point"
    """A new point, or a repeat of a known one that watches for drift."""
    thorough: bool = False
    """A run of full length."""


class Strategy(Protocol):
    """One way to search."""

    stop_reason: str
    """Why `propose` gave None, in plain words."""

    def propose(self, history: History) -> Proposal | None:
        """The next point, or None when there is nothing more to try. The last proposal's attempt is in `history` by then."""
        ...

    def extend(self, history: History, proposal: Proposal, config: RunConfig, outcome: Outcome) -> Plan | None:
        """More samples of the point in hand, in the light of those it has; None when they suffice."""
        ...


def list_searched(request: StudyRequest) -> tuple[str, ...]:
    """The dimensions that this request's strategy moves.

    Our own leaves alone what moves nothing that the goals and limits need; Optuna's controls get the whole space.
    """
    domains = request.space.domains
    if request.strategy != "physics":
        return tuple(domains)
    prefill, decode = needed_phases(request.goals, request.limits)
    metrics = {*request.goals, *(limit.metric for limit in request.limits)}
    phases: set[Phase] = {"prefill"} if prefill else set()
    phases |= {"decode"} if decode else set()
    phases |= {"memory"} if metrics & {"memory", "context"} else set()
    relevant = {*request.space.relevant(frozenset(phases)), "model"}
    if metrics & {"context", "ctx_size"}:
        relevant.add("ctx_size")
    return tuple(name for name, domain in domains.items() if name in relevant and len(domain.values) > 1)


def plan_short(request: StudyRequest, *, samples: int = 1) -> Plan:
    """The cheapest run that says something about the goals: needed phases only, a short answer."""
    prefill, decode = needed_phases(request.goals, request.limits)
    return Plan(
        samples=samples,
        prefill=prefill,
        decode_tokens=min(request.workload.output_tokens, SHORT_DECODE) if decode else 0,
    )


def plan_full(request: StudyRequest, *, samples: int = _THOROUGH_SAMPLES) -> Plan:
    """Turns of full length, as the search has it. A phase that no goal needs is kept short: its figure exists all the same."""
    return _plan_turns(request, request.answer_tokens, samples=samples)


def plan_round(request: StudyRequest) -> Plan:
    """One run of a round as it is wanted: a turn of full length, whatever the budget, on a fresh context."""
    return _plan_turns(request, request.workload.output_tokens, samples=1, fresh=True)


def _plan_turns(request: StudyRequest, n_out: int, *, samples: int, fresh: bool = False) -> Plan:
    _, decode = needed_phases(request.goals, request.limits)
    return Plan(samples=samples, prefill=True, decode_tokens=n_out if decode else min(n_out, SHORT_DECODE), fresh=fresh)


def is_full_length_short(request: StudyRequest) -> bool:
    """Whether a run that only screens is as long as a full one, so that their figures compare."""
    short, full = plan_short(request), plan_full(request)
    return (short.prefill, short.decode_tokens) == (full.prefill, full.decode_tokens)
