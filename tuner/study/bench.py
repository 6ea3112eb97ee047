"""Tries one point: refused, known or too large points are told at once, the others are measured. What comes of it is stored.

Also the study's clock: budget and elapsed time run over all sittings, and nothing is begun that the budget cannot end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tuner.errors import BadInputError, InterruptedRunError
from tuner.measure.record import Measurer, Outcome, Plan
from tuner.objective import score_measurement
from tuner.runconfig import RunConfig
from tuner.study.attempt import Attempt
from tuner.study.dominance import needs_as_much
from tuner.study.events import Note, Progress, StudyEvent, TrialFinished, TrialStarted
from tuner.study.history import MEMORY_FAILURES, History
from tuner.study.merging import merge_outcomes
from tuner.study.points import find_config
from tuner.study.ranking import list_changes
from tuner.study.record import OpenTrial, StudyRecord, score_outcome
from tuner.study.request import StudyRequest
from tuner.study.strategy import Proposal
from tuner.trial import Stage, Trial, TrialState

Extend = Callable[[RunConfig, Outcome], Plan | None]
CLOSING_S: Final = 1.5
"""Kept for ending the engine's process and telling the result, s."""
_MOST_CLOSING: Final = 0.03
"""Of a short budget at most this share is kept for that."""


class Stop(Protocol):
    """The user's wish to stop."""

    @property
    def requested(self) -> bool:
        """True once the user asked."""
        ...


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why a point is not run."""

    state: TrialState
    """invalid, does_not_fit, duplicate, or the state in which it failed before."""
    reason: str
    """In plain words."""
    known: Attempt | None = None
    """For a duplicate: the attempt that has its figures."""


class Bench:
    """Where points are tried."""

    def __init__(
        self,
        *,
        request: StudyRequest,
        record: StudyRecord,
        measurer: Measurer,
        history: History,
        emit: Callable[[StudyEvent], None],
        find_misfit: Callable[[RunConfig], str | None],
        clock: Callable[[], float],
        stop: Stop,
        began: float | None = None,
    ) -> None:
        self.request, self.record, self.history, self.emit = request, record, history, emit
        self._measurer, self._find_misfit, self._clock, self._stop = measurer, find_misfit, clock, stop
        self._started = clock() if began is None else began
        self._spent_before = record.read_elapsed()
        self._seen: set[str] = set()
        self.notes: list[str] = []
        self._stored = self._drop_lifted(record.read_attempts())
        self.measured_s = sum(a.trial.outcome.measured_s for a in self._stored if a.was_run and a.trial.outcome)

    @property
    def elapsed_s(self) -> float:
        """Wall time over all sittings, s."""
        return self._spent_before + self._clock() - self._started

    @property
    def ends_s(self) -> float:
        """When the last run is to be over, on the study's clock, s."""
        budget_s = self.request.budget_s
        return budget_s - min(CLOSING_S, _MOST_CLOSING * budget_s)

    @property
    def left_s(self) -> float:
        """What the budget leaves for runs, s."""
        return max(0.0, self.ends_s - self.elapsed_s)

    def check_stop(self) -> None:
        """Raises InterruptedRunError once the user asked to stop."""
        if self._stop.requested:
            raise self._interruption()

    def _interruption(self) -> InterruptedRunError:
        count = len(self.record.read_attempts())
        saved = "1 trial" if count == 1 else f"{count} trials"
        return InterruptedRunError(f"Stopped; {saved} of {self.record.name} saved.", f"Go on with --resume {self.record.name}.")

    def fits(self, config: RunConfig) -> bool:
        """Whether nothing is known, without running it, that keeps the point from fitting."""
        return self.history.find_larger_failure(config) is None and self._find_misfit(config) is None

    def try_point(self, proposal: Proposal, extend: Extend | None = None, *, until_s: float) -> Attempt:
        """Try a point, or take it from what an earlier sitting stored. The attempt is added to the history.

        `until_s`: on the study's clock; what `extend` asks for beyond the first plan is run only where it ends before.
        """
        attempt = self._take_stored(proposal)
        if attempt is None:
            self.check_stop()
            attempt = self._try_now(proposal, extend, until_s)
        self.history.add(attempt)
        return attempt

    def find_stored_tokens(self) -> int | None:
        """Tokens that the runs of an earlier sitting's rounds wrote; None without any. Others do not compare with them."""
        rounds = [attempt.trial.outcome for attempt in self._stored if attempt.purpose == "round"]
        found = [outcome.measurement.decode_tokens for outcome in rounds if outcome and outcome.measurement]
        return max(found, default=None)

    def run_round(self, config_values: dict[str, object], plan: Plan, *, number: int, selecting: bool) -> Attempt:
        """One run of a finalist within the confirmation; not part of the search's history."""
        config = find_config(self.request.space, config_values)
        stored = self._pop_stored(
            lambda a: a.purpose == "round" and a.trial.config == config and (a.round, a.selecting) == (number, selecting)
        )
        if stored is not None:
            return stored
        self.check_stop()
        opened = self.record.begin(config_values, purpose="round", stage="confirm")
        outcome = self._measure(opened, plan, None, self.ends_s)
        attempt = Attempt(
            trial=self._make_trial(opened, "confirm", outcome),
            values=opened.values,
            purpose="round",
            thorough=True,
            round=number,
            selecting=selecting,
        )
        self._finish(opened, attempt)
        return attempt

    def _try_now(self, proposal: Proposal, extend: Extend | None, until_s: float) -> Attempt:
        opened = self.record.begin(proposal.values, purpose=proposal.purpose, stage=proposal.stage)
        verdict = self._judge(opened.config, proposal)
        if verdict is not None:
            known = verdict.known.trial if verdict.known else None
            trial = Trial(
                number=opened.number,
                stage=proposal.stage,
                config=opened.config,
                state=verdict.state,
                reason=verdict.reason,
                outcome=msgspec.structs.replace(known.outcome, measured_s=0.0, elapsed_s=0.0)
                if known and known.outcome
                else None,
                score=known.score if known else None,
            )
        else:
            self._announce(opened, proposal.stage)
            trial = self._make_trial(opened, proposal.stage, self._measure(opened, proposal.plan, extend, until_s))
        attempt = Attempt(trial=trial, values=opened.values, purpose=proposal.purpose, thorough=proposal.thorough)
        self._finish(opened, attempt)
        return attempt

    def _judge(self, config: RunConfig, proposal: Proposal) -> Verdict | None:
        if (refusal := self.request.space.refusal(config)) is not None:
            return Verdict(state="invalid", reason=refusal)
        if (failed := self.history.find_failure(config)) is not None:
            return Verdict(
                state=failed.trial.state, reason=f"failed before, as trial {failed.trial.number}: {failed.trial.reason}"
            )
        if (larger := self.history.find_larger_failure(config)) is not None:
            return Verdict(
                state="does_not_fit",
                reason=f"needs at least as much as trial {larger.trial.number}, which did not fit: {larger.trial.reason}",
            )
        if proposal.purpose == "point" and (known := self.history.find_known(config, thorough=proposal.thorough)) is not None:
            return Verdict(state="duplicate", reason=f"the same point as trial {known.trial.number}", known=known)
        if (misfit := self._find_misfit(config)) is not None:
            return Verdict(state="does_not_fit", reason=misfit)
        return None

    def _measure(self, opened: OpenTrial, plan: Plan, extend: Extend | None, until_s: float) -> Outcome:
        outcomes: list[Outcome] = []
        wanted: Plan | None = plan
        self._note_model(opened.config.model)
        try:
            while wanted is not None:
                timed = msgspec.structs.replace(wanted, repeats_s=max(0.0, until_s - self.elapsed_s))
                outcomes.append(self._measurer.measure(opened.config, self.request.workload, timed))
                self._tell(outcomes[-1].notes)
                merged = merge_outcomes(outcomes)
                ended = merged.measurement is None or extend is None or self._stop.requested
                wanted = None if ended or extend is None else extend(opened.config, merged)
                if wanted is not None and self.elapsed_s + _expect_more(merged, wanted) > until_s:
                    wanted = None
        except InterruptedRunError as error:
            self.record.abandon(opened, reason="stopped by the user")
            raise self._interruption() from error
        except KeyboardInterrupt:
            self.record.abandon(opened, reason="stopped by the user")
            raise
        self.measured_s += merged.measured_s
        if merged.measurement is None:
            self._check_model(opened)
        return merged

    def _tell(self, notes: tuple[str, ...]) -> None:
        self.notes += notes
        for note in notes:
            self.emit(Note(text=note))

    def _note_model(self, path: str) -> None:
        if Path(path).is_file():
            self._seen.add(path)

    def _check_model(self, opened: OpenTrial) -> None:
        """A file that went away during the study is no fault of the point: the study stops, and the point may be tried again.

        Raises BadInputError.
        """
        path = opened.config.model
        if path not in self._seen or Path(path).is_file():
            return
        self.record.abandon(opened, reason="the model file went away")
        raise BadInputError(
            f"The model {path} is not there any more; what was measured is saved.",
            f"Put it back and go on with --resume {self.record.name}.",
        )

    def _make_trial(self, opened: OpenTrial, stage: Stage, outcome: Outcome) -> Trial:
        score = score_outcome(outcome, self.request)
        state: TrialState = outcome.state
        reason = outcome.reason
        if state == "complete" and score is None:
            state, reason = "crash", "the measurement came without the figure that the goal needs"
        return Trial(
            number=opened.number, stage=stage, config=opened.config, state=state, reason=reason, outcome=outcome, score=score
        )

    def _announce(self, opened: OpenTrial, stage: Stage) -> None:
        changes = list_changes(opened.config, self.history.baseline)
        self.emit(TrialStarted(number=opened.number, stage=stage, config=opened.config, changes=changes))

    def _finish(self, opened: OpenTrial, attempt: Attempt) -> None:
        self.record.finish(opened, attempt, elapsed_s=self.elapsed_s)
        self.emit(TrialFinished(trial=attempt.trial))
        self.emit(
            Progress(
                stage=attempt.trial.stage,
                done=self.history.count_run() + 1,
                elapsed_s=self.elapsed_s,
                left_s=self.left_s,
                measured_s=self.measured_s,
            )
        )

    def _drop_lifted(self, attempts: list[Attempt]) -> list[Attempt]:
        """Without refusals for memory that no longer hold: it came free since, or the user overruled the check."""
        kept: list[Attempt] = []
        for attempt in attempts:
            config, refused = attempt.trial.config, attempt.trial.state == "does_not_fit"
            larger = any(a.trial.state in MEMORY_FAILURES and needs_as_much(config, a.trial.config) for a in kept)
            if not refused or larger or self._find_misfit(config) is not None:
                kept.append(attempt)
        return kept

    def _take_stored(self, proposal: Proposal) -> Attempt | None:
        def fits(attempt: Attempt) -> bool:
            same = attempt.trial.stage == proposal.stage and attempt.purpose == proposal.purpose
            return same and attempt.thorough == proposal.thorough and (config is None or attempt.trial.config == config)

        config = None if proposal.values is None else find_config(self.request.space, proposal.values)
        return self._pop_stored(fits)

    def _pop_stored(self, fits: Callable[[Attempt], bool]) -> Attempt | None:
        for index, attempt in enumerate(self._stored):
            if fits(attempt):
                return self._stored.pop(index)
        return None

    def adopt_stored(self) -> None:
        """Points of an earlier sitting that were not asked for again are part of the history all the same."""
        points = [attempt for attempt in self._stored if attempt.purpose == "point"]
        self._stored = [attempt for attempt in self._stored if attempt.purpose != "point"]
        for attempt in points:
            self.history.add(attempt)


def _expect_more(outcome: Outcome, plan: Plan) -> float:
    """Seconds that further turns like those of `outcome` take."""
    found = outcome.measurement
    turns = len(found.samples) + len(found.discarded) if found else 0
    return plan.samples * outcome.measured_s / max(1, turns)


def rescore(trial: Trial, outcome: Outcome, request: StudyRequest) -> Trial:
    """The trial with the figures of `outcome`."""
    measurement = outcome.measurement
    score = score_measurement(measurement, request.goals, request.limits) if measurement else None
    return msgspec.structs.replace(trial, outcome=outcome, score=score)
