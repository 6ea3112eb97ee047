"""The timed part: reading the prompts, choosing the first token, and writing further tokens one step at a time.

Inside the timed regions nothing is built, and Python's garbage collector rests.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import msgspec

from tuner.engines.llama_cpp_python.batches import Batch
from tuner.engines.llama_cpp_python.context import Context


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What one timed region took."""

    wall_ms: float
    """Wall time, ms."""
    cpu_s: float
    """Processor time of this process, all threads, s."""
    step_ms: tuple[float, ...] = ()
    """Wall time of each decode step, ms."""
    first_tokens: tuple[int, ...] = ()
    """The token chosen first for each slot, in the order of their prompts."""


def time_prefill(context: Context, batches: list[Batch], n_vocab: int) -> Timing:
    """From submitting the first batch to the last slot's first token chosen (the likeliest one).

    Batches without a prompt's end are not waited for, so that a device may overlap them.
    """
    import numpy as np

    chosen: list[int] = []
    with _resting_collector():
        cpu, start = time.process_time(), time.perf_counter_ns()
        for batch in batches:
            context.decode(batch)
            chosen += [int(np.argmax(view_logits(context, index, n_vocab))) for index in batch.outputs]
        context.synchronize()
        wall, spent = time.perf_counter_ns() - start, time.process_time() - cpu
    return Timing(wall_ms=wall / 1e6, cpu_s=spent, first_tokens=tuple(chosen))


def time_decode(context: Context, batches: list[Batch]) -> Timing:
    """One step a batch, each waited for."""
    ends = [0] * (len(batches) + 1)
    clock, decode, synchronize = time.perf_counter_ns, context.decode, context.synchronize
    with _resting_collector():
        cpu = time.process_time()
        ends[0] = clock()
        for step, batch in enumerate(batches, start=1):
            decode(batch)
            synchronize()
            ends[step] = clock()
        spent = time.process_time() - cpu
    steps = tuple((after - before) / 1e6 for before, after in pairwise(ends))
    return Timing(wall_ms=(ends[-1] - ends[0]) / 1e6, cpu_s=spent, step_ms=steps)


def view_logits(context: Context, index: int, n_vocab: int) -> Any:
    """The logits of the batch's token `index` as an array over llama.cpp's own memory."""
    import numpy as np

    pointer = ctypes.cast(context.get_logits(index), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, shape=(n_vocab,))


@contextmanager
def _resting_collector() -> Generator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
