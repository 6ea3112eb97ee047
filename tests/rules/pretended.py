"""A machine whose speed is a few round numbers, so that a case can say what is slow on it and why. Never part of rooftune."""

from __future__ import annotations

import math

import msgspec

from tuner.memory.cache import kv_bytes
from tuner.model import ModelSpec
from tuner.roofline.record import Estimate, PhasePrediction, Prediction, Resource
from tuner.runconfig import RunConfig
from tuner.workload import Workload


class Pretended(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of host and device; times are sums, as on a real machine."""

    cores: int = 8
    core_flops: float = 60e9
    bandwidth: float = 40e9
    core_bandwidth: float = 10e9
    device_flops: float = 20e12
    device_bandwidth: float = 800e9
    link_s: float = 0.0
    """What crossing to the device and back costs a step, s."""
    step_s: float = 2e-4
    half_ubatch: float = 16.0
    most_ubatch: int = 1 << 20
    """A micro-batch above this falls out of the caches and takes twice as long."""
    format_cost: dict[str, float] = {}
    """By quant label: how many times dearer its weights are than their bytes say, in both phases."""
    op_s: float = 2e-12
    """An operation of attention, all cores at work, s."""
    flash_decode_cost: float = 1.0
    """How many times dearer attention is in decode with flash attention."""
    plain_prefill_cost: float = 1.0
    """How many times dearer attention is in prefill without flash attention."""
    error: float = 0.05
    """Half the 80 % interval, as a share."""

    def predict(self, spec: ModelSpec, config: RunConfig, workload: Workload) -> Prediction | None:
        if spec.n_layer is None:
            return None
        prefill = self._read_prompt(spec, config, workload)
        depth = workload.depth_tokens + workload.prompt_tokens + workload.output_tokens / 2
        step, history = self._step(spec, config, depth, config.parallel)
        ttft, tpot = prefill * 1e3, step * 1e3
        slots = max(1, config.parallel)
        latency = ttft + (workload.output_tokens - 1) * tpot
        return Prediction(
            config=config,
            workload=workload,
            source="calibrated",
            machine="pretended",
            ttft=self._estimate(ttft),
            tpot=self._estimate(tpot),
            latency=self._estimate(latency),
            throughput=self._estimate(slots * 1e3 / tpot),
            throughput_total=self._estimate(slots * workload.output_tokens * 1e3 / latency),
            prefill=_phase(prefill, "compute", 0.1, 2.0 * spec.parameters * workload.prompt_tokens, float(spec.weights_bytes)),
            decode=_phase(step, "memory bandwidth", history / step, 2.0 * spec.parameters, float(spec.weights_bytes)),
            memory_bytes=spec.weights_bytes + (kv_bytes(spec, config) or 0),
        )

    def _estimate(self, value: float) -> Estimate:
        return Estimate(value=value, low=value * (1 - self.error), high=value * (1 + self.error))

    def _read_prompt(self, spec: ModelSpec, config: RunConfig, workload: Workload) -> float:
        tokens, threads = workload.prompt_tokens, config.threads_batch or config.threads
        size = min(config.ubatch_size, tokens)
        reached = size / (size + self.half_ubatch) / (2.0 if size > self.most_ubatch else 1.0)
        share = _offloaded(spec, config)
        per_token = 2.0 * spec.parameters * self.format_cost.get(spec.quant, 1.0)
        host = per_token * (1 - share) / (self.core_flops * self._useful(threads) * reached)
        device = per_token * share / (self.device_flops * reached)
        plain = self.plain_prefill_cost if config.flash_attn == "off" else 1.0
        attention = self._operations(spec, workload.depth_tokens + tokens / 2) * self.op_s * plain
        passes = math.ceil(tokens / size)
        return tokens * (host + device + attention * (1 - share)) + passes * (self.step_s + self._crossing(share))

    def _step(self, spec: ModelSpec, config: RunConfig, depth: float, slots: int) -> tuple[float, float]:
        share, threads = _offloaded(spec, config), config.threads if slots == 1 else config.threads_batch or config.threads
        useful = self._useful(threads)
        reading = min(self.bandwidth, self.core_bandwidth * useful)
        weights = spec.weights_bytes * self.format_cost.get(spec.quant, 1.0)
        flash = self.flash_decode_cost if config.flash_attn != "off" else 1.0
        history = slots * self._operations(spec, depth) * self.op_s * self.cores / useful * flash * (1 - share)
        host, device = weights * (1 - share) / reading, weights * share / self.device_bandwidth
        return host + device + history + self.step_s + self._crossing(share), history

    def _operations(self, spec: ModelSpec, depth: float) -> float:
        return sum(
            2.0 * (each.n_head or 0) * ((each.key_length or 0) + (each.value_length or 0)) * depth for each in spec.layers
        )

    def _crossing(self, share: float) -> float:
        return self.link_s if share > 0 else 0.0

    def _useful(self, threads: int) -> float:
        return float(threads) if threads <= self.cores else self.cores * (self.cores / threads) ** 2


def _offloaded(spec: ModelSpec, config: RunConfig) -> float:
    full = spec.full_offload or 1
    return (full if config.n_gpu_layers < 0 else min(config.n_gpu_layers, full)) / full


def _phase(seconds: float, bound: Resource, history: float, operations: float, read: float) -> PhasePrediction:
    return PhasePrediction(
        seconds=seconds,
        bound=bound,
        shares={bound: 1 - history, "fixed overhead": history},
        attention_share=history,
        operations=operations,
        bytes_read=read,
        intensity=operations / read,
        ridge=12.0,
        reached=0.8,
    )
