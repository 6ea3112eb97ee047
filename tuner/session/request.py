"""What a front end asks for, in plain values as a user gives them. Everything is checked later, in one place."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

DEFAULT_STORAGE: Final = "sqlite:///results/studies.db"
DEFAULT_BUDGET: Final = "10m"
DEFAULT_ENGINE: Final = "llama-cpp-python"
_VALUED: Final = (
    "objective",
    "workload",
    "space",
    "budget",
    "trials",
    "seed",
    "storage",
    "study",
    "resume",
    "strategy",
    "engine",
    "reserve",
)


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One tune as the user asked for it."""

    models: tuple[str, ...] = ()
    """GGUF files, or a folder of them."""
    demo: bool = False
    """The model of the demo extra in place of `models`."""
    objective: str = "latency"
    """Goals, separated by commas."""
    limits: tuple[str, ...] = ()
    """Such as tpot<=50ms."""
    workload: str = "chat"
    """Name of a preset, or a YAML file."""
    space: str = ""
    """Name of a preset, or a YAML file; "" chooses by machine."""
    settings: tuple[str, ...] = ()
    """KEY=VALUE: fixed for the default and for every point."""
    budget: str = DEFAULT_BUDGET
    """Wall time for everything, such as 10m."""
    trials: int | None = None
    """Most points to run; None leaves it to the budget."""
    seed: int = 0
    """Seed of the search."""
    storage: str = DEFAULT_STORAGE
    """Optuna storage URL."""
    study: str = ""
    """Name in the storage; "" makes one."""
    resume: str = ""
    """Go on with the study of this name; "" starts a new one."""
    strategy: str = "physics"
    """physics, tpe or random."""
    allow_quality_loss: bool = False
    """A less precise file or cache type may win."""
    engine: str = DEFAULT_ENGINE
    """What runs the model."""
    output: str = ""
    """Where the YAML file goes; "" means results/<study>.yaml."""
    rpc: tuple[str, ...] = ()
    """Remote devices, HOST:PORT."""
    reserve: str = ""
    """Memory left free for others, such as 2GiB; "" for the usual share. No part of the study's identity."""
    no_memory_check: bool = False
    """Points that do not fit by arithmetic are run all the same. No part of the study's identity."""


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to measure."""

    models: tuple[str, ...] = ()
    """One GGUF file."""
    demo: bool = False
    """The model of the demo extra in place of `models`."""
    workload: str = "chat"
    """Name of a preset, or a YAML file."""
    settings: tuple[str, ...] = ()
    """KEY=VALUE: what differs from the default."""
    engine: str = DEFAULT_ENGINE
    """What runs the model."""
    samples: int = 5
    """Undisturbed samples wanted."""
    rpc: tuple[str, ...] = ()
    """Remote devices, HOST:PORT."""
    reserve: str = ""
    """Memory left free for others, such as 2GiB; "" for the usual share."""
    no_memory_check: bool = False
    """It is run even where it does not fit by arithmetic."""


def build_tune_command(request: TuneRequest) -> str:
    """The command line that asks for the same, without those options that say what is meant anyway."""
    plain = TuneRequest()
    words = ["rooftune", "tune", *(["--demo"] if request.demo else []), *request.models]
    for name in _VALUED:
        value = getattr(request, name)
        if value != getattr(plain, name):
            words += [f"--{name}", str(value)]
    for flag, values in (("--limit", request.limits), ("--set", request.settings)):
        for value in values:
            words += [flag, value]
    words += ["--rpc", ",".join(request.rpc)] if request.rpc else []
    words += ["--allow-quality-loss"] if request.allow_quality_loss else []
    words += ["--no-memory-check"] if request.no_memory_check else []
    words += ["-o", request.output] if request.output else []
    return shlex.join(words)
