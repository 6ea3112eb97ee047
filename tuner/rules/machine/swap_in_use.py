"""MAC04: memory is swapped out."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation

_MUCH: Final = 2**29
"""Less than half a gibibyte in swap is what any system leaves there."""


class SwapInUse(Rule):
    """When memory runs short the system writes parts of it to the disk, the swap. What is fetched back from there comes a
    thousand times slower than from memory. If parts of a model or of its KV cache (its notes on the text so far) are swapped
    out, single tokens take seconds.

    The rule speaks when more than half a gibibyte is in swap. It is sure of the harm when tasks are waiting for memory right
    now, and otherwise only says so, because what lies in swap may belong to programs that are asleep. The remedy is to end what
    you do not need, to use a smaller model or context, and then `sudo swapoff -a && sudo swapon -a`, which brings everything
    back. With enough memory `--load-mode mlock` keeps the weights from being swapped.

    When this is wrong: pages of programs that nobody uses may lie in swap for weeks without harm. Compressed swap in memory
    (zram) is much faster than a disk.
    """

    code: ClassVar[str] = "MAC04"
    title: ClassVar[str] = "Swap in use"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        memory, pressure = situation.hardware.memory, situation.hardware.environment.memory_pressure
        used = memory.swap_used_bytes
        if used is None or used < _MUCH:
            return ()
        waiting = pressure is not None and pressure > 0
        told = (
            ("memory to be had", memory.available_bytes, "bytes"),
            ("time in which tasks waited for memory", pressure, "percent"),
        )
        finding = Finding(
            code=self.code,
            title="Memory is so short that parts of it are on the disk."
            if waiting
            else "Some memory has been moved to the disk.",
            severity="slows" if waiting else "hint",
            evidence=(
                Evidence(what="swap in use", value=used, unit="bytes", basis="measured"),
                *(Evidence(what=w, value=value, unit=unit, basis="measured") for w, value, unit in told if value is not None),
            ),
            remedy="End programs that you do not need, then run `sudo swapoff -a && sudo swapon -a` to bring it back.",
        )
        return (finding,)
