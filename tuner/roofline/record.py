"""What is said of a configuration before it is measured: figures with intervals, and what binds each phase.

A prediction is never a measurement: every estimate carries how it was come by, and front ends show it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tuner.roofline.ceilings import Source
from tuner.runconfig import RunConfig
from tuner.workload import Workload

Basis = Literal["measured", "predicted", "assumed"]
"""measured: from samples of this very case; predicted: from calibrated figures; assumed: a data sheet or a rule of thumb."""

Resource = Literal["compute", "memory bandwidth", "link", "fixed overhead"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with the interval that should hold it four times of five."""

    value: float
    """Most likely value, in the unit that the field around it names."""
    low: float
    """Lower end of the 80 % interval."""
    high: float
    """Upper end of the 80 % interval."""
    basis: Basis = "predicted"
    """How it was come by."""


class PhasePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two phases, seen against the machine's roofs."""

    seconds: float
    """Time of the whole prompt (prefill) or of one step in the middle of the answer (decode), s."""
    bound: Resource
    """What most of the time goes to."""
    shares: dict[str, float]
    """Share of the time by resource; sums to 1."""
    attention_share: float
    """Share of the time spent on the history, 0 to 1."""
    operations: float
    """Multiplications and additions in that time."""
    bytes_read: float
    """Weights and KV read in that time, bytes."""
    intensity: float
    """Arithmetic intensity: operations per byte read."""
    ridge: float
    """The machine's ridge point: below that intensity memory bandwidth binds, above it compute, operations/byte."""
    reached: float
    """Share of the binding roof that is reached, 0 to 1."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What one configuration of one model should do for one workload on one machine."""

    config: RunConfig
    """The effective point."""
    workload: Workload
    """What for; figures hold at its depth."""
    source: Source
    """Whose figures it is made of."""
    machine: str
    """Fingerprint, or name of the data sheet."""
    ttft: Estimate
    """Time to first token, ms."""
    tpot: Estimate
    """Mean time per further token of the answer, ms."""
    latency: Estimate
    """TTFT + (n_out - 1) × TPOT, ms."""
    throughput: Estimate
    """Tokens generated per second over all slots in steady decoding, tok/s."""
    throughput_total: Estimate
    """The same with prefill included, tok/s."""
    prefill: PhasePrediction
    """Reading the prompt."""
    decode: PhasePrediction
    """Writing the answer."""
    memory_bytes: int | None
    """Weights, KV, state and buffers, bytes; None: unknown."""
    notes: tuple[str, ...] = ()
    """What a reader should know (a format that was not calibrated, a bound that is only assumed), one sentence each."""

    def estimate(self, metric: str) -> Estimate | None:
        """The estimate of a goal (ttft, tpot, latency, throughput); None where the prediction has none."""
        return getattr(self, metric, None) if metric in {"ttft", "tpot", "latency", "throughput"} else None
