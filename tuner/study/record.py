"""One study in Optuna's storage: asked, told, and read back as attempts.

Everything that a resume or a report needs is in the trials' user attributes; there is no second file. What was told is
stored before the next point is asked for, so a kill loses the point in progress and nothing else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from tuner.errors import BadInputError, suggest_name
from tuner.measure.record import Outcome
from tuner.objective import LARGER_IS_BETTER, Score, score_measurement
from tuner.runconfig import RunConfig
from tuner.study.attempt import Attempt
from tuner.study.parameters import Parameters
from tuner.study.request import StudyRequest, describe_identity
from tuner.study.sampling import make_sampler, store_violations
from tuner.study.storage import UNFINISHED, guard_storage, is_owner_alive, open_storage, retry_locked
from tuner.study.strategy import list_searched
from tuner.trial import Trial

if TYPE_CHECKING:
    import optuna

T = TypeVar("T")
_MOST_NAMES: Final = 10_000
_DEADLY: Final = 2
"""A point during which the tuner itself was killed this often is not tried again."""


class OpenTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A point that was asked for and is not told yet."""

    number: int
    """Its number in the study."""
    values: dict[str, Any]
    """The searched settings as proposed."""
    config: RunConfig
    """Effective settings."""
    handle: Any
    """Optuna's trial."""


class StudyRecord:
    """The stored side of a running study. Every method raises StorageError when the storage fails."""

    def __init__(self, request: StudyRequest, study: optuna.Study) -> None:
        self._request = request
        self._study = study
        self._parameters = Parameters(request.space)
        self._defaults = request.space.values_of(request.space.baseline)
        self._base: dict[str, Any] = {}
        self._every = self._parameters.distributions()
        searched = set(list_searched(request))
        self._distributions = {name: d for name, d in self._every.items() if name in searched}

    @property
    def name(self) -> str:
        return self._study.study_name

    def set_base(self, values: Mapping[str, Any]) -> None:
        """What the sampler does not search stays at these values from now on."""
        self._base = dict(values)

    def begin(self, values: Mapping[str, Any] | None, *, purpose: str, stage: str) -> OpenTrial:
        """Ask Optuna for a trial at `values`, or where its sampler wants one."""
        return self._call(lambda: self._ask(values, purpose, stage))

    def _ask(self, values: Mapping[str, Any] | None, purpose: str, stage: str) -> OpenTrial:
        distributions = self._distributions
        if values is not None:
            params = self._parameters.encode(values)
            moved = {name for name, value in values.items() if value != self._defaults[name]}
            distributions = {name: d for name, d in self._every.items() if name in self._distributions or name in moved}
            self._study.enqueue_trial({name: params[name] for name in distributions}, user_attrs={"purpose": purpose})
        handle = self._study.ask(distributions)
        handle.set_user_attr("stage", stage)
        decoded = self._parameters.decode(handle.params)
        if values is None and self._base:
            decoded = self._parameters.decode({**self._parameters.encode(self._base), **handle.params})
            handle.set_user_attr("values", self._parameters.encode(decoded))
        config = self._request.space.effective(self._request.space.from_values(decoded))
        handle.set_user_attr("config", config.as_dict())
        return OpenTrial(number=handle.number, values=decoded, config=config, handle=handle)

    def finish(self, opened: OpenTrial, attempt: Attempt, *, elapsed_s: float) -> None:
        """Tell Optuna how it ended. `elapsed_s` is the study's clock, over all sittings."""
        self._call(lambda: self._tell(opened, attempt, elapsed_s))

    def _tell(self, opened: OpenTrial, attempt: Attempt, elapsed_s: float) -> None:
        from optuna.trial import TrialState

        trial = attempt.trial
        facts: dict[str, Any] = {
            "purpose": attempt.purpose,
            "thorough": attempt.thorough,
            "elapsed_s": round(elapsed_s, 3),
            "reason": trial.reason,
        }
        if attempt.round:
            facts |= {"round": attempt.round, "selecting": attempt.selecting}
        if trial.outcome is not None:
            facts["outcome"] = msgspec.json.encode(trial.outcome).decode()
            facts["log_tail"] = "\n".join(trial.outcome.log_tail)
        for name, value in facts.items():
            if value != "" and value is not False:
                opened.handle.set_user_attr(name, value)
        opened.handle.set_user_attr("state", trial.state)
        if trial.score is None or trial.state not in {"complete", "duplicate", "noisy"}:
            self._study.tell(opened.handle, state=TrialState.FAIL)
            return
        store_violations(opened.handle, self._request.limits, trial.score.violations)
        if not self._is_told(opened.number):
            self._study.tell(opened.handle, list(trial.score.values))

    def _is_told(self, number: int) -> bool:
        """A write that was retried may have gone through the first time."""
        trials = self._study.get_trials(deepcopy=False)
        return number < len(trials) and trials[number].state.is_finished()

    def abandon(self, opened: OpenTrial, *, reason: str) -> None:
        """The user stopped the run within this point; it may be tried again."""
        from optuna.trial import TrialState

        def tell() -> None:
            opened.handle.set_user_attr("state", "interrupted")
            opened.handle.set_user_attr("reason", reason)
            self._study.tell(opened.handle, state=TrialState.FAIL, skip_if_finished=True)

        self._call(tell)

    def read_attempts(self) -> list[Attempt]:
        """What is stored, in order; interrupted points are left out."""
        trials = self._call(lambda: self._study.get_trials(deepcopy=False))
        return [attempt for stored in trials if (attempt := self._read(stored))]

    def read_elapsed(self) -> float:
        """Wall time of earlier sittings, s."""
        trials = self._call(lambda: self._study.get_trials(deepcopy=False))
        return max((float(stored.user_attrs.get("elapsed_s", 0.0)) for stored in trials), default=0.0)

    def _read(self, stored: Any) -> Attempt | None:
        attrs = stored.user_attrs
        if attrs.get("state") in UNFINISHED:
            return None
        outcome = msgspec.json.decode(attrs["outcome"], type=Outcome) if "outcome" in attrs else None
        trial = Trial(
            number=stored.number,
            stage=attrs["stage"],
            config=msgspec.convert(attrs["config"], RunConfig),
            state=attrs["state"],
            reason=attrs.get("reason", ""),
            outcome=outcome,
            score=score_outcome(outcome, self._request),
        )
        return Attempt(
            trial=trial,
            values=self._parameters.decode(attrs.get("values", stored.params)),
            purpose=attrs.get("purpose", "point"),
            thorough=attrs.get("thorough", False),
            round=attrs.get("round", 0),
            selecting=attrs.get("selecting", False),
        )

    def save_result(self, summary: dict[str, Any]) -> None:
        """Keep the verdict where `studies` and a dashboard see it."""
        self._call(lambda: self._study.set_user_attr("result", summary))

    def claim(self) -> None:
        """Say that this process runs the study. Raises BadInputError where another one does."""
        import platform

        import psutil

        owner = self._call(lambda: self._study.user_attrs.get("owner"))
        if owner and owner.get("pid") != os.getpid() and is_owner_alive(owner):
            raise BadInputError(f"The study {self.name} is run by process {owner['pid']}.", "Wait for it, or stop it first.")
        mine = {"host": platform.node(), "pid": os.getpid(), "started": psutil.Process().create_time()}
        self._call(lambda: self._study.set_user_attr("owner", mine))

    def release(self) -> None:
        """The study is nobody's again."""
        self._call(lambda: self._study.set_user_attr("owner", None))

    def fail_stale(self) -> None:
        """Close what a killed process left open. Its point may be tried again, unless it was deadly before."""
        self._call(self._fail_stale)

    def _fail_stale(self) -> None:
        from optuna.trial import TrialState

        trials = self._study.get_trials(deepcopy=False)
        deaths = Counter(_point_of(trial) for trial in trials if trial.user_attrs.get("killed"))
        for trial in trials:
            if trial.state not in {TrialState.RUNNING, TrialState.WAITING}:
                continue
            self._close_stale(trial, is_deadly=deaths[_point_of(trial)] + 1 >= _DEADLY and "config" in trial.user_attrs)

    def _close_stale(self, trial: Any, *, is_deadly: bool) -> None:
        from optuna.trial import TrialState

        storage, number = self._study._storage, trial._trial_id  # noqa: SLF001  # a trial of a dead process has no public handle
        if trial.state == TrialState.WAITING:
            storage.set_trial_state_values(number, TrialState.FAIL)
            return
        reason = "rooftune was killed while this point was measured" + (", twice" if is_deadly else "")
        storage.set_trial_user_attr(number, "killed", True)
        storage.set_trial_user_attr(number, "reason", reason)
        storage.set_trial_user_attr(number, "state", "crash" if is_deadly else "interrupted")
        storage.set_trial_state_values(number, TrialState.FAIL)

    def _call(self, action: Callable[[], T]) -> T:
        with guard_storage(self._request.storage):
            return action()


def score_outcome(outcome: Outcome | None, request: StudyRequest) -> Score | None:
    """The score of an outcome that has figures, those of a noisy machine included; None for every other."""
    if outcome is None or outcome.state not in {"complete", "noisy"} or outcome.measurement is None:
        return None
    return score_measurement(outcome.measurement, request.goals, request.limits)


def open_record(request: StudyRequest) -> StudyRecord:
    """A new study, or the one to go on with. Raises StorageError, UsageError for a URL that is none, or BadInputError."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(request.storage)
    with guard_storage(request.storage):
        study = _resume(request, storage) if request.resume else _create(request, storage)
    record = StudyRecord(request, study)
    record.claim()
    record.fail_stale()
    return record


def _create(request: StudyRequest, storage: Any) -> optuna.Study:
    import optuna

    directions: list[Literal["minimize", "maximize"]] = [
        "maximize" if goal in LARGER_IS_BETTER else "minimize" for goal in request.goals
    ]
    names = [request.study_name] if request.study_name else [f"{request.title}-{n}" for n in range(1, _MOST_NAMES)]
    taken = set(retry_locked(lambda: optuna.get_all_study_names(storage)))
    for name in names:
        if name in taken:
            continue
        try:
            sampler = make_sampler(request, attempts=0)
            study = optuna.create_study(storage=storage, study_name=name, directions=directions, sampler=sampler)
        except optuna.exceptions.DuplicatedStudyError:
            continue
        study.set_user_attr("rooftune", describe_identity(request))
        study.set_user_attr("title", request.title)
        study.set_user_attr("origin", request.origin)
        return study
    raise BadInputError(
        f"There is a study {names[0]} already.", f"Go on with --resume {names[0]}, or give another --study name."
    )


def _resume(request: StudyRequest, storage: Any) -> optuna.Study:
    import optuna

    known = optuna.get_all_study_names(storage)
    if request.study_name not in known:
        hint = suggest_name(request.study_name, sorted(known), most=5)
        raise BadInputError(f"There is no study {request.study_name!r}.", hint)
    study = optuna.load_study(storage=storage, study_name=request.study_name)
    stored = study.user_attrs.get("rooftune")
    if stored is None:
        raise BadInputError(f"The study {request.study_name} was not made by rooftune.", "Give another name.")
    _check_identity(request, stored)
    study.sampler = make_sampler(request, attempts=len(study.get_trials(deepcopy=False)))
    return study


def _check_identity(request: StudyRequest, stored: dict[str, str]) -> None:
    current = describe_identity(request)
    different = [name for name, value in current.items() if stored.get(name) != value]
    if not different:
        return
    told = "; ".join(f"{name} was {stored.get(name) or 'none'} and is {current[name] or 'none'}" for name in different)
    raise BadInputError(
        f"The study {request.study_name} cannot go on, because not all is as it was: {told}.",
        "Start a new study, or give the same as before.",
    )


def _point_of(trial: Any) -> bytes:
    return msgspec.json.encode(trial.user_attrs.get("config"), order="deterministic")
