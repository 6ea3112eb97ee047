"""A report with given settings, built through the real record."""

from __future__ import annotations

from typing import Any

from tests.builders.measurements import RUNTIME
from tuner.report import Gain, MachineNote, ModelNote, Report, Samples, Side
from tuner.runconfig import RunConfig
from tuner.workload import PRESETS

DEFAULT = RunConfig(n_gpu_layers=0, ctx_size=512, batch_size=512, threads=1, threads_batch=1, flash_attn="on")
TUNED = DEFAULT.replace(ubatch_size=256, threads=2, threads_batch=3, flash_attn="off", cache_type_k="q8_0")


def side(config: RunConfig, *, ttft_ms: float = 200.0, tpot_ms: float = 10.0, **changes: Any) -> Side:
    figures: dict[str, Any] = {
        "config": config,
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
        "latency_ms": ttft_ms + 63 * tpot_ms,
        "throughput_tps": 1000 / tpot_ms,
        "memory_bytes": 200 * 2**20,
        "samples": Samples(ttft_ms=(ttft_ms,) * 3, tpot_ms=(tpot_ms,) * 3, throughput_tps=(1000 / tpot_ms,) * 3),
    }
    return Side(**(figures | changes))


def report(*, best: RunConfig | Side = TUNED, model: str = "/models/smol lm2.gguf", **changes: Any) -> Report:
    """A tune whose best is twice as fast as the default."""
    fields: dict[str, Any] = {
        "machine": MachineNote(fingerprint="1e77", summary="2 cores, 8 GiB", usable_threads=2),
        "runtime": RUNTIME,
        "model": ModelNote(path=model, name="SmolLM2", quant="Q4_1", bytes=98_000_000, sha256="12e4567890"),
        "workload": PRESETS["quick"],
        "objective": "latency",
        "strategy": "physics",
        "seed": 0,
        "study": "smollm2-quick",
        "storage": "sqlite:///results/rooftune.db",
        "baseline": side(DEFAULT),
        "best": best if isinstance(best, Side) else side(best, ttft_ms=100.0, tpot_ms=5.0),
        "gain": Gain(metric="latency", ratio=2.0, ci95=(1.9, 2.1), significant=True, rounds=5),
        "trials": {"complete": 9, "crash": 1},
        "elapsed_s": 60.0,
        "measured_s": 40.0,
    }
    return Report(**(fields | changes))
