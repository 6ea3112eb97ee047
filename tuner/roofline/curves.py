"""How a prediction changes with the length of the history, the number of slots and the length of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tuner.model.spec import ModelSpec
from tuner.roofline.ceilings import Ceilings
from tuner.roofline.prediction import Predictor
from tuner.roofline.record import Estimate, Resource
from tuner.roofline.work import step_batch
from tuner.runconfig import RunConfig
from tuner.workload import Workload

DEPTHS: Final = (0, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SLOTS: Final = (1, 2, 4, 8, 16, 32, 64)
MOST_SLOTS: Final = 256
WORTH: Final = 1.1
"""A doubling of slots that brings less throughput than this is not worth what each user pays for it."""
_MOST_PROMPT: Final = 2**20


class DepthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One token after a history."""

    depth_tokens: int
    """Tokens in the cache, per slot."""
    tpot: Estimate
    """Time of the next token, ms."""
    history_share: float
    """Share of that time spent on the history, 0 to 1."""


class SlotPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Several slots decoding together."""

    slots: int
    """How many."""
    tpot: Estimate
    """Time of each user's next token, ms."""
    throughput: Estimate
    """Tokens per second over all slots."""
    bound: Resource
    """What most of the step goes to."""
    reached: float
    """Share of that limit that is reached, 0 to 1."""
    history_share: float
    """Share of the step spent on the history, 0 to 1."""


def find_worthwhile(rates: Sequence[tuple[int, float]]) -> int:
    """Index of the last number of slots that is worth it, from (slots, tokens per second together) in ascending order.

    Throughput has to grow by `WORTH` for a doubling, and in proportion for less.
    """
    worth = 0
    for index, (slots, rate) in enumerate(rates[1:], start=1):
        before, reached = rates[worth]
        if rate < reached * (1 + (WORTH - 1) * min(1.0, slots / before - 1)):
            break
        worth = index
    return worth


def predict_depths(
    model: ModelSpec, config: RunConfig, ceilings: Ceilings, *, depths: Sequence[int] = DEPTHS
) -> tuple[DepthPoint, ...]:
    """TPOT over the history, up to the model's training context. Raises BadInputError as `predict` does."""
    predictor = Predictor(ceilings)
    timer = predictor.open_timer(model, config)
    most = model.context_length or max(depths, default=0)
    points = []
    for depth in depths:
        if depth > most:
            break
        tpot, phase = predictor.estimate_step(timer, depth, max(1, config.parallel))
        points.append(DepthPoint(depth_tokens=depth, tpot=tpot, history_share=phase.attention_share))
    return tuple(points)


def predict_slots(
    model: ModelSpec, config: RunConfig, workload: Workload, ceilings: Ceilings, *, slots: Sequence[int] = SLOTS
) -> tuple[SlotPoint, ...]:
    """What more slots bring and cost, each with the workload's history. Raises BadInputError as `predict` does."""
    predictor = Predictor(ceilings)
    return tuple(_predict_slot(predictor, model, config, workload, count) for count in slots)


def find_batch_knee(model: ModelSpec, config: RunConfig, ceilings: Ceilings, *, most: int = MOST_SLOTS) -> int | None:
    """Slots from which on most of the weights' time goes to computing, not to reading; None where it never does up to `most`.

    Until there a further slot shares the reading of the weights at nearly no cost; after it each one takes its own time. The
    history is left out: each slot reads its own, so it is never shared (Pope et al., Efficiently Scaling Transformer Inference,
    2022).
    """
    predictor = Predictor(ceilings)

    def computes(slots: int) -> bool:
        timer = predictor.open_timer(model, config.replace(parallel=slots))
        weights = [part for part in timer.time(step_batch(0, slots)) if part.cause == "weights"]
        computing = sum(part.seconds for part in weights if part.resource == "compute")
        return 2 * computing > sum(part.seconds for part in weights)

    return next((slots for slots in range(1, most + 1) if computes(slots)), None)


def longest_prompt_within(
    model: ModelSpec, config: RunConfig, workload: Workload, ceilings: Ceilings, *, ttft_ms: float
) -> int:
    """The most prompt tokens that are read within `ttft_ms` at the workload's depth; 0 where not even one is.

    At most what a slot's context leaves beside history and answer. Raises BadInputError as `predict` does.
    """
    predictor = Predictor(ceilings)
    timer = predictor.open_timer(model, config)
    room = (config.ctx_size or model.context_length or _MOST_PROMPT) // max(1, config.parallel)
    low, high = 0, min(_MOST_PROMPT, max(0, room - workload.depth_tokens - workload.output_tokens))
    while low < high:
        middle = (low + high + 1) // 2
        tried = msgspec.structs.replace(workload, prompt_tokens=middle)
        keeps = predictor.time_prefill(timer, model, config, tried).seconds * 1e3 <= ttft_ms
        low, high = (middle, high) if keeps else (low, middle - 1)
    return low


def _predict_slot(predictor: Predictor, model: ModelSpec, config: RunConfig, workload: Workload, slots: int) -> SlotPoint:
    """Each slot keeps the context that it has in `config`."""
    each = (config.ctx_size or 0) // max(1, config.parallel)
    point = config.replace(parallel=slots, ctx_size=each * slots)
    history = workload.middle_history
    tpot, phase = predictor.estimate_step(predictor.open_timer(model, point), history, slots)
    rate = slots * 1e3
    throughput = Estimate(value=rate / tpot.value, low=rate / tpot.high, high=rate / tpot.low, basis=tpot.basis)
    return SlotPoint(
        slots=slots,
        tpot=tpot,
        throughput=throughput,
        bound=phase.bound,
        reached=phase.reached,
        history_share=phase.attention_share,
    )
