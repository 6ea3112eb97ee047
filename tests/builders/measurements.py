"""Measurements with given figures, built through the real records."""

from __future__ import annotations

from tuner.engines.base import RuntimeFacts
from tuner.measure.record import Measurement, Sample
from tuner.runconfig import RunConfig
from tuner.workload import PRESETS, Workload

RUNTIME = RuntimeFacts(engine="llama-cpp-python", version="0.3.36", llama_cpp="b0")


def measured(
    *,
    ttft_ms: float | None = 100.0,
    tpot_ms: float | None = 10.0,
    config: RunConfig | None = None,
    workload: Workload | None = None,
    memory_bytes: int = 200 * 2**20,
    samples: int = 3,
) -> Measurement:
    """A measurement whose samples all show the same figures."""
    workload = workload or PRESETS["quick"]
    tps = 1000 / tpot_ms if tpot_ms else None
    both = ttft_ms is not None and tpot_ms is not None
    latency = ttft_ms + (workload.output_tokens - 1) * tpot_ms if both else None
    sample = Sample(
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        decode_tps=tps,
        total_tps=None,
        prefill_cpu_share=1.0,
        decode_cpu_share=1.0,
        others_cores=0.0,
    )
    return Measurement(
        config=config or RunConfig(threads=2, threads_batch=2, ctx_size=256),
        workload=workload,
        runtime=RUNTIME,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        latency_ms=latency,
        throughput_tps=tps,
        throughput_total_tps=None,
        memory_bytes=memory_bytes,
        buffers={"weights CPU": memory_bytes},
        load_ms=0.0,
        flash_attn="on",
        decode_tokens=workload.output_tokens,
        samples=(sample,) * samples,
    )
