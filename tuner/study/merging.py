"""Joins samples of one point that were taken at different times; medians are computed anew from all of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tuner.measure.record import Measurement, Outcome
from tuner.measure.statistics import median_or_none


def merge_outcomes(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome of all. A failure among them is what came of the point; the time of all of them is kept."""
    spent = sum(outcome.measured_s for outcome in outcomes)
    elapsed = sum(outcome.elapsed_s for outcome in outcomes)
    notes = tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes))
    failed = next((outcome for outcome in outcomes if outcome.measurement is None), None)
    if failed is not None or len(outcomes) == 1:
        return msgspec.structs.replace(failed or outcomes[0], notes=notes, measured_s=spent, elapsed_s=elapsed)
    noisy = next((outcome for outcome in outcomes if outcome.state == "noisy"), None)
    return msgspec.structs.replace(
        noisy or outcomes[-1],
        notes=notes,
        measurement=merge_measurements([outcome.measurement for outcome in outcomes if outcome.measurement]),
        measured_s=spent,
        elapsed_s=elapsed,
    )


def merge_measurements(parts: Sequence[Measurement]) -> Measurement:
    """Medians over the samples of all parts, which are of one point and one workload."""
    samples = tuple(sample for part in parts for sample in part.samples)
    ttft = median_or_none([sample.ttft_ms for sample in samples])
    tpot = median_or_none([sample.tpot_ms for sample in samples])
    steps = parts[0].workload.output_tokens - 1
    return msgspec.structs.replace(
        parts[-1],
        ttft_ms=ttft,
        tpot_ms=tpot,
        latency_ms=ttft + steps * tpot if ttft is not None and tpot is not None else None,
        throughput_tps=parts[-1].config.parallel * 1000 / tpot if tpot else None,
        throughput_total_tps=median_or_none([sample.total_tps for sample in samples]),
        memory_bytes=max(part.memory_bytes for part in parts),
        decode_tokens=min(part.decode_tokens for part in parts),
        load_ms=parts[0].load_ms,
        samples=samples,
        discarded=tuple(sample for part in parts for sample in part.discarded),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        measured_s=sum(part.measured_s for part in parts),
    )
