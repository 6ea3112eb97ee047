"""Looks whether a child that has ended gave its memory back, before the next one takes its own.

Main memory is free by the time a process is reaped, a GPU's memory somewhat later, and what a process holds that got away is
never free. Promises: nothing is waited for where the memory is there, `LONGEST_S` at most where it is not, and what stays away
is told once, whoever has it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tuner.hardware.cgroups import Granted, read_groups
from tuner.hardware.gpus import probe_gpus
from tuner.hardware.memory import probe_memory
from tuner.hardware.tree import Tree
from tuner.units import format_bytes, format_duration

LONGEST_S: Final = 5.0
"""A driver takes a second or two to clear a large GPU after a kill; what is away for longer stays away, s."""
POLL_S: Final = 0.1
SHARE: Final = 0.02
"""Of what was free before the child started: less than this may be away, as other programs come and go."""
LEAST_BYTES: Final = 2**27
"""Less than this may be away on any machine: we grow ourselves while a study goes on."""
ENGINE_ALONE: Final = 2**28
"""What a child may hold whatever is away, bytes: an engine without a model fits, and its refusal has better words."""
MAIN: Final = "main memory"

ReadFree = Callable[[], Mapping[str, int]]
"""Bytes free by the name of the memory, without those that won't say."""


class Recovery:
    """What was free before a child started, compared with what is free before the next one."""

    def __init__(
        self,
        read: ReadFree,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._read, self._clock, self._sleep, self._longest_s = read, clock, sleep, longest_s
        self._first: Mapping[str, int] = {}
        self._now: Mapping[str, int] = {}
        self._expected: dict[str, int] = {}

    @property
    def lost_bytes(self) -> int:
        """Main memory that was there before the first child and not before the last one, bytes; 0 for what comes and goes."""
        return find_missing(self._first, self._now).get(MAIN, 0)

    def await_memory(self, *, is_stopped: Callable[[], bool] = lambda: False) -> str:
        """To be called before a child starts. Says in one sentence what is still missing; "" before the first, and where all
        is back or `is_stopped` ended the waiting.
        """
        ends = self._clock() + self._longest_s
        self._now = self._read()
        while (missing := find_missing(self._expected, self._now)) and not is_stopped() and self._clock() < ends:
            self._sleep(POLL_S)
            self._now = self._read()
        if missing and is_stopped():
            return ""
        self._first = self._first or self._now
        words = _describe(missing, self._now, self._expected, self._longest_s) if missing else ""
        known = self._expected | dict(self._now)
        self._expected = {
            name: free if name in missing else max(free, self._expected.get(name, 0)) for name, free in known.items()
        }
        return words


def find_missing(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Bytes that are away by the name of the memory, where it is more than what comes and goes. Silence misses nothing."""
    away = {name: free - now[name] for name, free in before.items() if name in now}
    return {name: lost for name, lost in away.items() if lost > max(SHARE * before[name], LEAST_BYTES)}


def lower_ceiling(ceiling_bytes: int, lost_bytes: int) -> int:
    """What the next child may hold where `lost_bytes` of main memory are away, bytes."""
    return max(min(ceiling_bytes, ENGINE_ALONE), ceiling_bytes - lost_bytes)


def read_free(*, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """Main memory, the tightest cgroup's where that is less, and what the NVIDIA driver says of GPUs that CUDA sees, bytes.

    Page cache counts as free in a cgroup too, unlike in a budget: the model file that an ended child has read is no loss.
    """
    tree = Tree(root=root)
    rests = (probe_memory(tree).available_bytes, *map(_rest_of, read_groups(tree)))
    main = min((rest for rest in rests if rest is not None), default=None)
    gpus, _ = probe_gpus(
        environ=os.environ if environ is None else environ, memory_total_bytes=None, memory_available_bytes=None
    )
    free = {f"the memory of GPU {gpu.index}": gpu.memory_free_bytes for gpu in gpus if gpu.cuda_ordinal is not None}
    return {name: size for name, size in ({MAIN: main} | free).items() if size is not None}


def _rest_of(group: Granted) -> int | None:
    free, limit = group.memory_free_bytes, group.memory_bytes
    return None if free is None or limit is None else min(limit, free + group.active_file_bytes)


def _describe(missing: Mapping[str, int], now: Mapping[str, int], before: Mapping[str, int], waited_s: float) -> str:
    amounts = [
        f"{format_bytes(lost)} of {name} ({format_bytes(now[name])} free, {format_bytes(before[name])} before)"
        for name, lost in missing.items()
    ]
    holders = [*(["`top -o %MEM`"] if MAIN in missing else []), *(["`nvidia-smi`"] if set(missing) - {MAIN} else [])]
    return (
        f"{' and '.join(amounts)} did not come back within {format_duration(waited_s)} of the end of the engine's process: "
        f"another program took it, or something of that process lives on; {' and '.join(holders)} shows who holds it, "
        "and until that is ended, runs may be slower or lack memory"
    )
