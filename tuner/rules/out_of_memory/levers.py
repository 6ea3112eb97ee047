"""What can be changed to need less memory, cheapest in speed and quality first, and the cheapest way that fits.

A lever is tried mild to strong. Levers that cost this workload nothing come first and may be pulled together; of those that
cost something one by itself is preferred to several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tuner.memory import TARGET_CONTEXT
from tuner.rules.base import Evidence, Expected, Situation
from tuner.rules.expectation import predict_point
from tuner.rules.points import change_point, count_memory, find_obstacle
from tuner.runconfig import CACHE_TYPES, RunConfig, pad256

Change = dict[str, Any]
"""Settings by RunConfig's names."""

_UBATCHES: Final = (256, 128, 64)
_CAREFUL: Final = "q8_0"
_STEPS: Final = 512
"""Contexts tried at most between what is asked for and what the workload needs."""


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change."""

    code: str
    """The rule that explains it."""
    name: str
    """In plain words, as a subject ("8-bit KV cache")."""
    list_changes: Callable[[Situation, RunConfig], Sequence[Change]]
    """From a point: changes, mild to strong; () where there is nothing to pull."""
    is_free: bool
    """It costs this workload neither speed nor quality."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A lever pulled so far."""

    lever: Lever
    """Which."""
    change: Change
    """How far."""
    freed_bytes: int
    """What it frees by itself where memory is short, bytes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest way to make it fit."""

    steps: tuple[Step, ...]
    """What to do, cheapest first; at least one."""

    @property
    def change(self) -> Change:
        """All settings together."""
        return _join(self.steps)


def fits(situation: Situation) -> bool:
    """The point in question fits, as far as anybody can say."""
    return situation.find_misfit(change_point(situation, {})) is None


def is_short(situation: Situation) -> bool:
    """Memory is what it is about: the point does not fit, or the user ran out of it."""
    return situation.symptom == "out-of-memory" or not fits(situation)


def find_plan(situation: Situation) -> Plan | None:
    """The cheapest way to fit; None where it fits already or no setting makes it fit."""
    if fits(situation):
        return None
    free = _pull(situation, (), [lever for lever in LEVERS if lever.is_free])
    if _works(situation, free):
        return _prune(situation, free)
    for lever in LEVERS:
        last = None if lever.is_free else _find_step(situation, free, lever)
        if last is not None and _works(situation, (*free, last)):
            return _prune(situation, (*free, last))
    every = _pull(situation, (), LEVERS)
    return _prune(situation, every) if _works(situation, every) else None


def find_step(situation: Situation, code: str) -> tuple[Step, bool] | None:
    """The step of this rule in the cheapest way, and whether it suffices by itself. Where memory ran out although the sums say
    that it fits, any step that costs nothing; None otherwise.
    """
    plan = find_plan(situation)
    if plan is not None:
        found = next((step for step in plan.steps if step.lever.code == code), None)
        return None if found is None else (found, len(plan.steps) == 1)
    lever = next(each for each in LEVERS if each.code == code)
    if situation.symptom != "out-of-memory" or not lever.is_free or not fits(situation):
        return None
    step = _find_step(situation, (), lever)
    return None if step is None or step.freed_bytes <= 0 else (step, True)


def list_steps(situation: Situation) -> tuple[Step, ...]:
    """Every lever by itself, as far as it is needed or goes, cheapest first; those that free nothing are left out."""
    steps = (_find_step(situation, (), lever) for lever in LEVERS)
    return tuple(step for step in steps if step is not None and step.freed_bytes > 0)


def find_tight_place(situation: Situation) -> str | None:
    """The memory that is too small, by llama.cpp's device names; None where all are large enough or shared."""
    if situation.budget.unified:
        return None
    footprint = count_memory(situation, change_point(situation, {}))
    for device in footprint.devices:
        available = situation.budget.on(device)
        if available is not None and _count(situation, change_point(situation, {}), device) > available:
            return device
    return None


def count_bytes(situation: Situation, config: RunConfig) -> int:
    """What a point takes where memory is short, or in all, bytes: at least that."""
    return _count(situation, config, find_tight_place(situation))


def tell_step(step: Step) -> Evidence:
    """What a step frees, as evidence."""
    return Evidence(what=f"{step.lever.name} frees", value=step.freed_bytes, unit="bytes", basis="predicted")


def expect_memory(situation: Situation, change: Change) -> Expected | None:
    """How many times less memory the change takes where it is short; arithmetic, so the interval is a point."""
    before, after = (count_bytes(situation, change_point(situation, each)) for each in ({}, change))
    if after <= 0 or before <= after:
        return None
    return Expected(metric="memory", ratio=before / after, low=before / after, high=before / after)


def _count(situation: Situation, config: RunConfig, place: str | None) -> int:
    footprint = count_memory(situation, config)
    parts = [part for part in footprint.parts if part.basis != "at most" and place in (None, part.device)]
    return sum(part.n_bytes or 0 for part in parts)


def _join(steps: Sequence[Step]) -> Change:
    return {name: value for step in steps for name, value in step.change.items()}


def _works(situation: Situation, steps: Sequence[Step]) -> bool:
    return bool(steps) and find_obstacle(situation, change_point(situation, _join(steps))) is None


def _is_taken(situation: Situation, config: RunConfig) -> bool:
    """llama.cpp takes the point, whether it fits or not."""
    blind = msgspec.structs.replace(situation, find_misfit=_find_nothing)
    return find_obstacle(blind, config) is None


def _find_nothing(config: RunConfig) -> None:
    del config


def _find_step(situation: Situation, before: Sequence[Step], lever: Lever) -> Step | None:
    """The mildest pull that fits on top of `before`, else the strongest; None where the lever does not move."""
    base = change_point(situation, _join(before))
    changes = [each for each in lever.list_changes(situation, base) if _moves(situation, before, each)]
    if not changes:
        return None
    points = [change_point(situation, _join(before) | each) for each in changes]
    low, high = 0, len(changes) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if situation.find_misfit(points[middle]) is None else (middle + 1, high)
    place = find_tight_place(situation)
    freed = _count(situation, base, place) - _count(situation, points[low], place)
    return Step(lever=lever, change=dict(changes[low]), freed_bytes=freed)


def _moves(situation: Situation, before: Sequence[Step], change: Change) -> bool:
    base, point = change_point(situation, _join(before)), change_point(situation, _join(before) | change)
    return point != base and _is_taken(situation, point)


def _pull(situation: Situation, before: Sequence[Step], levers: Sequence[Lever]) -> tuple[Step, ...]:
    steps = tuple(before)
    for lever in levers:
        if _works(situation, steps):
            break
        step = _find_step(situation, steps, lever)
        if step is not None and step.freed_bytes > 0:
            steps = (*steps, step)
    return steps


def _prune(situation: Situation, steps: tuple[Step, ...]) -> Plan:
    """Without the steps that the others make needless, the dearest dropped first."""
    for step in reversed(steps):
        rest = tuple(each for each in steps if each is not step)
        if _works(situation, rest):
            steps = rest
    return Plan(steps=steps)


def _keep_windows(situation: Situation, config: RunConfig) -> Sequence[Change]:
    return [{"swa_full": False}] if situation.model.n_swa is not None and config.swa_full else []


def _attend_flash(situation: Situation, config: RunConfig) -> Sequence[Change]:
    return [{"flash_attn": "on"}] if config.flash_attn == "off" and not situation.model.flash_attn_forced_off else []


def _leave_training_context(situation: Situation, config: RunConfig) -> Sequence[Change]:
    trained, need = situation.model.context_length, pad256(situation.workload.tokens_per_slot)
    slots = max(1, config.parallel)
    asked = config.ctx_size or (trained or 0) * slots
    if trained is None or asked < trained:
        return []
    sizes = sorted({max(need, size) for size in (2 * TARGET_CONTEXT, TARGET_CONTEXT, need)}, reverse=True)
    return [{"ctx_size": size * slots} for size in sizes if size * slots < asked]


def _drop_idle_slots(situation: Situation, config: RunConfig) -> Sequence[Change]:
    users, slots = max(1, situation.workload.users), config.parallel
    return [{"parallel": users, "ctx_size": config.ctx_size // slots * users}] if slots > users and config.ctx_size else []


def _shrink_micro_batch(situation: Situation, config: RunConfig) -> Sequence[Change]:
    del situation
    return [{"ubatch_size": size} for size in _UBATCHES if size < config.ubatch_size]


def _quantise_cache(situation: Situation, config: RunConfig) -> Sequence[Change]:
    """Both halves in eight bits, never less; flash attention with it, which a quantised V needs."""
    precise = all(CACHE_TYPES.index(kind) < CACHE_TYPES.index(_CAREFUL) for kind in (config.cache_type_k, config.cache_type_v))
    if not precise or not situation.model.has_kv or situation.model.flash_attn_forced_off:
        return []
    change: Change = {"cache_type_k": _CAREFUL, "cache_type_v": _CAREFUL}
    return [change | ({"flash_attn": "on"} if config.flash_attn == "off" else {})]


def _shrink_context(situation: Situation, config: RunConfig) -> Sequence[Change]:
    """Down to what the workload needs, never below."""
    slots, need = max(1, config.parallel), pad256(situation.workload.tokens_per_slot)
    now = config.ctx_size // slots
    steps = (now - need) // 256
    if not config.ctx_size or steps <= 0 or not situation.model.has_kv:
        return []
    stride = -(-steps // _STEPS)
    sizes = [now - 256 * n for n in range(stride, steps, stride)]
    return [{"ctx_size": size * slots} for size in (*sizes, need)]


def _serve_fewer(situation: Situation, config: RunConfig) -> Sequence[Change]:
    """Some users wait for a slot."""
    del situation
    slots = config.parallel
    if slots < 2 or not config.ctx_size:
        return []
    return [{"parallel": count, "ctx_size": config.ctx_size // slots * count} for count in range(slots - 1, 0, -1)]


def _leave_on_host(situation: Situation, config: RunConfig) -> Sequence[Change]:
    """Layers, or experts where there are some and nothing speaks for whole layers."""
    full = situation.model.full_offload
    if situation.budget.unified or not situation.hardware.devices or full is None or config.n_gpu_layers == 0:
        return []
    now = full if config.n_gpu_layers < 0 else min(full, config.n_gpu_layers)
    layers: list[Change] = [{"n_gpu_layers": count} for count in range(now - 1, -1, -1)]
    experts: list[Change] = [{"n_gpu_layers": full, "n_cpu_moe": n} for n in range(1, len(situation.model.layers) + 1)]
    return experts if situation.model.is_moe and _is_preferred(situation, config, experts, layers) else layers


def _is_preferred(situation: Situation, config: RunConfig, changes: Sequence[Change], others: Sequence[Change]) -> bool:
    """Some of `changes` fits, and no prediction says that the mildest fitting of `others` would write faster."""
    mine, theirs = (_find_mildest(situation, config, each) for each in (changes, others))
    if mine is None or theirs is None:
        return mine is not None
    one, other = predict_point(situation, mine), predict_point(situation, theirs)
    return one is None or other is None or one.tpot.value <= other.tpot.value


def _find_mildest(situation: Situation, config: RunConfig, changes: Sequence[Change]) -> RunConfig | None:
    points = (config.replace(**change) for change in changes)
    return next((point for point in points if situation.find_misfit(point) is None), None)


def _take_smaller_file(situation: Situation, config: RunConfig) -> Sequence[Change]:
    del config
    smaller = [each for each in situation.siblings if each.weights_bytes < situation.model.weights_bytes]
    return [{"model": each.path} for each in sorted(smaller, key=lambda each: -each.weights_bytes)]


LEVERS: Final = (
    Lever(code="MEM04", name="window-only cache for sliding-window layers", list_changes=_keep_windows, is_free=True),
    Lever(code="MEM06", name="flash attention", list_changes=_attend_flash, is_free=True),
    Lever(code="MEM03", name="a chosen context in place of the training context", list_changes=_leave_training_context,
          is_free=True),
    Lever(code="MEM12", name="dropping slots that nobody uses", list_changes=_drop_idle_slots, is_free=True),
    Lever(code="MEM07", name="a smaller micro-batch", list_changes=_shrink_micro_batch, is_free=False),
    Lever(code="MEM05", name="8-bit KV cache", list_changes=_quantise_cache, is_free=False),
    Lever(code="MEM11", name="a context nearer to what the workload needs", list_changes=_shrink_context, is_free=False),
    Lever(code="USR03", name="fewer slots", list_changes=_serve_fewer, is_free=False),
    Lever(code="MEM08", name="layers or experts kept in main memory", list_changes=_leave_on_host, is_free=False),
    Lever(code="MEM13", name="a smaller file of the same model", list_changes=_take_smaller_file, is_free=False),
)  # fmt: skip
"""Cheapest in speed and quality first."""
