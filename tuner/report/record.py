"""The final answer of a tune, frozen: what was measured, on what, and how sure it is.

Every figure comes from samples (of the simulated engine where `runtime` says so); nothing is predicted. The names of the
fields are the keys of the JSON and of the YAML file, and stay as they are within a schema.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from tuner.engines.base import RuntimeFacts
from tuner.runconfig import RunConfig
from tuner.workload import Workload

SCHEMA: Final = "rooftune/1"


class MachineNote(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured, as far as it decides whether the figures still hold."""

    fingerprint: str
    """Stable name of the machine."""
    summary: str
    """The machine in one line."""
    driver: str | None = None
    """GPU driver; None without a GPU or where it won't say."""
    usable_threads: int | None = None
    """Threads that the process was allowed to run at once; None when unknown."""
    memory_limit_bytes: int | None = None
    """Memory that the tightest cgroup granted, bytes; None when nothing limited it."""


class ModelNote(msgspec.Struct, frozen=True, kw_only=True):
    """Which file was run."""

    path: str
    """The file, its first shard when there are several."""
    name: str
    """What the file calls itself."""
    quant: str
    """Label of its format."""
    bytes: int
    """Size of all shards, bytes."""
    sha256: str
    """Identity of its content (header and sizes); it changes when the file does."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration costs in answers."""

    kld: float | None
    """Mean KL divergence from the most precise file, nats."""
    same_top: float | None
    """Share of positions with the same most likely token, 0 to 1."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The raw figures behind the medians, undisturbed ones only."""

    ttft_ms: tuple[float, ...] = ()
    """Times to first token, ms."""
    tpot_ms: tuple[float, ...] = ()
    """Mean times per further token, ms."""
    throughput_tps: tuple[float, ...] = ()
    """Tokens per second over all slots in steady decoding."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration with its figures: medians, measured for the report's workload at its depth."""

    config: RunConfig
    """Effective settings."""
    ttft_ms: float | None
    """Time to first token, ms; None when the goals did not need it."""
    tpot_ms: float | None
    """Time per further token, ms; None when the goals did not need it."""
    latency_ms: float | None
    """The whole turn, ms; None unless both phases were measured."""
    throughput_tps: float | None
    """Tokens per second over all slots in steady decoding; None when not measured."""
    throughput_total_tps: float | None = None
    """Tokens per second over all slots with prefill included; None when not measured."""
    memory_bytes: int
    """What llama.cpp reports for weights, KV cache, state and compute buffers, bytes."""
    quality: Quality | None = None
    """None: not measured."""
    samples: Samples = Samples()
    """The figures behind the medians."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The best against the default, in paired rounds."""

    metric: str
    """The goal that was compared."""
    ratio: float | None
    """How many times better the best is (above 1 whatever the goal's direction); None when it could not be compared."""
    ci95: tuple[float, float] | None
    """95 % interval of the ratio; None with fewer than two rounds."""
    significant: bool
    """The interval lies above 1."""
    rounds: int
    """Paired rounds behind it."""


class FileBest(msgspec.Struct, frozen=True, kw_only=True):
    """What the search found for one of several files of a model."""

    model: ModelNote
    """The file."""
    best: Side
    """Its best configuration."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The final answer."""

    schema: Literal["rooftune/1"] = "rooftune/1"
    """Version of these keys."""
    machine: MachineNote
    """Where."""
    runtime: RuntimeFacts
    """With which program."""
    model: ModelNote
    """The file that `best` runs."""
    workload: Workload
    """For what."""
    objective: str
    """Goals, separated by commas, the first one first in importance."""
    limits: tuple[str, ...] = ()
    """Promises that had to be kept, as the user wrote them."""
    strategy: str
    """physics, tpe or random."""
    seed: int
    """Seed of the search."""
    study: str
    """Name in the storage."""
    storage: str
    """URL of the storage, without a password."""
    baseline: Side
    """What llama.cpp does by itself."""
    best: Side
    """The recommendation; the baseline itself when nothing was shown to be better."""
    gain: Gain
    """How much better, and how sure."""
    pareto: tuple[Side, ...] = ()
    """Best compromises, when there are several goals."""
    files: tuple[FileBest, ...] = ()
    """Each file's best side by side, when several were given."""
    trials: dict[str, int] = {}
    """How many trials ended in each state."""
    findings: tuple[dict[str, Any], ...] = ()
    """Rules that fired: code, title, evidence, change, expected, measured."""
    notes: tuple[str, ...] = ()
    """What a reader should know, in plain words."""
    rpc: tuple[str, ...] = ()
    """Remote devices that took part, HOST:PORT."""
    elapsed_s: float = 0.0
    """Wall time of the whole tune, s."""
    measured_s: float = 0.0
    """Of that, inside timed prefill and decode, s."""

    @property
    def is_default_best(self) -> bool:
        """Nothing was shown to be better than what llama.cpp does by itself."""
        return self.best.config == self.baseline.config

    @property
    def basis(self) -> str:
        """Where the figures come from, as a word: measured, or simulated by the engine of that name."""
        return "simulated" if self.runtime.engine == "simulated" else "measured"

    @property
    def goals(self) -> tuple[str, ...]:
        """The goals one by one."""
        return tuple(goal.strip() for goal in self.objective.split(","))
