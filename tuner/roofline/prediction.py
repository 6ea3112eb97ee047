"""From the times of batches to what a user waits for: TTFT, TPOT, latency, throughput, with intervals and what binds them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, get_args

import msgspec

from tuner.memory.cache import settle_geometry
from tuner.memory.estimate import estimate_footprint
from tuner.model.reading import require_decoder
from tuner.model.spec import ModelSpec
from tuner.roofline.ceilings import Ceilings
from tuner.roofline.figures import Figures
from tuner.roofline.layout import imagine_machine
from tuner.roofline.record import Basis, Estimate, PhasePrediction, Prediction, Resource
from tuner.roofline.timing import BatchTimer, Part
from tuner.roofline.work import cut_prompts, step_batch
from tuner.runconfig import RunConfig, pad256
from tuner.workload import Workload

Z80: Final = 1.2816
"""Standard deviations from the middle of a normal distribution to the ends of its 80 % interval."""

PREFILL_ERROR: Final = 0.12
"""Relative standard deviation of a calibrated TTFT beside that of its figures: layers of other shapes than the calibrated ones
keep the kernels busy to another degree. Assumed."""

DECODE_ERROR: Final = 0.08
"""The same of TPOT, whose bytes are exact: what is left is how evenly a model's matrices keep the memory busy. Assumed."""

NOTEWORTHY: Final = 0.01
"""A doubt about less of the time than this is not told."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Batches added up."""

    seconds: float
    """Their time, s."""
    deviation: float
    """Relative standard deviation of it."""
    parts: tuple[Part, ...]
    """By cause, figure, device and resource."""


class Predictor:
    """Predicts for one machine; keeps its figures ready, so that many configurations cost little each."""

    def __init__(self, ceilings: Ceilings) -> None:
        self.ceilings = ceilings
        self.basis: Basis = "assumed" if ceilings.source == "data sheet" else "predicted"
        self._figures = Figures(ceilings)
        self._machine = imagine_machine(ceilings)

    def predict(self, model: ModelSpec, config: RunConfig, workload: Workload) -> Prediction:
        """Both phases of one turn.

        Raises BadInputError for a model that writes no text, one whose file tells too little, and a device without figures.
        """
        timer = self.open_timer(model, config)
        slots = max(1, config.parallel)
        prefill = self.time_prefill(timer, model, config, workload)
        decode = self.time_decode(timer, workload, slots)
        step = self._add_up([(timer.time(step_batch(workload.middle_history, slots)), 1.0)], DECODE_ERROR)
        ttft, tpot = self._estimate(prefill, 1e3), self._estimate(decode, 1e3)
        latency = _combine(ttft, tpot, workload.output_tokens - 1)
        return Prediction(
            config=config,
            workload=workload,
            source=self.ceilings.source,
            machine=self.ceilings.machine,
            ttft=ttft,
            tpot=tpot,
            latency=latency,
            throughput=_invert(tpot, slots * 1e3),
            throughput_total=_invert(latency, slots * workload.output_tokens * 1e3),
            prefill=self._describe(prefill),
            decode=self._describe(step),
            memory_bytes=estimate_footprint(model, config, machine=self._machine).total_bytes,
            notes=tuple(dict.fromkeys((*_list_doubts(prefill), *_list_doubts(decode), *self.ceilings.doubts))),
        )

    def open_timer(self, model: ModelSpec, config: RunConfig) -> BatchTimer:
        """Times batches of one model under one configuration. Raises BadInputError as `predict` does."""
        require_decoder(model)
        return BatchTimer(model, config, self.ceilings, self._figures)

    def time_prefill(self, timer: BatchTimer, model: ModelSpec, config: RunConfig, workload: Workload) -> Phase:
        """All slots' prompts, from submitting them to the last one's first token."""
        batch, ubatch = _settle_batches(model, config)
        batches = cut_prompts(
            workload.prompt_tokens, workload.depth_tokens, max(1, config.parallel), batch=batch, ubatch=ubatch
        )
        return self._add_up([(timer.time(each), 1.0) for each in batches], PREFILL_ERROR)

    def time_decode(self, timer: BatchTimer, workload: Workload, slots: int) -> Phase:
        """One step, the mean over those of the answer.

        Steps whose padded history is alike take the same time, or one that grows evenly where what is hidden is skipped: so the
        middle one stands for all of them.
        """
        start, steps = workload.depth_tokens + workload.prompt_tokens, max(1, workload.output_tokens - 1)
        first = 0
        times = []
        for cells, count in Counter(pad256(start + i + 1) for i in range(steps)).items():
            middle = min(cells - 1, start + first + count // 2)
            times.append((timer.time(step_batch(middle, slots)), count / steps))
            first += count
        return self._add_up(times, DECODE_ERROR)

    def estimate_step(self, timer: BatchTimer, history: int, slots: int) -> tuple[Estimate, PhasePrediction]:
        """One decode step at a history: ms, and what binds it."""
        phase = self._add_up([(timer.time(step_batch(history, slots)), 1.0)], DECODE_ERROR)
        return self._estimate(phase, 1e3), self._describe(phase)

    def _add_up(self, times: Iterable[tuple[Sequence[Part], float]], model_error: float) -> Phase:
        parts = _merge(times)
        seconds = sum(part.seconds for part in parts)
        own = self._deviation(parts) / seconds if seconds else 0.0
        error = model_error if self.ceilings.source == "calibrated" else 0.0
        return Phase(seconds=seconds, deviation=math.hypot(own, error), parts=parts)

    def _deviation(self, parts: Sequence[Part]) -> float:
        """Standard deviation, s.

        Calibrated figures err each by itself, so their variances add up. Those of a data sheet err together (one machine is
        better or worse than its sheet) and hold the model's error already, so their deviations add up.
        """
        by_figure: dict[tuple[str, str], float] = defaultdict(float)
        for part in parts:
            by_figure[part.figure, part.device] += part.seconds * part.spread
        if self.ceilings.source == "data sheet":
            return sum(by_figure.values())
        return math.sqrt(sum(each * each for each in by_figure.values()))

    def _estimate(self, phase: Phase, scale: float) -> Estimate:
        value, factor = phase.seconds * scale, math.exp(Z80 * phase.deviation)
        return Estimate(value=value, low=value / factor, high=value * factor, basis=self.basis)

    def _describe(self, phase: Phase) -> PhasePrediction:
        seconds = phase.seconds or 1e-12
        shares: dict[Resource, float] = {
            each: sum(part.seconds for part in phase.parts if part.resource == each) / seconds for each in RESOURCES
        }
        bound = max(RESOURCES, key=lambda each: shares[each])
        operations = sum(part.operations for part in phase.parts)
        n_bytes = sum(part.n_bytes for part in phase.parts)
        return PhasePrediction(
            seconds=phase.seconds,
            bound=bound,
            shares={str(name): share for name, share in shares.items()},
            attention_share=sum(part.seconds for part in phase.parts if part.cause in {"history", "state"}) / seconds,
            operations=operations,
            bytes_read=n_bytes,
            intensity=operations / n_bytes if n_bytes else 0.0,
            ridge=self._find_ridge(phase),
            reached=min(1.0, self._roof_seconds(phase, bound) / seconds),
        )

    def _find_ridge(self, phase: Phase) -> float:
        """Operations a second over bytes a second, of the device that most of the time is spent on (Williams et al., 2009)."""
        spent: dict[str, float] = {}
        for part in phase.parts:
            spent[part.device] = spent.get(part.device, 0.0) + part.seconds
        roofs = self._figures.device(max(spent, key=lambda each: spent[each])) if spent else None
        return roofs.compute.value / roofs.bandwidth.value if roofs else 0.0

    def _roof_seconds(self, phase: Phase, bound: Resource) -> float:
        """What the phase would take if the roof were reached: all its operations, all its bytes, or the longer of both, s."""
        total = 0.0
        for device in {part.device for part in phase.parts}:
            roofs = self._figures.device(device)
            if roofs is None:
                continue
            mine = [part for part in phase.parts if part.device == device]
            computing = sum(part.operations for part in mine) / roofs.compute.value
            reading = sum(part.n_bytes for part in mine) / roofs.bandwidth.value
            match bound:
                case "compute":
                    total += computing
                case "memory bandwidth":
                    total += reading
                case _:
                    total += max(computing, reading)
        return total


RESOURCES: Final[tuple[Resource, ...]] = get_args(Resource)


def predict(model: ModelSpec, config: RunConfig, workload: Workload, ceilings: Ceilings) -> Prediction:
    """One configuration of one model for one workload; see `Predictor.predict`, which is cheaper for many."""
    return Predictor(ceilings).predict(model, config, workload)


def _settle_batches(model: ModelSpec, config: RunConfig) -> tuple[int, int]:
    geometry = settle_geometry(model, config)
    if geometry is not None:
        return max(1, geometry.batch), max(1, geometry.ubatch)
    batch = max(1, config.batch_size)
    return batch, min(batch, config.ubatch_size or batch)


def _merge(times: Iterable[tuple[Sequence[Part], float]]) -> tuple[Part, ...]:
    sums: dict[tuple[str, str, str, str], list[float]] = {}
    first: dict[tuple[str, str, str, str], Part] = {}
    for parts, weight in times:
        for part in parts:
            key = (part.cause, part.figure, part.device, part.resource)
            first.setdefault(key, part)
            total = sums.setdefault(key, [0.0, 0.0, 0.0, 0.0])
            total[0] += weight * part.seconds
            total[1] += weight * part.seconds * part.spread
            total[2] += weight * part.operations
            total[3] += weight * part.n_bytes
    return tuple(
        msgspec.structs.replace(
            first[key], seconds=seconds, spread=erring / seconds if seconds else 0.0, operations=operations, n_bytes=n_bytes
        )
        for key, (seconds, erring, operations, n_bytes) in sums.items()
    )


def _list_doubts(phase: Phase) -> list[str]:
    """Doubts about figures that matter to the phase's time; a figure that is missing altogether always matters."""
    return [
        part.marked
        for part in phase.parts
        if part.marked and (part.seconds >= NOTEWORTHY * phase.seconds or part.seconds == 0.0)
    ]


def _combine(ttft: Estimate, tpot: Estimate, steps: int) -> Estimate:
    """Ends add up: what makes one phase slower than predicted most often slows the other as well."""
    return Estimate(
        value=ttft.value + steps * tpot.value,
        low=ttft.low + steps * tpot.low,
        high=ttft.high + steps * tpot.high,
        basis=ttft.basis,
    )


def _invert(time: Estimate, amount: float) -> Estimate:
    return Estimate(value=amount / time.value, low=amount / time.high, high=amount / time.low, basis=time.basis)
