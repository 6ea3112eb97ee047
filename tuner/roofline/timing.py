"""The time of one batch, part by part: the sum that `ceilings` states, each part with what binds it.

What binds a part is read off the roofline (Williams, Waterman, Patterson, 2009): its operations against the device's fastest
multiplying, its bytes against the device's fastest reading, and the roof that would take longer has the part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from tuner.memory.cache import attends_flash
from tuner.memory.record import HOST
from tuner.model.spec import ModelSpec
from tuner.roofline.ceilings import Ceilings, Figure
from tuner.roofline.figures import Figures, widen
from tuner.roofline.layout import Layout, lay_out
from tuner.roofline.record import Resource
from tuner.roofline.work import (
    Batch,
    HistoryWork,
    WeightWork,
    count_history,
    count_states,
    count_waste,
    count_weights,
    sum_weights,
)
from tuner.runconfig import RunConfig

Cause = Literal["weights", "history", "state", "layers", "step", "link"]

_STATE_SPREAD: Final = 0.5
"""Added to a recurrent layer's own work, which no calibration times: it is taken to cost what attention costs an operation."""
_F32: Final = 4


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Time that goes to one thing."""

    cause: Cause
    """What for."""
    figure: str
    """Which figure it rests on (a format, a device); parts of one figure err together."""
    device: str
    """Where."""
    resource: Resource
    """What binds it."""
    seconds: float
    """Its time, s."""
    spread: float = 0.0
    """Relative standard deviation."""
    operations: float = 0.0
    """Multiplications and additions."""
    n_bytes: float = 0.0
    """Weights, KV and state read there, bytes."""
    marked: str = ""
    """Why it is doubtful; "" when it is not."""


class BatchTimer:
    """Times batches of one model under one configuration. Pure but for what it has computed already."""

    def __init__(self, model: ModelSpec, config: RunConfig, ceilings: Ceilings, figures: Figures | None = None) -> None:
        """Raises BadInputError where the file tells too little, or a device has no figures."""
        self.layout: Layout = lay_out(model, config, ceilings)
        self.figures = figures or Figures(ceilings)
        self._config = config
        self._flash = attends_flash(model, config)
        self._steady: dict[tuple[int, int], tuple[Part, ...]] = {}
        self._weights = sum_weights(self.layout)

    def time(self, batch: Batch) -> tuple[Part, ...]:
        """The parts of one batch."""
        tokens = batch.tokens
        key = (tokens, batch.outputs)
        if key not in self._steady:
            self._steady[key] = tuple(self._time_steady(*key))
        moving = [self._time_history(work, tokens, len(batch.segments)) for work in count_history(self.layout, batch)]
        moving += [self._time_state(work, tokens) for work in count_states(self.layout, batch)]
        return (*self._steady[key], *moving)

    def _threads(self, tokens: int) -> int:
        """llama-context.cpp: `threads` while a batch has one token, `threads_batch` otherwise."""
        config = self._config
        return config.threads if tokens == 1 else config.threads_batch or config.threads

    def _time_steady(self, tokens: int, outputs: int) -> Iterable[Part]:
        """What does not depend on the history."""
        for work in count_weights(self.layout, tokens, outputs):
            yield self._time_weights(work, tokens)
        yield from self._time_layers(tokens)
        yield from self._time_links(tokens, outputs)

    def _time_weights(self, work: WeightWork, tokens: int) -> Part:
        threads = self._threads(tokens)
        figure = self.figures.weight(work.device, work.format, threads, work.tokens, routed=work.routed)
        there = self._weights.get(work.device, 0.0)
        cached = self.figures.reading(work.device, work.format, threads, work.tokens, there)
        return Part(
            cause="weights",
            figure=work.format,
            device=work.device,
            resource=self._bind(work.device, work.operations, work.n_bytes),
            seconds=work.n_bytes * figure.value * cached.value,
            spread=math.hypot(figure.spread, cached.spread),
            operations=work.operations,
            n_bytes=work.n_bytes,
            marked=figure.marked,
        )

    def _time_history(self, work: HistoryWork, tokens: int, sequences: int) -> Part:
        """Each sequence looks back at its own cache, so a batch of many slots is no large batch here."""
        threads = self._threads(tokens)
        figure = self._attend(work.device, threads, work.tokens, work.head_size)
        waste = count_waste(round(work.tokens), work.heads * sequences, threads) if work.heads else 1.0
        return self._spend(work, msgspec.structs.replace(figure, value=figure.value * waste), "history")

    def _time_state(self, work: HistoryWork, tokens: int) -> Part:
        note = "The recurrent layers' own work is not calibrated: each operation is taken to cost what one of attention does."
        figure = self._attend(work.device, self._threads(tokens), tokens)
        return self._spend(work, widen(figure, _STATE_SPREAD, note), "state")

    def _attend(self, device: str, threads: int, tokens: float, head_size: int = 0) -> Figure:
        return self.figures.attention(
            device, self._config, flash_attn=self._flash, threads=threads, tokens=tokens, head_size=head_size
        )

    def _spend(self, work: HistoryWork, figure: Figure, cause: Cause) -> Part:
        return Part(
            cause=cause,
            figure="attention",
            device=work.device,
            resource=self._bind(work.device, work.operations, work.n_bytes),
            seconds=work.operations * figure.value,
            spread=figure.spread,
            operations=work.operations,
            n_bytes=work.n_bytes,
            marked=figure.marked,
        )

    def _bind(self, device: str, operations: float, n_bytes: float) -> Resource:
        """The roof that would take longer by itself."""
        roofs = self.figures.device(device)
        if roofs is None:
            return "memory bandwidth"
        return "compute" if operations / roofs.compute.value > n_bytes / roofs.bandwidth.value else "memory bandwidth"

    def _time_layers(self, tokens: int) -> Iterable[Part]:
        layout, threads = self.layout, self._threads(tokens)
        for device, count in layout.layers.items():
            figure = self.figures.layer(device, threads, tokens, layout.width)
            yield _overhead("layers", device, count * figure.value, figure)
        for device in {**layout.layers, layout.output_device: 0}:
            figure = self.figures.step(device, threads, tokens)
            yield _overhead("step", device, figure.value, figure)

    def _time_links(self, tokens: int, outputs: int) -> Iterable[Part]:
        """Hidden states there, logits back; weights that a device fetches instead of leaving them to the CPU.

        The way back from the output's device carries logits alone.
        """
        layout = self.layout
        fetched: Counter[str] = Counter()
        for work in count_weights(layout, tokens, outputs):
            fetched[work.device] += round(work.fetched)
        helped = fetched.total() > 0
        for device, jumps in layout.jumps.items():
            trips = layout.cache_trips.get(device, 0) + (0 if helped else layout.expert_trips.get(device, 0))
            last = device == layout.output_device
            logits = outputs * layout.n_vocab * _F32 if last else 0
            hidden = (jumps - last + trips) * tokens * layout.width * _F32
            yield self._cross(device, jumps + trips, hidden + logits + fetched[device])

    def _cross(self, device: str, jumps: int, n_bytes: float) -> Part:
        link, shared = self.figures.link(device), HOST in self.layout.layers
        if link is None:
            note = f"The way to {device} has no figures and counts nothing." if shared else ""
            return Part(cause="link", figure=device, device=device, resource="link", seconds=0.0, marked=note)
        moving, waiting = n_bytes / link.bytes_per_s.value, jumps * link.latency_s.value
        seconds = moving + waiting
        return Part(
            cause="link",
            figure=device,
            device=device,
            resource="link",
            seconds=seconds,
            spread=(moving * link.bytes_per_s.spread + waiting * link.latency_s.spread) / seconds if seconds else 0.0,
            marked=link.bytes_per_s.marked or link.latency_s.marked,
        )


def _overhead(cause: Cause, device: str, seconds: float, figure: Figure) -> Part:
    return Part(
        cause=cause,
        figure=cause,
        device=device,
        resource="fixed overhead",
        seconds=seconds,
        spread=figure.spread,
        marked=figure.marked,
    )
