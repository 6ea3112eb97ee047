"""What a measurement says, with its evidence: raw samples, what was warm-up, what disturbed it, and what it cost.

A figure without samples behind it does not exist here: every summary is computed from them.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from tuner.engines.base import RuntimeFacts
from tuner.runconfig import RunConfig
from tuner.workload import Workload

OutcomeState = Literal["complete", "invalid", "out_of_memory", "crash", "timeout", "noisy"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure of one point."""

    samples: int
    """Undisturbed samples wanted."""
    prefill: bool = True
    """Time the prompt."""
    decode_tokens: int = 0
    """Tokens to write per sample; 0 leaves decode out. A full turn writes the workload's output_tokens."""
    fresh: bool = False
    """Rebuild the context before the samples (confirmation)."""
    most_repeats: int = 3
    """Disturbed samples repeated at most, before the point is called noisy."""
    repeats_s: float | None = None
    """Disturbed samples are repeated only where that ends within so many seconds from the start; None: whenever it ends."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured turn."""

    ttft_ms: float | None
    """Time to first token, ms; None when not measured."""
    tpot_ms: float | None
    """Mean time per further token, ms; None when not measured."""
    decode_tps: float | None
    """Tokens per second over all slots in steady decoding; None when not measured."""
    total_tps: float | None
    """Tokens per second over all slots with prefill included; None unless both phases were measured."""
    prefill_cpu_share: float | None
    """Processor time / (wall × threads_batch) while the prompt was read; None where the platform won't say."""
    decode_cpu_share: float | None
    """Processor time / (wall × threads) while tokens were made; None where the platform won't say."""
    others_cores: float | None
    """Cores kept busy by other processes meanwhile; None where the platform won't say."""
    disturbed: str = ""
    """Why this sample does not count, in plain words; "" when it does."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one point for one workload: medians over `samples`."""

    config: RunConfig
    """Effective settings that were run."""
    workload: Workload
    """What they were run for; figures hold at its depth only."""
    runtime: RuntimeFacts
    """Which program ran them."""
    ttft_ms: float | None
    """Median time to first token, ms."""
    tpot_ms: float | None
    """Median time per further token, ms."""
    latency_ms: float | None
    """TTFT + (n_out - 1) × TPOT, ms; None unless both were measured."""
    throughput_tps: float | None
    """Median tokens per second over all slots in steady decoding."""
    throughput_total_tps: float | None
    """Median tokens per second over all slots with prefill included."""
    memory_bytes: int
    """What llama.cpp reports for weights, KV, state and compute buffers, bytes."""
    buffers: dict[str, int]
    """The same by cause and device, bytes."""
    load_ms: float
    """Loading the model, ms, 0 when it was loaded already; never part of TTFT."""
    flash_attn: str | None
    """on or off as llama.cpp settled it."""
    decode_tokens: int
    """Tokens written per sample; fewer than the workload's for a screening run."""
    samples: tuple[Sample, ...]
    """The samples that count."""
    discarded: tuple[Sample, ...] = ()
    """Disturbed samples, kept as evidence."""
    notes: tuple[str, ...] = ()
    """What a reader should know (first sample slow, machine busy, short run)."""
    measured_s: float = 0.0
    """Wall time inside timed prefill and decode, disturbed samples included, s."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of trying one point. A crash of llama.cpp is an outcome, never an exception."""

    state: OutcomeState
    """complete, or why there is no figure to rank."""
    reason: str = ""
    """In plain words; "" for complete."""
    measurement: Measurement | None = None
    """Present for complete, and for noisy where samples exist."""
    log_tail: tuple[str, ...] = ()
    """Last lines of the native log."""
    notes: tuple[str, ...] = ()
    """What a user should be told of the machine, such as memory that an earlier run did not give back; each once."""
    measured_s: float = 0.0
    """Wall time inside timed prefill and decode, s."""
    elapsed_s: float = 0.0
    """Wall time of the whole attempt, s."""


class Measurer(Protocol):
    """What the study asks for figures: the child runner, or an in-process simulation."""

    def measure(self, config: RunConfig, workload: Workload, plan: Plan) -> Outcome:
        """Try one point. Never raises for what llama.cpp does; raises InterruptedRunError after a stop."""
        ...

    def project_memory(self, config: RunConfig, *, front_end: str) -> dict[str, int] | None:
        """llama.cpp's own memory projection by cause and device, bytes, without allocating; None when it cannot say."""
        ...

    def close(self) -> None:
        """End the child and everything it started."""
        ...
