"""The study from start to end: baseline, search, confirmation. Points come from a strategy, figures from a measurer, and every
attempt is stored before the next one starts.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tuner.errors import InterruptedRunError, NothingFeasibleError
from tuner.measure.record import Measurer, Outcome, Plan
from tuner.objective import metric_of
from tuner.runconfig import RunConfig
from tuner.space import list_dimensions
from tuner.study.attempt import Attempt
from tuner.study.bench import Bench, Stop
from tuner.study.confirm import Confirmation, Confirmed, Finalist, expect_rounds
from tuner.study.events import BestChanged, Note, StageStarted, StudyEvent, StudyFinished
from tuner.study.history import History
from tuner.study.pace import Division, Pace, divide_budget, end_search
from tuner.study.physics import PhysicsStrategy
from tuner.study.points import find_config
from tuner.study.ranking import count_changes, find_front
from tuner.study.record import StudyRecord, open_record
from tuner.study.request import StudyRequest
from tuner.study.result import StudyResult
from tuner.study.sampled import SampledStrategy
from tuner.study.shrinking import list_smaller
from tuner.study.strategy import Proposal, Strategy, plan_full, plan_round
from tuner.trial import Stage, Trial
from tuner.units import format_bytes, format_count, format_duration, format_ms, format_rate

MOST_FAILURES: Final = 5
"""Failed runs in a row after which the search ends."""
MOST_FINALISTS: Final = 3
_OUT_OF_TIME: Final = "budget used"
_BASELINE_SAMPLES: Final = 3
_BASELINE_SHARE: Final = 0.25
"""Part of the budget within which the default is run more than once before the search."""
_FINALIST_SHARE: Final = 0.05
"""Finalists are at most this much worse than the best of the search."""
_EQUAL: Final = 0.02
"""Points of the search nearer than this to its best are told apart by how simple they are."""
_WORTH_PROVING: Final = 0.01
"""A smaller gain than this leaves the search the time that it has."""
_MEMORY: Final = frozenset({"does_not_fit", "out_of_memory"})


def run_study(
    request: StudyRequest,
    measurer: Measurer,
    *,
    emit: Callable[[StudyEvent], None],
    find_misfit: Callable[[RunConfig], str | None],
    clock: Callable[[], float],
    stop: Stop,
    began: float | None = None,
) -> StudyResult:
    """Tune. `find_misfit` says why a point does not fit before it is run; `clock` gives seconds that never go back, and
    `began` is when on it the budget began to run (None: now).

    Raises StorageError, BadInputError or UsageError for a storage or name that cannot be used, NothingFeasibleError when
    there is no answer, InterruptedRunError when the user stopped; what was measured is stored in every case.
    """
    record = open_record(request)
    history = History(request.goals, find_config(request.space, {}))
    bench = Bench(
        request=request,
        record=record,
        measurer=measurer,
        history=history,
        emit=emit,
        find_misfit=find_misfit,
        clock=clock,
        stop=stop,
        began=began,
    )
    try:
        result = _Study(request, record, bench).run()
    except (NothingFeasibleError, InterruptedRunError, KeyboardInterrupt):
        record.release()
        raise
    record.save_result(_summarise(result))
    record.release()
    emit(StudyFinished(result=result))
    return result


class _Study:
    """The stages of one study."""

    def __init__(self, request: StudyRequest, record: StudyRecord, bench: Bench) -> None:
        self._request, self._record, self._bench, self._history = request, record, bench, bench.history
        self._best: Trial | None = None
        self._notes: list[str] = []
        self._stage: Stage = "baseline"
        self._put_off: Proposal | None = None
        """What there was no time for when the search ended."""
        self._loads = frozenset(each.name for each in list_dimensions() if each.cost in {"model", "process"})
        """Settings of which a change loads the model anew."""

    def run(self) -> StudyResult:
        self._bench.emit(StageStarted(stage="baseline", title="The default configuration"))
        baseline = self._find_baseline()
        self._see_best(baseline)
        pace, division = self._divide_budget(baseline)
        strategy = self._make_strategy()
        began_s = self._bench.elapsed_s
        stop_reason = self._search(strategy, pace, lambda: self._end_search(baseline, pace, division, began_s))
        self._bench.adopt_stored()
        if stop_reason == _OUT_OF_TIME and not self._find_finalists(baseline):
            stop_reason = self._search(strategy, pace, lambda: self._bench.ends_s - 2 * pace.expect(division.round_plan))
        self._check_feasible()
        finalists = self._find_finalists(baseline)
        title = "The finalists and the default in turn" if finalists else "The default once more; nothing looked better"
        self._bench.emit(StageStarted(stage="confirm", title=title))
        default = Finalist(trial=baseline.trial, values=baseline.values)
        confirmed = Confirmation(self._bench, default, finalists, pace=pace, division=division).confirm()
        return self._make_result(confirmed, stop_reason)

    def _find_baseline(self) -> Attempt:
        """The default configuration; where memory is too small for it, once more with less."""
        request, space = self._request, self._request.space
        default = self._try_baseline(space.values_of(space.baseline))
        if default.trial.score is not None:
            return default
        if default.trial.state in _MEMORY:
            for values in list_smaller(space, request.workload, self._bench.fits):
                self._note(f"The default configuration does not fit ({default.trial.reason}); a smaller one takes its place.")
                retry = self._try_baseline(values)
                if retry.trial.score is not None:
                    self._history.baseline = retry.trial.config
                    self._record.set_base(retry.values)
                    return retry
                break
        trial = default.trial
        raise NothingFeasibleError(
            f"The default configuration does not run ({trial.state.replace('_', ' ')}): {trial.reason or 'no reason given'}.",
            "Change it with --set, or give a smaller model or workload.",
        )

    def _try_baseline(self, values: dict[str, Any]) -> Attempt:
        """One turn of full length, and as many more as a small part of the budget allows."""
        plan = plan_full(self._request, samples=1)
        proposal = Proposal(values=values, plan=plan, stage="baseline", thorough=True)
        until_s = _BASELINE_SHARE * self._request.budget_s
        return self._bench.try_point(proposal, self._extend_baseline, until_s=until_s)

    def _extend_baseline(self, _config: RunConfig, outcome: Outcome) -> Plan | None:
        taken = len(outcome.measurement.samples) if outcome.measurement else _BASELINE_SAMPLES
        return plan_full(self._request, samples=1) if taken < _BASELINE_SAMPLES else None

    def _divide_budget(self, baseline: Attempt) -> tuple[Pace, Division]:
        """How long runs take here, and what that leaves the search after the rounds of a proof."""
        pace = Pace.of(baseline.trial.outcome) if baseline.trial.outcome else None
        assert pace is not None, "a baseline with a score has figures"
        space = self._request.space
        division = divide_budget(
            self._request,
            pace,
            ends_s=self._bench.ends_s,
            elapsed_s=self._bench.elapsed_s,
            loads=any(len(domain.values) > 1 for name, domain in space.domains.items() if name in self._loads),
            tokens=self._bench.find_stored_tokens(),
        )
        self._tell_division(division)
        return pace, division

    def _tell_division(self, division: Division) -> None:
        full = plan_round(self._request)
        if self._request.goals[0] == "context":
            return
        if division.missing_s > 0:
            needed = format_duration(self._request.budget_s + division.missing_s)
            self._note(f"this budget is too short to prove a gain, which takes {needed} at least and better twice that")
        elif division.round_plan.decode_tokens < full.decode_tokens:
            wrote = f"{division.round_plan.decode_tokens} of {full.decode_tokens} tokens"
            self._note(f"the budget is short, so the rounds that prove a gain write {wrote} each")

    def _make_strategy(self) -> Strategy:
        if self._request.strategy == "physics":
            return PhysicsStrategy(self._request, note=self._note)
        return SampledStrategy(self._request)

    def _end_search(self, baseline: Attempt, pace: Pace, division: Division, began_s: float) -> float:
        """When the search is to end, on the study's clock, s: earlier where the gain in hand takes more rounds to prove."""
        default = self._history.cost(baseline.trial)
        best = self._history.cost(self._best) if self._best else None
        is_in_hand = default is not None and best is not None and best.beats(default, margin=_WORTH_PROVING)
        if not self._best or not is_in_hand or self._request.goals[0] == "context" or len(self._request.goals) > 1:
            return division.search_ends_s
        rounds = expect_rounds(self._history, baseline.trial, self._best)
        return end_search(pace, division, rounds=rounds, ends_s=self._bench.ends_s, began_s=began_s)

    def _search(self, strategy: Strategy, pace: Pace, find_end: Callable[[], float]) -> str:
        """Try what the strategy proposes; why it ended, in plain words. Called again, it goes on."""
        while True:
            ends_s = find_end()
            self._history.spent_share = self._bench.elapsed_s / max(1e-9, ends_s)
            if (reason := self._find_stop_reason()) is not None:
                return reason
            proposal = self._put_off or strategy.propose(self._history)
            if proposal is None:
                return strategy.stop_reason
            if self._bench.elapsed_s + pace.expect(proposal.plan, loads=self._has_to_load(proposal)) > ends_s:
                self._put_off = proposal
                return _OUT_OF_TIME
            self._put_off = None
            if proposal.stage != self._stage:
                stage = self._stage = proposal.stage
                title = "Short runs, one group of settings after another" if stage == "screen" else "Full-length runs"
                self._bench.emit(StageStarted(stage=stage, title=title))
            extend = functools.partial(strategy.extend, self._history, proposal)
            self._see_best(self._bench.try_point(proposal, extend, until_s=ends_s))

    def _has_to_load(self, proposal: Proposal) -> bool:
        """Whether the model in memory is not as the point needs it; where Optuna chooses the point, it may not be."""
        last, values, loads = self._history.last, proposal.values, self._loads & set(self._request.space.domains)
        if values is None or last is None:
            return bool(loads)
        return any(values[name] != last.values.get(name) for name in loads)

    def _find_stop_reason(self) -> str | None:
        if self._history.count_last_failures() >= MOST_FAILURES:
            last = next(a.trial for a in reversed(self._history.attempts) if a.was_run)
            self._note(f"{MOST_FAILURES} runs in a row failed, the last one because: {last.reason or last.state}.")
            return f"{MOST_FAILURES} runs in a row failed"
        if self._request.trials is not None and self._history.count_run() >= self._request.trials:
            return f"all {self._request.trials} trials used"
        return _OUT_OF_TIME if self._history.spent_share >= 1.0 else None

    def _see_best(self, attempt: Attempt) -> None:
        """Tell when a point beats all before; unconfirmed."""
        cost = self._history.cost(attempt.trial)
        if cost is None or attempt.purpose != "point" or not self._is_allowed(attempt.trial.config):
            return
        best = self._history.cost(self._best) if self._best else None
        if best is not None and not cost.beats(best):
            return
        self._best = attempt.trial
        default = next((self._history.cost(t) for t in self._history.figures() if t.config == self._history.baseline), None)
        self._bench.emit(BestChanged(trial=attempt.trial, ratio=default.value / cost.value if default else None))

    def _is_allowed(self, config: RunConfig) -> bool:
        """A less precise file wins only where the user lets it."""
        return self._request.allow_quality_loss or config.model == self._history.baseline.model

    def _check_feasible(self) -> None:
        """Raises NothingFeasibleError where every figure breaks a limit, naming the closest."""
        ranked = self._history.rank(t for t in self._history.figures() if self._is_allowed(t.config))
        if ranked and ranked[0].score and not ranked[0].score.is_feasible:
            raise NothingFeasibleError(
                f"No configuration keeps the limits; {self._describe_miss(ranked[0])}.",
                "Loosen the limit, or give a smaller model or workload.",
            )

    def _describe_miss(self, trial: Trial) -> str:
        """The limit that a trial misses most, and what it reaches."""
        violations = trial.score.violations if trial.score else ()
        _, limit = max(zip(violations, self._request.limits, strict=True), key=operator.itemgetter(0))
        measurement = trial.outcome.measurement if trial.outcome else None
        reached = metric_of(measurement, limit.metric) if measurement else None
        formats = {"memory": format_bytes, "throughput": format_rate, "ctx_size": format_count}
        shown = formats.get(limit.metric, format_ms)(reached)
        return f"trial {trial.number} comes closest and has {shown} where {limit.text} is asked"

    def _find_finalists(self, baseline: Attempt) -> list[Finalist]:
        """The best of the search that beat the default, near the top."""
        allowed = [t for t in self._history.figures() if self._is_allowed(t.config)]
        default = self._history.cost(baseline.trial)
        ranked = [
            trial
            for trial in self._history.rank(allowed)
            if trial.config != baseline.trial.config
            and default is not None
            and (cost := self._history.cost(trial)) is not None
            and cost.beats(default)
        ]
        best = self._history.cost(ranked[0]) if ranked else None
        near = [
            trial
            for trial in ranked
            if best is not None and (cost := self._history.cost(trial)) is not None and cost.is_within(best, _FINALIST_SHARE)
        ]
        values = {a.trial.number: a.values for a in self._history.attempts}
        return [Finalist(trial=trial, values=values[trial.number]) for trial in self._prefer_simple(near)]

    def _prefer_simple(self, ranked: list[Trial]) -> list[Trial]:
        """The best few, and among them the simplest of those that the search cannot tell from the best."""
        best = self._history.cost(ranked[0]) if ranked else None
        equals = [t for t in ranked if best and (cost := self._history.cost(t)) and cost.is_within(best, _EQUAL)]
        simplest = min(equals, key=lambda t: count_changes(t.config, self._history.baseline), default=None)
        chosen = ranked[:MOST_FINALISTS]
        return chosen if simplest is None or simplest in chosen else [*chosen[: MOST_FINALISTS - 1], simplest]

    def _make_result(self, confirmed: Confirmed, stop_reason: str) -> StudyResult:
        attempts = self._history.attempts
        return StudyResult(
            baseline=confirmed.baseline,
            best=confirmed.best,
            gain=confirmed.gain,
            finalists=confirmed.finalists,
            pareto=self._find_pareto(),
            per_model=self._list_models(confirmed.best),
            trials=tuple(a.trial for a in attempts if a.purpose == "point"),
            rounds=(*(a.trial for a in attempts if a.purpose == "repeat"), *confirmed.rounds),
            notes=tuple(dict.fromkeys((*self._notes, *self._bench.notes))),
            elapsed_s=self._bench.elapsed_s,
            measured_s=self._bench.measured_s,
            stop_reason=stop_reason,
            study_name=self._record.name,
            storage=self._request.storage,
        )

    def _find_pareto(self) -> tuple[Trial, ...]:
        if len(self._request.goals) < 2:
            return ()
        trials = [t for t in self._history.figures(thorough=True) if self._is_allowed(t.config) and t.score]
        chosen = find_front([t.score for t in trials if t.score], self._request.goals)
        return tuple(trials[index] for index in chosen)

    def _list_models(self, best: Trial) -> tuple[Trial, ...]:
        domain = self._request.space.domains.get("model")
        if domain is None or len(domain.values) < 2:
            return ()
        ranked = self._history.rank(self._history.figures())
        found = (next((t for t in ranked if t.config.model == model), None) for model in domain.values)
        return tuple(best if t.config.model == best.config.model else t for t in found if t is not None)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._bench.emit(Note(text=text))


def _summarise(result: StudyResult) -> dict[str, Any]:
    return {
        "best": result.best.config.as_dict(),
        "number": result.best.number,
        "ratio": result.gain.ratio,
        "low": result.gain.low,
        "significant": result.gain.significant,
        "stop_reason": result.stop_reason,
        "states": dict(Counter(trial.state for trial in result.trials)),
        "elapsed_s": round(result.elapsed_s, 3),
        "measured_s": round(result.measured_s, 3),
        "notes": list(result.notes),
        "gain": msgspec.to_builtins(result.gain) if result.gain.rounds != 1 else None,
    }
