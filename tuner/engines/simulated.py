"""A pretended machine: times follow from what must be read and computed, with seeded noise. No llama.cpp, no waiting.

For tests, demonstrations and "what if". Every result names the engine "simulated", so it can never pass for a measurement. The
machine is invented and small; its constants are round on purpose. With ROOFTUNE_SIMULATED_SLEEP=1 the times are really waited
for, and ROOFTUNE_SIMULATED_SEED chooses other noise.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import msgspec

from tuner.engines.base import Engine, EngineError, Prepared, PrepareRequest, RuntimeFacts, Turn, TurnRequest
from tuner.errors import BadInputError
from tuner.memory.cache import attends_flash, row_bytes, settle_geometry
from tuner.memory.estimate import estimate_footprint
from tuner.memory.record import FrontEnd
from tuner.model.reading import read_model, require_decoder
from tuner.model.spec import LayerSpec, ModelSpec
from tuner.runconfig import CACHE_TYPES, QUANTISED_CACHE_TYPES, RunConfig, pad256
from tuner.workload import Workload

_SLEEP: Final = "ROOFTUNE_SIMULATED_SLEEP"
_SEED: Final = "ROOFTUNE_SIMULATED_SEED"
_QUANT_BLOCK: Final = 32


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The invented machine; all values assumed."""

    cores: int = 4
    """Physical cores; more threads than that wait for each other."""
    core_flops: float = 40e9
    """Multiply-add rate of one core on quantised weights, operations a second."""
    core_bandwidth: float = 9e9
    """What one core can read, bytes a second."""
    bandwidth: float = 20e9
    """What all cores together can read, bytes a second."""
    barrier_s: float = 1.5e-6
    """Cost of one more thread meeting the others once a block, s."""
    one_token_share: float = 0.35
    """Share of the peak that a single token reaches."""
    half_ubatch: float = 24.0
    """Further tokens in a micro-batch that make up half of what is missing to the peak."""
    quantised_cache_cost: float = 1.25
    """Attention's slow-down from unpacking a quantised cache."""
    plain_attention_cost: float = 1.8
    """Attention's slow-down without flash attention."""
    noise: float = 0.01
    """Relative standard deviation of a time."""


class Costs:
    """Times of one model under one configuration on one machine."""

    def __init__(self, machine: Machine, model: ModelSpec, config: RunConfig) -> None:
        self._machine = machine
        self._model = model
        self._config = config
        self._layers = max(1, model.n_layer or 1)
        self._output_bytes = model.output_bytes or model.token_embd_bytes
        self._active = self._count_active_share()
        self._active_parameters = max(1.0, model.parameters * self._active)

    def time_prompt(self, tokens: int, start: int, slots: int) -> float:
        """Reading `tokens` per slot that begin at position `start`, s."""
        geometry = settle_geometry(self._model, self._config)
        ubatch = max(1, geometry.ubatch if geometry else self._config.ubatch_size)
        total, spent = tokens * slots, 0.0
        for done in range(0, total, ubatch):
            size = min(ubatch, total - done)
            spent += self._time_batch(size, start + (done + size / 2) / slots, self._config.threads_batch)
        return spent

    def time_step(self, position: int, slots: int) -> float:
        """One token for each slot at `position`, s."""
        threads = self._config.threads if slots == 1 else self._config.threads_batch
        reading = (self._weight_bytes(slots) + slots * self._cache_bytes(position)) / self._bandwidth(threads)
        return max(reading, self._compute(slots, position, threads)) + self._barriers(threads)

    def _time_batch(self, size: int, position: float, threads: int) -> float:
        reading = (self._weight_bytes(size) + self._cache_bytes(int(position))) / self._bandwidth(threads)
        return max(reading, self._compute(size, position, threads)) + self._barriers(threads)

    def _compute(self, size: int, position: float, threads: int) -> float:
        machine = self._machine
        gain = (size - 1) / (size - 1 + machine.half_ubatch)
        efficiency = machine.one_token_share + (1 - machine.one_token_share) * gain
        matrices = 2 * self._active_parameters * size / efficiency
        attention = 4 * (self._model.n_embd or 0) * self._layers * position * size * self._attention_cost()
        return (matrices + attention) / (machine.core_flops * self._useful(threads))

    def _attention_cost(self) -> float:
        quantised = self._config.cache_type_k in QUANTISED_CACHE_TYPES or self._config.cache_type_v in QUANTISED_CACHE_TYPES
        plain = not attends_flash(self._model, self._config)
        machine = self._machine
        return (machine.quantised_cache_cost if quantised else 1.0) * (machine.plain_attention_cost if plain else 1.0)

    def _weight_bytes(self, tokens: int) -> float:
        """Weights touched by a batch: all but the experts that no token chose."""
        model = self._model
        dense = model.block_bytes - model.expert_bytes + self._output_bytes
        if not model.n_expert:
            return dense
        missed = (1 - model.n_expert_used / model.n_expert) ** tokens
        return dense + model.expert_bytes * (1 - missed)

    def _count_active_share(self) -> float:
        return self._weight_bytes(1) / max(1, self._model.weights_bytes)

    def _cache_bytes(self, position: int) -> float:
        """KV of one slot that attention reads: used cells, padded."""
        return sum(self._layer_cache_bytes(layer, position) for layer in self._model.layers)

    def _layer_cache_bytes(self, layer: LayerSpec, position: int) -> float:
        cells = pad256(position + 1)
        if layer.kind == "sliding" and self._model.n_swa:
            cells = min(cells, pad256(self._model.n_swa))
        k, v = (
            row_bytes(self._config.cache_type_k, layer.k_elements or 0),
            row_bytes(self._config.cache_type_v, layer.v_elements or 0),
        )
        return cells * (k + v) + 4 * layer.recurrent_state

    def _bandwidth(self, threads: int) -> float:
        """Each core adds its own until the memory is saturated."""
        machine = self._machine
        most = machine.bandwidth
        return most * (1 - math.exp(-self._useful(threads) * machine.core_bandwidth / most))

    def _useful(self, threads: int) -> float:
        """Cores' worth of work; too many threads hinder each other."""
        cores = self._machine.cores
        return float(threads) if threads <= cores else cores * (cores / threads) ** 2

    def _barriers(self, threads: int) -> float:
        return self._layers * threads * self._machine.barrier_s


class SimulatedEngine(Engine):
    """Pretends, and says so."""

    name: ClassVar[str] = "simulated"

    def __init__(
        self,
        *,
        machine: Machine | None = None,
        environment: Mapping[str, str] | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        settings = os.environ if environment is None else environment
        self._machine = machine or Machine()
        self._random = random.Random(settings.get(_SEED, "0"))
        self._sleep = sleep if settings.get(_SLEEP) == "1" else None
        self._models: dict[str, ModelSpec] = {}
        self._loaded: str | None = None
        self._former: RunConfig | None = None
        self._prepared: tuple[RunConfig, Workload, Costs, int] | None = None

    def describe_runtime(self) -> RuntimeFacts:
        return RuntimeFacts(engine=self.name, version="1", llama_cpp="")

    def prepare(self, request: PrepareRequest) -> Prepared:
        self._prepared = None
        config, workload = request.config, request.workload
        model = self._read(config.model)
        _refuse(config, model)
        geometry = settle_geometry(model, config)
        if geometry is None:
            raise EngineError("invalid", "neither the settings nor the model say how long the context is")
        if workload.depth_tokens + workload.prompt_tokens > geometry.cells:
            raise EngineError("invalid", f"history and prompt do not fit into the {geometry.cells} tokens of a slot")
        load_ms = 0.0 if self._loaded == config.model else model.file_bytes / self._machine.bandwidth * 1e3
        kept = self._former == config.replace(threads=0, threads_batch=0) and not request.fresh
        self._loaded, self._former = config.model, config.replace(threads=0, threads_batch=0)
        costs = Costs(self._machine, model, config)
        self._prepared = (config, workload, costs, geometry.cells)
        buffers = self.project_memory(config, front_end="llama-server")
        return Prepared(
            load_ms=load_ms,
            context_ms=0.0 if kept else 5.0,
            fill_ms=0.0,
            flash_attn="on" if attends_flash(model, config) else "off",
            ctx_per_slot=geometry.cells,
            memory_bytes=sum(buffers.values()),
            buffers=buffers,
        )

    def run_turn(self, request: TurnRequest) -> Turn:
        if self._prepared is None:
            raise EngineError("failed", "no configuration is prepared")
        config, workload, costs, cells = self._prepared
        if request.decode_tokens == 1 or (not request.prefill and not request.decode_tokens):
            raise EngineError("invalid", "a turn needs a prompt to read or at least 2 tokens to write")
        end = workload.depth_tokens + workload.prompt_tokens
        steps = max(0, request.decode_tokens - 1)
        if end + steps > cells:
            raise EngineError("invalid", f"the turn needs {end + steps} tokens a slot, but the context holds {cells}")
        slots = config.parallel
        reading = (
            self._disturb(costs.time_prompt(workload.prompt_tokens, workload.depth_tokens, slots)) if request.prefill else 0.0
        )
        writing = [self._disturb(costs.time_step(end + step, slots)) for step in range(steps)]
        if self._sleep is not None:
            self._sleep(reading + sum(writing))
        threads = config.threads if slots == 1 else config.threads_batch
        return Turn(
            ttft_ms=reading * 1e3 if request.prefill else None,
            decode_ms=sum(writing) * 1e3 if steps else None,
            decode_steps=steps,
            slots=slots,
            prefill_cpu_s=reading * config.threads_batch,
            decode_cpu_s=sum(writing) * threads,
            step_ms=tuple(step * 1e3 for step in writing),
        )

    def project_memory(self, config: RunConfig, *, front_end: str) -> dict[str, int]:
        known: FrontEnd = "llama-cpp-python" if front_end == "llama-cpp-python" else "llama-server"
        parts = estimate_footprint(self._read(config.model), config, front_end=known).parts
        return {f"{part.cause} {part.device}": part.n_bytes for part in parts if part.n_bytes}

    def close(self) -> None:
        self._prepared = None

    def _read(self, path: str) -> ModelSpec:
        """The facts of the file as it is now: one that was deleted since cannot be run any more."""
        if not os.path.exists(path):  # noqa: PTH110 - a name that no file system takes is a missing file too
            self._models.pop(path, None)
        if path not in self._models:
            try:
                self._models[path] = spec = read_model(path)
            except BadInputError as error:
                raise EngineError("unreadable", error.message) from error
            try:
                require_decoder(spec)
            except BadInputError as error:
                raise EngineError("invalid", error.message) from error
        return self._models[path]

    def _disturb(self, seconds: float) -> float:
        return seconds * math.exp(self._random.gauss(0.0, self._machine.noise))


def _refuse(config: RunConfig, model: ModelSpec) -> None:
    """What llama.cpp would refuse too."""
    for key in ("cache_type_k", "cache_type_v"):
        if getattr(config, key) not in CACHE_TYPES:
            raise EngineError("invalid", f"{key} {getattr(config, key)!r} is none of {', '.join(CACHE_TYPES)}")
    if min(config.threads, config.threads_batch, config.batch_size, config.parallel) < 1:
        raise EngineError("invalid", "threads, threads_batch, batch_size and parallel must be 1 or more")
    flash = attends_flash(model, config)
    if config.cache_type_v in QUANTISED_CACHE_TYPES and not flash:
        raise EngineError("invalid", "quantized V cache requires flash_attn to be enabled")
    for name, lengths in (
        ("cache_type_k", {layer.key_length for layer in model.layers}),
        ("cache_type_v", {layer.value_length for layer in model.layers}),
    ):
        odd = [length for length in lengths if length and length % _QUANT_BLOCK]
        if flash and getattr(config, name) in QUANTISED_CACHE_TYPES and odd:
            raise EngineError("invalid", f"{name} {getattr(config, name)} does not divide the head size {odd[0]}")
