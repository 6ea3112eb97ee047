"""The seam between rooftune and a runtime: what every engine can be asked, and what it answers.

An engine runs only inside the measuring child (`tuner.measure.worker`), never in the process of a front end. It may abort,
hang or be killed; the parent turns that into a trial state. All times are wall times in milliseconds from one steady clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from tuner.runconfig import RunConfig
from tuner.workload import Workload


class EngineError(Exception):
    """The runtime refused: `message` says why, in its own words or ours, in one sentence.

    `kind` is "invalid" (these settings cannot run), "out_of_memory", "unreadable" (the model file is missing or damaged),
    "needs_process" (only a new process can apply this setting) or "failed".
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class RuntimeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which program the figures come from."""

    engine: str
    """Name of the engine, as --engine takes it."""
    version: str
    """Version of the package or binary."""
    llama_cpp: str
    """llama.cpp's own version text; "" when it does not say."""


class PrepareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Bring the engine to where turns of `workload` can be run under `config`."""

    config: RunConfig
    """The point; `config.model` is a path to the (first) GGUF file. threads and threads_batch are set (not 0)."""
    workload: Workload
    """Its depth_tokens are in the cache when prepare returns, for each of config.parallel slots."""
    prefill: bool = True
    """Turns will time the prompt; when False, warming up for it is left out and the prompt is put in place as well."""
    decode: bool = True
    """Turns will write tokens; when False, warming up for it is left out."""
    fresh: bool = False
    """Build a new context even where the old one would serve (confirmation)."""
    rpc_servers: tuple[str, ...] = ()
    """Endpoints HOST:PORT to register as devices before the model is loaded."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What preparing cost, and what llama.cpp decided."""

    load_ms: float
    """Loading the model, ms; 0 when it was loaded already."""
    context_ms: float
    """Building the context, ms; 0 when it was kept."""
    fill_ms: float
    """Bringing depth_tokens into the cache (or restoring them), and warming up, ms."""
    flash_attn: str | None
    """on or off as llama.cpp settled it; None when it did not say."""
    ctx_per_slot: int
    """Context of one slot, tokens."""
    memory_bytes: int
    """Weights, KV, state and compute buffers that llama.cpp reports, over all devices, bytes."""
    buffers: dict[str, int]
    """The same by cause and device ("weights CPU", "kv CPU", "compute CPU", …), bytes."""


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run one turn from the prepared state, or the part of it that a goal needs."""

    prefill: bool = True
    """Time the reading of prompt_tokens with depth_tokens in the cache. When False the prompt is put in place untimed."""
    decode_tokens: int = 0
    """Tokens to write after the prompt; 0 leaves decode out."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One measured turn; the state is back at the prepared depth afterwards (or is brought there by the next turn)."""

    ttft_ms: float | None
    """From submitting the prompt of every slot to the first token chosen, ms; None when prefill was left out."""
    decode_ms: float | None
    """From the first token to the last, over `decode_steps` steps, ms; None when decode was left out."""
    decode_steps: int
    """Decode calls timed; each makes one token for each slot."""
    slots: int
    """Sequences decoded together."""
    prefill_cpu_s: float = 0.0
    """Processor time of the engine's processes during the timed prefill, s."""
    decode_cpu_s: float = 0.0
    """Processor time of the engine's processes during the timed decode, s."""
    step_ms: tuple[float, ...] = ()
    """Time of each decode step, ms; may be empty where the engine cannot tell."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed because a cache held them; 0 for an honest TTFT."""


class Engine(ABC):
    """One runtime. Files beside this one each define one engine; `discover` finds them."""

    name: ClassVar[str]
    """As --engine takes it."""

    @abstractmethod
    def describe_runtime(self) -> RuntimeFacts:
        """Version facts; may load the native library."""

    @abstractmethod
    def prepare(self, request: PrepareRequest) -> Prepared:
        """Load, build a context, fill the depth, warm up with the same shape. Raises EngineError when llama.cpp refuses."""

    @abstractmethod
    def run_turn(self, request: TurnRequest) -> Turn:
        """Measure one turn from the prepared state. Raises EngineError."""

    @abstractmethod
    def project_memory(self, config: RunConfig, *, front_end: str) -> dict[str, int]:
        """Bytes by cause and device, as `Prepared.buffers`, without allocating; {} when this engine cannot say."""

    def run_task(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A side job of this engine (such as quantising a file); raises EngineError for one it does not know."""
        del arguments
        raise EngineError("invalid", f"the engine {self.name} has no task {name!r}")

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""
