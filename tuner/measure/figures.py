"""From raw turns to figures: one sample of one turn, one measurement of many samples. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tuner.engines.base import Prepared, RuntimeFacts, Turn
from tuner.measure.record import Measurement, Plan, Sample
from tuner.measure.statistics import median_or_none
from tuner.runconfig import RunConfig
from tuner.workload import Workload

FEWEST_RANKED: Final = 16
"""Tokens; a decode figure from fewer says too little to be ranked."""

NOT_RANKED: Final = f"fewer than {FEWEST_RANKED} tokens were written: the decode figure is not ranked"


def form_sample(turn: Turn, config: RunConfig, *, others_cores: float | None = None, disturbed: str = "") -> Sample:
    """The figures of one turn."""
    decode_s = _seconds(turn.decode_ms) if turn.decode_steps else None
    both_s = None if turn.ttft_ms is None or decode_s is None else turn.ttft_ms / 1000 + decode_s
    return Sample(
        ttft_ms=turn.ttft_ms,
        tpot_ms=None if decode_s is None else decode_s * 1000 / turn.decode_steps,
        decode_tps=turn.slots * turn.decode_steps / decode_s if decode_s else None,
        total_tps=turn.slots * (turn.decode_steps + 1) / both_s if both_s else None,
        prefill_cpu_share=_share(turn.prefill_cpu_s, _seconds(turn.ttft_ms), prefill_threads(config)),
        decode_cpu_share=_share(turn.decode_cpu_s, decode_s, decode_threads(config)),
        others_cores=others_cores,
        disturbed=disturbed,
    )


def prefill_threads(config: RunConfig) -> int:
    """Threads that read the prompt."""
    return max(1, config.threads_batch or config.threads)


def decode_threads(config: RunConfig) -> int:
    """Threads that make a token for every slot: llama.cpp takes threads for one token, threads_batch for several at once."""
    return prefill_threads(config) if config.parallel > 1 else max(1, config.threads)


def timed_seconds(turn: Turn) -> float:
    """Wall time inside timed prefill and decode, s."""
    return ((turn.ttft_ms or 0.0) + (turn.decode_ms or 0.0)) / 1000


class Gathered(msgspec.Struct, kw_only=True):
    """What a measurement has so far. The only mutable record here: it lives within one call of `measure`."""

    kept: list[Sample] = msgspec.field(default_factory=list)
    """Samples that count."""
    discarded: list[Sample] = msgspec.field(default_factory=list)
    """Disturbed samples."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What a reader should know."""
    measured_s: float = 0.0
    """Wall time inside timed prefill and decode, s."""
    fewest_steps: int | None = None
    """Fewest decode steps of a sample; None before the first with decode."""


def form_measurement(
    gathered: Gathered, prepared: Prepared, plan: Plan, *, config: RunConfig, workload: Workload, runtime: RuntimeFacts
) -> Measurement | None:
    """Medians over the samples that count, over the disturbed ones where none does; None where there is no sample."""
    samples = gathered.kept or gathered.discarded
    if not samples:
        return None
    ttft = median_or_none([sample.ttft_ms for sample in samples])
    tpot = median_or_none([sample.tpot_ms for sample in samples])
    written = 0 if gathered.fewest_steps is None else min(plan.decode_tokens, gathered.fewest_steps + 1)
    return Measurement(
        config=config,
        workload=workload,
        runtime=runtime,
        ttft_ms=ttft,
        tpot_ms=tpot,
        latency_ms=None if ttft is None or tpot is None else ttft + (workload.output_tokens - 1) * tpot,
        throughput_tps=config.parallel * 1000 / tpot if tpot else None,  # a median of its own could contradict TPOT
        throughput_total_tps=median_or_none([sample.total_tps for sample in samples]),
        memory_bytes=prepared.memory_bytes,
        buffers=prepared.buffers,
        load_ms=prepared.load_ms,
        flash_attn=prepared.flash_attn,
        decode_tokens=written,
        samples=tuple(samples),
        discarded=tuple(gathered.discarded) if gathered.kept else (),
        notes=tuple(_describe(gathered, plan, workload, written)),
        measured_s=gathered.measured_s,
    )


def _describe(gathered: Gathered, plan: Plan, workload: Workload, written: int) -> Sequence[str]:
    notes = list(dict.fromkeys(gathered.notes))
    if 0 < written < plan.decode_tokens:
        notes.append(f"the generation ended after {written} of {plan.decode_tokens} tokens")
    if 0 < written < FEWEST_RANKED:
        notes.append(NOT_RANKED)
    elif 0 < written < workload.output_tokens:
        notes.append(f"a short run: {written} of the workload's {workload.output_tokens} tokens were written")
    return notes


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _share(cpu_s: float, wall_s: float | None, threads: int) -> float | None:
    """None where the engine cannot tell its processor time (it then says 0)."""
    return cpu_s / (wall_s * threads) if wall_s and cpu_s > 0 else None
