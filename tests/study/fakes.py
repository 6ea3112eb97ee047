"""A space and a measurer that need no model: an analytic cost with seeded noise, and a clock that it moves."""

# ruff: noqa: ARG005

from __future__ import annotations

import itertools
import math
import random
import time
from typing import Any

import msgspec

from tuner.engines.base import RuntimeFacts
from tuner.errors import InterruptedRunError
from tuner.measure.record import Measurement, Outcome, Sample
from tuner.objective import parse_goals, parse_limit
from tuner.roofline.record import Estimate, PhasePrediction, Prediction
from tuner.runconfig import EffectiveFacts, RunConfig, resolve_effective
from tuner.study.request import KeyFacts, StudyRequest
from tuner.workload import Workload

WORKLOAD = Workload(name="tiny", prompt_tokens=64, output_tokens=64)
RUNTIME = RuntimeFacts(engine="fake", version="1", llama_cpp="b1")
FACTS = KeyFacts(models=("model-a",), engine="fake 1", llama_cpp="b1", machine="box")
PREFILL = {"threads_batch", "batch_size", "ubatch_size", "flash_attn", "cache_type_k", "cache_type_v", "model"}
DECODE = {"threads", "flash_attn", "cache_type_k", "cache_type_v", "model", "load_mode", "numa"}
MEMORY = {"ctx_size", "batch_size", "ubatch_size", "cache_type_k", "cache_type_v", "n_gpu_layers", "parallel"}


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """As tuner.space.base has it."""

    values: tuple[Any, ...]
    ordered: bool


class FakeSpace:
    """The part of a search space that a study uses."""

    def __init__(self, domains: dict[str, tuple[Any, ...]], *, baseline: RunConfig | None = None, refuse=None, facts=None):
        self.baseline = baseline or RunConfig(
            model="/m/a.gguf", threads=4, threads_batch=4, ctx_size=4096, flash_attn="on", n_gpu_layers=0
        )
        self.domains = {
            name: Domain(values=values, ordered=all(isinstance(v, int) and not isinstance(v, bool) for v in values))
            for name, values in domains.items()
        }
        self._refuse = refuse or (lambda config: None)
        self._facts = facts or EffectiveFacts(n_layer=30, context_length=8192, has_device=False)

    def effective(self, config: RunConfig) -> RunConfig:
        return resolve_effective(config, self._facts)

    def refusal(self, config: RunConfig) -> str | None:
        return self._refuse(config)

    def relevant(self, phases) -> tuple[str, ...]:
        wanted = set()
        for phase, names in (("prefill", PREFILL), ("decode", DECODE), ("memory", MEMORY)):
            wanted |= names if phase in phases else set()
        return tuple(name for name in self.domains if name in wanted)

    def values_of(self, config: RunConfig) -> dict[str, Any]:
        return {name: getattr(config, name) for name in self.domains}

    def from_values(self, values) -> RunConfig:
        return self.baseline.replace(**values)

    def every(self) -> set[RunConfig]:
        products = itertools.product(*(domain.values for domain in self.domains.values()))
        configs = (self.effective(self.from_values(dict(zip(self.domains, point, strict=True)))) for point in products)
        return {config for config in configs if self.refusal(config) is None}


def cost_of(config: RunConfig) -> tuple[float, float]:
    """TTFT and TPOT in ms of the analytic machine: 6 real cores, ubatch 256 best, flash attention good, q8_0 a little slow."""
    threads = abs(math.log2(config.threads / 6)) * 0.25
    batch_threads = abs(math.log2(config.threads_batch / 8)) * 0.30
    ubatch = abs(math.log2(config.ubatch_size / 256)) * 0.06
    attention = 0.0 if config.flash_attn == "on" else 0.15
    cache = {"f16": 0.0, "q8_0": 0.04}.get(config.cache_type_k, 0.1)
    model = {"a.gguf": 1.0, "b.gguf": 0.7, "c.gguf": 0.5}.get(config.model.rsplit("/", 1)[-1], 1.0)
    return 200.0 * (1 + batch_threads + ubatch + attention + cache), 20.0 * model * (1 + threads + attention / 2 + cache)


PHASE = PhasePrediction(
    seconds=1.0, bound="compute", shares={}, attention_share=0.0, operations=1.0, bytes_read=1.0, intensity=1.0, ridge=1.0,
    reached=1.0,
)  # fmt: skip


def make_predict(cost, *, workload=WORKLOAD, spread=0.1):
    """A predictor that tells (TTFT, TPOT) in ms as `cost` has it; None where that says None."""

    def predict(config) -> Prediction | None:
        told = cost(config)
        if told is None:
            return None
        ttft, tpot = told
        figures = {"ttft": ttft, "tpot": tpot, "latency": ttft + (workload.output_tokens - 1) * tpot}
        figures |= {"throughput": config.parallel * 1000 / tpot, "throughput_total": config.parallel * 1000 / tpot}
        estimates = {name: _make_estimate(value, spread) for name, value in figures.items()}
        return Prediction(
            config=config, workload=workload, source="calibrated", machine="box", prefill=PHASE, decode=PHASE,
            memory_bytes=config.ctx_size * 1000, **estimates,
        )  # fmt: skip

    return predict


def _make_estimate(value: float, spread: float) -> Estimate:
    return Estimate(value=value, low=value * math.exp(-1.28 * spread), high=value * math.exp(1.28 * spread))


class FakeClock:
    """Seconds that pass only when something is measured."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeStop:
    requested = False


class FakeMeasurer:
    """Costs with lognormal noise; `respond` may give an outcome of its own for a point."""

    def __init__(self, *, noise=0.01, seed=0, cost=cost_of, respond=None, clock=None, drift=None, on_measure=None, sleep_s=0.0):
        self._random = random.Random(seed)
        self._noise, self._cost, self._respond = noise, cost, respond
        self.clock = clock or FakeClock()
        self._drift = drift or (lambda count: 1.0)
        self._on_measure = on_measure or (lambda count: None)
        self._sleep_s = sleep_s
        self.runs: list[tuple[RunConfig, Any]] = []

    def measure(self, config, workload, plan) -> Outcome:
        self.runs.append((config, plan))
        self._on_measure(len(self.runs))
        if self._sleep_s:
            time.sleep(self._sleep_s)
        if self._respond and (outcome := self._respond(config, plan)) is not None:
            self.clock.now += 0.1
            return outcome
        samples = tuple(self._sample(config, workload, plan) for _ in range(plan.samples))
        spent = sum((s.ttft_ms or 0) + (s.tpot_ms or 0) * plan.decode_tokens for s in samples) / 1000
        self.clock.now += spent + 0.05
        return Outcome(
            state="complete",
            measurement=_measurement(config, workload, plan, samples, spent),
            measured_s=spent,
            elapsed_s=spent + 0.05,
        )

    def _sample(self, config, workload, plan) -> Sample:
        ttft, tpot = self._cost(config)
        slow = self._drift(len(self.runs))
        ttft, tpot = (value * slow * math.exp(self._random.gauss(0, self._noise)) for value in (ttft, tpot))
        tpot_ms = tpot if plan.decode_tokens else None
        return Sample(
            ttft_ms=ttft if plan.prefill else None,
            tpot_ms=tpot_ms,
            decode_tps=config.parallel * 1000 / tpot if tpot_ms else None,
            total_tps=None,
            prefill_cpu_share=None,
            decode_cpu_share=None,
            others_cores=None,
        )

    def project_memory(self, config, *, front_end):
        return None

    def close(self) -> None:
        return


def _measurement(config, workload, plan, samples, spent) -> Measurement:
    from tuner.measure.statistics import median_or_none

    ttft = median_or_none([s.ttft_ms for s in samples])
    tpot = median_or_none([s.tpot_ms for s in samples])
    return Measurement(
        config=config,
        workload=workload,
        runtime=RUNTIME,
        ttft_ms=ttft,
        tpot_ms=tpot,
        latency_ms=ttft + (workload.output_tokens - 1) * tpot if ttft and tpot else None,
        throughput_tps=median_or_none([s.decode_tps for s in samples]),
        throughput_total_tps=None,
        memory_bytes=config.ctx_size * 1000,
        buffers={},
        load_ms=0.0,
        flash_attn="on",
        decode_tokens=plan.decode_tokens,
        samples=samples,
        measured_s=spent,
    )


def failing(state, reason="it broke"):
    return Outcome(state=state, reason=reason, measured_s=0.0, elapsed_s=0.1, log_tail=("last words",))


def make_request(space, storage, *, goals="tpot", limits=(), **changes) -> StudyRequest:
    return StudyRequest(
        workload=changes.pop("workload", WORKLOAD),
        goals=parse_goals(goals),
        limits=tuple(parse_limit(text) for text in limits),
        space=space,
        facts=changes.pop("facts", FACTS),
        storage=storage,
        **{"budget_s": 10_000.0, **changes},
    )


def run(request, measurer=None, *, events=None, misfit=None, stop=None):
    from tuner.study.loop import run_study

    measurer = measurer or FakeMeasurer()
    collect = events.append if events is not None else (lambda event: None)
    return run_study(
        request,
        measurer,
        emit=collect,
        find_misfit=misfit or (lambda config: None),
        clock=measurer.clock,
        stop=stop or FakeStop(),
    )


def interrupt_at(count):
    """The user's Ctrl-C during run `count`: the runner raises, as the real one does."""

    def on_measure(now):
        if now == count:
            raise InterruptedRunError("stopped")

    return on_measure
