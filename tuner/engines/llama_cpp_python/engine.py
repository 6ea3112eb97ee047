"""Drives llama.cpp through its C API, which reaches every setting, times every step and costs microseconds a call.

What is expensive is kept as long as it is true: threads change live, a context is rebuilt only for context settings, weights
are loaded anew only for model settings, and a history computed once is restored by the contexts that follow.
"""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import msgspec

from tuner.engines.base import Engine, EngineError, Prepared, PrepareRequest, RuntimeFacts, Turn, TurnRequest
from tuner.engines.llama_cpp_python.batches import Batch, build_prompt_batches, build_step_batches
from tuner.engines.llama_cpp_python.context import Context
from tuner.engines.llama_cpp_python.devices import describe_devices
from tuner.engines.llama_cpp_python.history import History
from tuner.engines.llama_cpp_python.model import Model
from tuner.engines.llama_cpp_python.native import Native
from tuner.engines.llama_cpp_python.probing import probe
from tuner.engines.llama_cpp_python.projection import Projector
from tuner.engines.llama_cpp_python.quantising import quantise
from tuner.engines.llama_cpp_python.settings import NUMA_IDS, check_config, pick_context_settings, pick_model_settings
from tuner.engines.llama_cpp_python.states import StateStore
from tuner.engines.llama_cpp_python.turn import Timing, time_decode, time_prefill
from tuner.runconfig import RunConfig
from tuner.workload import Workload

_WARM_STEPS = 4
_REWARM_TOKENS = 64


class _Ready(msgspec.Struct):
    """What turns are run from."""

    workload: Workload
    history: History
    prompts: list[Batch]
    steps: list[Batch]


class LlamaCppPythonEngine(Engine):
    """llama-cpp-python's library in this process; only ever used in the measuring child."""

    name: ClassVar[str] = "llama-cpp-python"

    def __init__(self) -> None:
        self._native: Native | None = None
        self._projector: Projector | None = None
        self._numa: str | None = None
        self._model: Model | None = None
        self._context: Context | None = None
        self._ready: _Ready | None = None
        self._store = StateStore()
        self._most_threads = 1

    def describe_runtime(self) -> RuntimeFacts:
        native = self._load_native()
        return RuntimeFacts(engine=self.name, version=native.version, llama_cpp=native.describe_llama_cpp())

    def prepare(self, request: PrepareRequest) -> Prepared:
        check_config(request.config)
        former, self._ready = self._ready, None
        native = self._load_native()
        self._settle_numa(native, request.config.numa)
        load_ms = self._bring_model(native, request)
        context_ms, change = self._bring_context(native, request)
        assert self._context is not None
        _check_room(self._context, request.workload)
        start = time.perf_counter_ns()
        self._most_threads = max(self._most_threads, request.config.threads, request.config.threads_batch)
        keep = former if change != "context" and former is not None and former.workload == request.workload else None
        ready = keep or self._build_ready(native, request.workload)
        self._warm_up(request, ready, change)
        ready.history.bring(_start_of_turn(request.workload, prefill=request.prefill), fill_threads=self._fill_threads())
        self._ready = ready
        buffers = native.log.buffers
        return Prepared(
            load_ms=load_ms,
            context_ms=context_ms,
            fill_ms=_since(start),
            flash_attn=native.log.flash_attn,
            ctx_per_slot=self._context.ctx_per_slot,
            memory_bytes=sum(buffers.values()),
            buffers=buffers,
        )

    def run_turn(self, request: TurnRequest) -> Turn:
        ready, context, model = self._ready, self._context, self._model
        if ready is None or context is None or model is None:
            raise EngineError("failed", "no configuration is prepared")
        steps = self._pick_steps(ready, request.decode_tokens)
        if not request.prefill and not steps:
            raise EngineError("invalid", "a turn needs a prompt to read or at least 2 tokens to write")
        self._check_capacity(ready.workload, request.decode_tokens)
        read = written = None
        end_of_prompt = _start_of_turn(ready.workload, prefill=False)
        try:
            ready.history.bring(_start_of_turn(ready.workload, prefill=request.prefill), fill_threads=self._fill_threads())
            if request.prefill:
                read = time_prefill(context, ready.prompts, model.tokens.n_vocab)
            if steps:
                written = time_decode(context, steps)
        except EngineError:
            ready.history.forget()
            raise
        ready.history.note_turn(end_of_prompt)
        return _make_turn(read, written, slots=context.settings.parallel)

    def project_memory(self, config: RunConfig, *, front_end: str) -> dict[str, int]:
        if self._projector is None:
            self._projector = Projector(self._load_native())
        servers = self._model.settings.rpc_servers if self._model is not None else ()
        return self._projector.project(config, front_end=front_end, rpc_servers=servers)

    def run_task(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "quantise":
            return quantise(self._load_native(), arguments)
        if name == "probe":
            return probe(self._load_native(), arguments)
        if name == "devices":
            return {"devices": describe_devices(self._load_native(), tuple(arguments.get("rpc_servers", ())))}
        return super().run_task(name, arguments)

    def close(self) -> None:
        self._drop_context()
        self._drop_model()
        self._store.clear()
        if self._projector is not None:
            self._projector.close()

    def _load_native(self) -> Native:
        if self._native is None:
            try:
                self._native = Native()
            except (ImportError, OSError, RuntimeError) as error:
                raise EngineError("failed", f"llama-cpp-python cannot be loaded: {error}") from error
        return self._native

    def _settle_numa(self, native: Native, numa: str) -> None:
        if self._numa is None:
            if numa != "off":
                native.api.llama_numa_init(NUMA_IDS[numa])
            self._numa = numa
        if self._numa != numa:
            raise EngineError("needs_process", f"numa is {self._numa} for the life of this process and cannot become {numa}")

    def _bring_model(self, native: Native, request: PrepareRequest) -> float:
        """Load the model unless it is loaded just so; ms."""
        wanted = pick_model_settings(request)
        if self._model is not None and self._model.settings == wanted and self._model.is_unchanged():
            return 0.0
        self._drop_context()
        self._drop_model()
        start = time.perf_counter_ns()
        self._model = Model(native, wanted)
        return _since(start)

    def _bring_context(self, native: Native, request: PrepareRequest) -> tuple[float, str]:
        """Build the context unless it serves; ms, and what changed: "context", "threads" or "nothing"."""
        assert self._model is not None
        config = request.config
        wanted, threads = pick_context_settings(config), (config.threads, config.threads_batch)
        if self._context is not None and self._context.settings == wanted and not request.fresh:
            if self._context.threads == threads:
                return 0.0, "nothing"
            self._context.set_threads(*threads)
            return 0.0, "threads"
        self._drop_context()
        start = time.perf_counter_ns()
        self._context = Context(native, self._model.pointer, wanted, threads=threads[0], threads_batch=threads[1])
        return _since(start), "context"

    def _build_ready(self, native: Native, workload: Workload) -> _Ready:
        assert self._context is not None
        assert self._model is not None
        depth, tokens = workload.depth_tokens, self._model.tokens
        slots = range(self._context.settings.parallel)
        prompts = [tokens.draw_prompt(slot, workload.prompt_tokens, starts=depth == 0) for slot in slots]
        history = History(native, self._model, self._context, self._store, flash_attn=native.log.flash_attn, depth=depth)
        batches = build_prompt_batches(native, prompts, start=depth, most=self._context.n_batch)
        return _Ready(workload=workload, history=history, prompts=batches, steps=[])

    def _warm_up(self, request: PrepareRequest, ready: _Ready, change: str) -> None:
        """A discarded run of the same shape: what the first run touches first must not be in a sample.

        A history just computed in this context has warmed prefill already; a change of threads alone needs a token few.
        """
        context, model = self._context, self._model
        assert context is not None
        assert model is not None
        before = ready.history.computed_tokens
        start = _start_of_turn(request.workload, prefill=request.prefill)
        ready.history.bring(start, fill_threads=self._fill_threads())
        if change == "nothing":
            return
        slots, filled = context.settings.parallel, ready.history.computed_tokens - before
        prompt, depth = request.workload.prompt_tokens, request.workload.depth_tokens
        enough = min(prompt * slots, context.n_batch, context.n_ubatch)
        if change == "threads" or filled >= enough:
            enough = min(enough, _REWARM_TOKENS)
        native = self._load_native()
        if request.prefill:
            each = max(1, min(prompt, enough // slots))
            prompts = [model.tokens.draw_prompt(slot, each, starts=depth == 0) for slot in range(slots)]
            batches = build_prompt_batches(native, prompts, start=depth, most=context.n_batch)
            time_prefill(context, batches, model.tokens.n_vocab)
            start = depth + each
        if request.decode:
            room = context.ctx_per_slot - start
            answers = [model.tokens.draw_answer(slot, min(_WARM_STEPS, room)) for slot in range(slots)]
            time_decode(context, build_step_batches(native, answers, start=start))
        ready.history.note_turn(depth if request.prefill else start)

    def _pick_steps(self, ready: _Ready, decode_tokens: int) -> list[Batch]:
        """The batches of the tokens after the first, built once and reused."""
        if decode_tokens == 0:
            return []
        if decode_tokens < 2:
            raise EngineError("invalid", f"decode_tokens is {decode_tokens}, but a rate needs at least 2 tokens")
        assert self._context is not None
        assert self._model is not None
        count = decode_tokens - 1
        if len(ready.steps) < count:
            tokens, slots = self._model.tokens, range(self._context.settings.parallel)
            answers = [tokens.draw_answer(slot, count) for slot in slots]
            start = _start_of_turn(ready.workload, prefill=False)
            ready.steps = build_step_batches(self._load_native(), answers, start=start)
        return ready.steps[:count]

    def _check_capacity(self, workload: Workload, decode_tokens: int) -> None:
        assert self._context is not None
        needed = _start_of_turn(workload, prefill=False) + max(0, decode_tokens - 1)
        if needed > self._context.ctx_per_slot:
            raise EngineError(
                "invalid", f"the turn needs {needed} tokens a slot, but the context holds {self._context.ctx_per_slot}"
            )

    def _fill_threads(self) -> int:
        """Threads to compute histories with: the most that any point was given so far, within those this process may use."""
        return max(1, min(self._most_threads, len(os.sched_getaffinity(0))))

    def _drop_context(self) -> None:
        self._ready = None
        if self._context is not None:
            self._context.close()
            self._context = None

    def _drop_model(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None


def _start_of_turn(workload: Workload, *, prefill: bool) -> int:
    """Tokens a slot holds when the clock starts."""
    return workload.depth_tokens + (0 if prefill else workload.prompt_tokens)


def _check_room(context: Context, workload: Workload) -> None:
    needed = _start_of_turn(workload, prefill=False)
    if needed > context.ctx_per_slot:
        held = context.ctx_per_slot
        raise EngineError("invalid", f"history and prompt need {needed} tokens a slot, but the context holds {held}")


def _make_turn(read: Timing | None, written: Timing | None, *, slots: int) -> Turn:
    return Turn(
        ttft_ms=read.wall_ms if read else None,
        decode_ms=written.wall_ms if written else None,
        decode_steps=len(written.step_ms) if written else 0,
        slots=slots,
        prefill_cpu_s=read.cpu_s if read else 0.0,
        decode_cpu_s=written.cpu_s if written else 0.0,
        step_ms=written.step_ms if written else (),
    )


def _since(start_ns: int) -> float:
    return (time.perf_counter_ns() - start_ns) / 1e6
