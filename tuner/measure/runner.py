"""Measures points in a child process: the `Measurer` that a study uses.

Promises: whatever the engine does (refuse, abort, hang, take all memory, write rubbish) is an `Outcome` with a reason in plain
words, within the time limit and a second; the next point gets a working child. Only a user's stop is raised.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from tuner.engines import find_engine
from tuner.engines.base import EngineError, Prepared, PrepareRequest, RuntimeFacts, Turn, TurnRequest
from tuner.errors import BadInputError, InterruptedRunError
from tuner.measure import protocol
from tuner.measure.activity import Activity, Snapshot, compare_snapshots, read_affinity, take_snapshot
from tuner.measure.child import Child, ChildEndedError
from tuner.measure.ending import explain_ending
from tuner.measure.figures import (
    Gathered,
    decode_threads,
    form_measurement,
    form_sample,
    prefill_threads,
    timed_seconds,
)
from tuner.measure.record import Measurement, Outcome, OutcomeState, Plan, Sample
from tuner.measure.recovery import Recovery, lower_ceiling, read_free
from tuner.measure.stop import Stop
from tuner.measure.validity import ANYTHING, STRICT, Effort, Tolerance, find_slow_start, judge_sample
from tuner.runconfig import RunConfig
from tuner.workload import Workload

TIME_LIMIT_S: Final = 120.0
"""Generous: a turn that takes longer is of no use to anybody who waits for it."""

SLOWEST_DISK: Final = 50e6
"""Bytes per second that a model file is granted to load at, on top of the time limit."""

_SIMULATED: Final = "simulated"
_STATE_OF_KIND: Final[dict[str, OutcomeState]] = {
    "invalid": "invalid",
    "unreadable": "invalid",
    "out_of_memory": "out_of_memory",
}
_GOES_ON: Final = frozenset({"invalid", "unreadable"})
"""Refusals after which the same child can be asked for another point."""


class ChildMeasurer:
    """Starts the child when first asked, keeps it while it behaves, and starts another when it does not."""

    def __init__(
        self,
        engine_name: str,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        memory_ceiling_bytes: int | None = None,
        environ: Mapping[str, str] | None = None,
        rpc_servers: tuple[str, ...] = (),
        usable_cores: float | None = None,
        tolerance: Tolerance = STRICT,
        stop: Stop | None = None,
        clock: Callable[[], float] = time.monotonic,
        root: Path = Path("/"),
        recovery: Recovery | None = None,
    ) -> None:
        """Raises UsageError for an unknown engine; "package.module:Class" names one outside rooftune.

        `environ`: what the child's environment has beside, or in place of, ours.
        `time_limit_s` holds for each turn, and for preparing beside the time that loading the file may take.

        `memory_ceiling_bytes`: what the child may hold beside file pages; None leaves it unwatched. `usable_cores`: by quota
        and affinity; None takes the affinity. `root`: where /proc and /sys are. `recovery`: looks whether memory is back before
        a child starts; None reads this machine's.
        """
        if ":" not in engine_name:
            find_engine(engine_name)
        self._engine_name = engine_name
        self._limit_s = time_limit_s
        self._ceiling = memory_ceiling_bytes
        self._environ = environ
        self._rpc_servers = rpc_servers
        self._cores = float(usable_cores or len(read_affinity()) or os.cpu_count() or 1)
        self._tolerance = tolerance
        self._stop = stop or Stop()
        self._clock = clock
        self._root = root
        self._recovery = recovery or Recovery(lambda: read_free(root=root, environ={**os.environ, **(environ or {})}))
        self._notes: list[str] = []
        self._child: Child | None = None
        self._runtime: RuntimeFacts | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def child_pid(self) -> int | None:
        """Process number of the living child; None without one."""
        return self._child.pid if self._child is not None and self._child.is_alive() else None

    def describe_runtime(self) -> RuntimeFacts:
        """Which program measures. Raises BadInputError where it cannot be started."""
        if self._runtime is None:
            answer = self._ask_or_raise(protocol.Describe(), what=f"The engine {self._engine_name!r} cannot be used")
            assert isinstance(answer, protocol.Described)
            self._runtime = answer.facts
        return self._runtime

    def measure(self, config: RunConfig, workload: Workload, plan: Plan) -> Outcome:
        """Try one point. Never raises for what llama.cpp does; raises InterruptedRunError after a stop."""
        began = self._clock()
        if self._child is not None:
            self._child.forget_log()
        gathered = Gathered()
        try:
            outcome = self._measure(config, workload, plan, gathered, began)
        except EngineError as refusal:
            outcome = self._settle_refusal(refusal)
        except ChildEndedError as end:
            self._child = None
            state, reason = explain_ending(end.ending)
            outcome = Outcome(state=state, reason=reason, log_tail=end.ending.log_tail)
        notes, self._notes = tuple(self._notes), []
        elapsed_s = max(0.0, self._clock() - began)
        return msgspec.structs.replace(outcome, notes=notes, measured_s=gathered.measured_s, elapsed_s=elapsed_s)

    def project_memory(self, config: RunConfig, *, front_end: str) -> dict[str, int] | None:
        """llama.cpp's own projection by cause and device, bytes; None when it cannot say (or the attempt killed the child)."""
        try:
            answer = self._ask(protocol.ProjectMemory(config=config, front_end=front_end), self._load_limit(config))
        except ChildEndedError:
            self._child = None
            return None
        except EngineError:
            return None
        assert isinstance(answer, protocol.Projected)
        return answer.buffers or None

    def run_task(self, name: str, arguments: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
        """A side job of the engine, such as quantising a file. Raises BadInputError with the reason where it fails."""
        answer = self._ask_or_raise(
            protocol.RunTask(name=name, arguments=arguments), what=f"The task {name!r} failed", limit_s=limit_s
        )
        assert isinstance(answer, protocol.DidTask)
        return answer.result

    def close(self) -> None:
        """End the child and everything it started; a later request starts another."""
        if self._child is None:
            return
        child, self._child = self._child, None
        if child.is_alive() and not self._stop.immediate:
            try:
                child.ask(protocol.Close(), limit_s=2.0)
            except ChildEndedError:
                return
        child.end(patiently=True)

    def _measure(self, config: RunConfig, workload: Workload, plan: Plan, gathered: Gathered, began: float) -> Outcome:
        prepared = self._prepare_point(config, workload, plan)
        runtime = self._describe_in_child()
        self._gather(config, plan, prepared, gathered, began)
        measurement = form_measurement(gathered, prepared, plan, config=config, workload=workload, runtime=runtime)
        return self._conclude(measurement, plan, gathered)

    def _conclude(self, measurement: Measurement | None, plan: Plan, gathered: Gathered) -> Outcome:
        if len(gathered.kept) >= plan.samples:
            return Outcome(state="complete", measurement=measurement)
        reason = _describe_noise(gathered, plan)
        if measurement is not None:
            measurement = msgspec.structs.replace(measurement, notes=(*measurement.notes, f"noisy: {reason}"))
        tail = self._child.log_tail if self._child is not None else ()
        return Outcome(state="noisy", reason=reason, measurement=measurement, log_tail=tail)

    def _prepare_point(self, config: RunConfig, workload: Workload, plan: Plan) -> Prepared:
        """Asked once more, of a new child, where the first refusal or death may not be the point's own doing: needs_process
        means just that, and a child that served other points before gets the blame only if a new one crashes too.
        """
        request = PrepareRequest(
            config=config,
            workload=workload,
            prefill=plan.prefill,
            decode=plan.decode_tokens > 0,
            fresh=plan.fresh,
            rpc_servers=self._rpc_servers,
        )
        served_before = self.child_pid is not None
        try:
            return self._ask_prepared(request)
        except ChildEndedError as end:
            self._child = None
            crashed = end.ending.cause == "exited" and explain_ending(end.ending)[0] == "crash"
            if not (served_before and crashed):
                raise
        except EngineError as refusal:
            if refusal.kind != "needs_process":
                raise
            self._end_child()
        return self._ask_prepared(request)

    def _ask_prepared(self, request: PrepareRequest) -> Prepared:
        answer = self._ask(protocol.Prepare(request=request), self._load_limit(request.config))
        assert isinstance(answer, protocol.IsPrepared)
        return answer.prepared

    def _describe_in_child(self) -> RuntimeFacts:
        if self._runtime is None:
            answer = self._ask(protocol.Describe(), self._limit_s)
            assert isinstance(answer, protocol.Described)
            self._runtime = answer.facts
        return self._runtime

    def _gather(self, config: RunConfig, plan: Plan, prepared: Prepared, gathered: Gathered, began: float) -> None:
        """Samples until enough count, or too many did not, or there is no time to repeat one."""
        on_cpu = all("CPU" in name for name in prepared.buffers)
        request = TurnRequest(prefill=plan.prefill, decode_tokens=plan.decode_tokens)
        turn_s = 0.0
        while len(gathered.kept) < plan.samples and len(gathered.discarded) <= plan.most_repeats:
            started = self._clock()
            if gathered.discarded and plan.repeats_s is not None and started + turn_s > began + plan.repeats_s:
                return
            turn, activity = self._run_turn(request)
            gathered.measured_s += timed_seconds(turn)
            turn_s = self._clock() - started
            self._sort_in(turn, activity, config, gathered, on_cpu=on_cpu)
            if len(gathered.kept) >= plan.samples:
                _set_slow_start_apart(gathered)

    def _sort_in(self, turn: Turn, activity: Activity, config: RunConfig, gathered: Gathered, *, on_cpu: bool) -> None:
        if turn.decode_ms is not None:
            fewest = gathered.fewest_steps
            gathered.fewest_steps = turn.decode_steps if fewest is None else min(fewest, turn.decode_steps)
        sample = form_sample(turn, config, others_cores=activity.others_cores)
        efforts = [
            Effort(threads=prefill_threads(config), share=sample.prefill_cpu_share, on_cpu=on_cpu),
            Effort(threads=decode_threads(config), share=sample.decode_cpu_share, on_cpu=on_cpu),
        ]
        wanted = [e for e, ms in zip(efforts, (turn.ttft_ms, turn.decode_ms), strict=True) if ms is not None]
        reason = judge_sample(wanted, activity, usable_cores=self._cores, tolerance=self._current_tolerance())
        if turn.cached_tokens:
            reason = f"warm: {turn.cached_tokens} prompt tokens came from a cache"
        if reason:
            gathered.discarded.append(msgspec.structs.replace(sample, disturbed=reason))
        else:
            gathered.kept.append(sample)

    def _current_tolerance(self) -> Tolerance:
        """A simulated engine is not disturbed by the machine it does not use."""
        simulated = self._runtime is not None and self._runtime.engine == _SIMULATED
        return ANYTHING if simulated else self._tolerance

    def _run_turn(self, request: TurnRequest) -> tuple[Turn, Activity]:
        self._raise_if_stopped()
        before = self._snapshot()
        answer = self._ask(protocol.RunTurn(request=request), self._limit_s)
        assert isinstance(answer, protocol.DidTurn)
        activity = compare_snapshots(before, self._snapshot())
        if any(_is_local(server) for server in self._rpc_servers):
            activity = msgspec.structs.replace(activity, others_cores=None)  # the server on this machine works for us
        return answer.turn, activity

    def _snapshot(self) -> Snapshot:
        own = self._child.cpu_seconds() if self._child is not None else None
        return take_snapshot(own_s=own, root=self._root, clock=self._clock)

    def _ask(self, body: protocol.RequestBody, limit_s: float) -> protocol.AnswerBody:
        """Raises EngineError, ChildEndedError, InterruptedRunError. A child whose engine failed is not used again."""
        self._raise_if_stopped()
        if self._child is not None and not self._child.is_alive():
            self._end_child()
        if self._child is None:
            self._child = self._start_child()
        try:
            answer = self._child.ask(body, limit_s=limit_s)
        except ChildEndedError as end:
            if end.ending.cause == "stopped":
                self._child = None
                raise _interruption() from None
            raise
        if isinstance(answer, protocol.Refused):
            raise EngineError(answer.kind, answer.message)
        if isinstance(answer, protocol.Fault):
            kind = "out_of_memory" if answer.kind == "MemoryError" else "failed"
            raise EngineError(kind, f"the engine failed: {answer.kind}: {answer.message}".rstrip(": "))
        return answer

    def _ask_or_raise(self, body: protocol.RequestBody, *, what: str, limit_s: float | None = None) -> protocol.AnswerBody:
        try:
            return self._ask(body, limit_s or self._limit_s)
        except EngineError as refusal:
            raise BadInputError(f"{what}: {refusal.message}.", "") from refusal
        except ChildEndedError as end:
            self._child = None
            raise BadInputError(f"{what}: {explain_ending(end.ending)[1]}.", "") from end

    def _settle_refusal(self, refusal: EngineError) -> Outcome:
        """After a mere refusal the child goes on; after a failure, or to give memory back, it does not."""
        tail = self._child.log_tail if self._child is not None else ()
        if refusal.kind not in _GOES_ON:
            self._end_child()
        return Outcome(state=_STATE_OF_KIND.get(refusal.kind, "crash"), reason=refusal.message, log_tail=tail)

    def _start_child(self) -> Child:
        """On memory that the one before it gave back, or with a note and a lower ceiling. Raises InterruptedRunError."""
        missing = self._recovery.await_memory(is_stopped=lambda: self._stop.requested)
        self._notes += [missing] if missing else []
        self._raise_if_stopped()
        ceiling = self._ceiling
        return Child(
            self._engine_name,
            environ=self._environ,
            memory_ceiling_bytes=None if ceiling is None else lower_ceiling(ceiling, self._recovery.lost_bytes),
            clock=self._clock,
            is_stopped=lambda: self._stop.immediate,
        )

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _load_limit(self, config: RunConfig) -> float:
        return self._limit_s + measure_file(config.model) / SLOWEST_DISK

    def _raise_if_stopped(self) -> None:
        if self._stop.requested:
            raise _interruption()


def measure_file(model: str) -> int:
    """Bytes of a model file, about all its shards; 0 when it is not there."""
    try:
        size = Path(model).stat().st_size if model else 0
    except OSError:
        return 0
    shards = re.search(r"-\d{5}-of-(\d{5})\.gguf$", model)
    return size * (int(shards.group(1)) if shards else 1)


def _describe_noise(gathered: Gathered, plan: Plan) -> str:
    last = gathered.discarded[-1].disturbed if gathered.discarded else "none were taken"
    disturbed = len(gathered.discarded)
    return f"{len(gathered.kept)} of {plan.samples} samples undisturbed after {disturbed} disturbed ones: {last}"


def _set_slow_start_apart(gathered: Gathered) -> None:
    """Once enough samples are there: a first one that is far slower than the rest makes room for another."""
    factors = (
        find_slow_start([s.ttft_ms for s in gathered.kept if s.ttft_ms is not None]),
        find_slow_start([s.tpot_ms for s in gathered.kept if s.tpot_ms is not None]),
    )
    factor = max((each for each in factors if each is not None), default=None)
    if factor is None:
        return
    reason = f"slow start: the first sample took {factor:.1f} times the median"
    first: Sample = gathered.kept.pop(0)
    gathered.discarded.append(msgspec.structs.replace(first, disturbed=reason))
    gathered.notes.append(reason)


def _is_local(endpoint: str) -> bool:
    return endpoint.rpartition(":")[0] in {"localhost", "127.0.0.1", "[::1]", "::1"}


def _interruption() -> InterruptedRunError:
    return InterruptedRunError("Stopped on request.", "What was measured so far is kept.")
