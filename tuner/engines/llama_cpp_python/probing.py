"""Times batches of one model at chosen sizes, depths and thread counts: what a calibration of the machine is made of.

One load and one context serve many cases, which are taken in turn, round after round, so that a drift of the machine falls on
all of them alike.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from tuner.engines.base import EngineError, PrepareRequest
from tuner.engines.llama_cpp_python.batches import Batch, build_prompt_batches
from tuner.engines.llama_cpp_python.context import Context
from tuner.engines.llama_cpp_python.model import Model
from tuner.engines.llama_cpp_python.native import Native
from tuner.engines.llama_cpp_python.settings import check_config, pick_context_settings, pick_model_settings
from tuner.runconfig import RunConfig
from tuner.workload import Workload

_NOTHING: Final = Workload(name="probe", prompt_tokens=1, output_tokens=2)


class ProbeCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to time."""

    tokens: int
    """Tokens of the batch, computed at once; only the last gives logits."""
    depth: int
    """Tokens in the cache before it."""
    threads: int
    """Threads at work."""


class ProbeJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of the task."""

    config: RunConfig
    """Model and settings; threads are the cases', and the context is as large as they need."""
    cases: tuple[ProbeCase, ...]
    """What to time."""
    rounds: int
    """Times that every case is visited."""
    visit_s: float
    """A case is repeated for at least this long each visit, s."""
    limit_s: float
    """No further round is begun after this long, s."""
    rpc_servers: tuple[str, ...] = ()
    """Endpoints to register as devices."""


class ProbeTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What one case took."""

    seconds: tuple[float, ...]
    """Median time of one batch, for each round, s."""
    cpu_share: float
    """Processor time got / (wall × threads) over all rounds."""


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the task returns."""

    times: tuple[ProbeTimes, ...]
    """In the order of the cases."""
    buffers: dict[str, int]
    """Bytes by cause and device as llama.cpp reports them."""
    flash_attn: str | None
    """on or off as llama.cpp settled it."""
    load_s: float
    """Loading the model, s."""


def probe(native: Native, arguments: dict[str, Any]) -> dict[str, Any]:
    """Load, time, free. Raises EngineError."""
    job = _read_job(arguments)
    start = time.perf_counter()
    model = Model(
        native, pick_model_settings(PrepareRequest(config=job.config, workload=_NOTHING, rpc_servers=job.rpc_servers))
    )
    try:
        load_s = time.perf_counter() - start
        answer = _probe_model(native, model, job, load_s)
    finally:
        model.close()
    built: dict[str, Any] = msgspec.to_builtins(answer)
    return built


def _probe_model(native: Native, model: Model, job: ProbeJob, load_s: float) -> ProbeAnswer:
    settings = pick_context_settings(job.config)
    context = Context(native, model.pointer, settings, threads=1, threads_batch=1)
    try:
        flash_attn = native.log.flash_attn
        times = _Prober(native, model, context, job).run()
    finally:
        context.close()
    return ProbeAnswer(times=times, buffers=native.log.buffers, flash_attn=flash_attn, load_s=load_s)


class _Prober:
    """Visits the cases; the cache is filled once for each depth, deepest last."""

    def __init__(self, native: Native, model: Model, context: Context, job: ProbeJob) -> None:
        self._native = native
        self._model = model
        self._context = context
        self._job = job
        self._fill_threads = max(case.threads for case in job.cases)
        self._batches: dict[tuple[int, int], Batch] = {}
        self._seconds: list[list[float]] = [[] for _ in job.cases]
        self._cpu = [0.0] * len(job.cases)
        self._wanted_cpu = [0.0] * len(job.cases)
        self._held = 0

    def run(self) -> tuple[ProbeTimes, ...]:
        began = time.perf_counter()
        cases = sorted(range(len(self._job.cases)), key=lambda i: (self._job.cases[i].depth, self._job.cases[i].threads))
        for number in range(self._job.rounds):
            if number and time.perf_counter() - began > self._job.limit_s:
                break
            for index in cases if number % 2 == 0 else reversed(cases):
                self._visit(index, warm=number == 0)
        return tuple(
            ProbeTimes(seconds=tuple(seconds), cpu_share=cpu / wanted if wanted else 0.0)
            for seconds, cpu, wanted in zip(self._seconds, self._cpu, self._wanted_cpu, strict=True)
        )

    def _visit(self, index: int, *, warm: bool) -> None:
        case = self._job.cases[index]
        self._bring(case.depth)
        self._context.set_threads(case.threads, case.threads)
        batch = self._batch(case.tokens, case.depth)
        if warm:
            self._time(batch, case.depth)
        times: list[float] = []
        cpu, start = time.process_time(), time.perf_counter()
        while not times or time.perf_counter() - start < self._job.visit_s:
            times.append(self._time(batch, case.depth))
        wall = time.perf_counter() - start
        self._cpu[index] += time.process_time() - cpu
        self._wanted_cpu[index] += wall * case.threads
        times.sort()
        self._seconds[index].append(times[len(times) // 2])

    def _time(self, batch: Batch, depth: int) -> float:
        start = time.perf_counter()
        self._context.decode(batch)
        self._context.synchronize()
        seconds = time.perf_counter() - start
        self._context.trim(0, depth)
        return seconds

    def _bring(self, depth: int) -> None:
        """Exactly `depth` tokens in the cache."""
        if self._held > depth:
            self._context.trim(0, depth) if depth else self._context.clear()
        elif self._held < depth:
            self._context.set_threads(self._fill_threads, self._fill_threads)
            tokens = self._model.tokens.draw_history(depth)[self._held :]
            for batch in build_prompt_batches(
                self._native, [tokens], start=self._held, most=self._context.n_batch, want_last=False
            ):
                self._context.decode(batch)
            self._context.synchronize()
        self._held = depth

    def _batch(self, tokens: int, depth: int) -> Batch:
        key = (tokens, depth)
        if key not in self._batches:
            ids = self._model.tokens.draw_prompt(0, tokens, starts=depth == 0)
            (self._batches[key],) = build_prompt_batches(self._native, [ids], start=depth, most=self._context.n_batch)
        return self._batches[key]


def _read_job(arguments: dict[str, Any]) -> ProbeJob:
    try:
        job = msgspec.convert(arguments, ProbeJob)
    except msgspec.ValidationError as error:
        raise EngineError("invalid", f"probe: {error}") from error
    if not job.cases or job.rounds < 1:
        raise EngineError("invalid", "probe: there is nothing to time")
    check_config(job.config)
    for case in job.cases:
        if case.tokens < 1 or case.depth < 0 or case.threads < 1:
            raise EngineError("invalid", f"probe: {case.tokens} tokens at depth {case.depth} with {case.threads} threads")
        if case.tokens > job.config.batch_size or case.depth + case.tokens > job.config.ctx_size:
            raise EngineError("invalid", f"probe: {case.tokens} tokens at depth {case.depth} do not fit the context")
    return job
