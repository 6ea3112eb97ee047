"""Optuna's samplers as they are, over the whole space, every point measured in full: the controls of our own strategy."""

from __future__ import annotations

from tuner.measure.record import Outcome, Plan
from tuner.runconfig import RunConfig
from tuner.study.history import History
from tuner.study.points import find_unseen
from tuner.study.request import StudyRequest
from tuner.study.strategy import Proposal, plan_full

MOST_IDLE = 10
"""Proposals in a row that told nothing new, before an unseen point is taken instead."""


class SampledStrategy:
    """Optuna chooses; where it only repeats itself, an unseen point is taken; without one the space is exhausted."""

    def __init__(self, request: StudyRequest) -> None:
        self._request = request
        self.stop_reason = "space exhausted"

    def propose(self, history: History) -> Proposal | None:
        plan = plan_full(self._request)
        if count_idle(history) < MOST_IDLE:
            return Proposal(values=None, plan=plan, stage="search", thorough=True)
        values = find_unseen(self._request.space, history, seed=self._request.seed)
        return None if values is None else Proposal(values=values, plan=plan, stage="search", thorough=True)

    def extend(self, history: History, proposal: Proposal, config: RunConfig, outcome: Outcome) -> Plan | None:
        del history, proposal, config, outcome
        return None


def count_idle(history: History) -> int:
    """Attempts at the end of the history that were told without being run."""
    count = 0
    for attempt in reversed(history.attempts):
        if attempt.was_run:
            break
        count += 1
    return count
