"""MAC07: fast and slow cores work together."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import expect_gain
from tuner.rules.points import is_possible


class HybridCores(Rule):
    """Many processors have two kinds of cores: fast ones for what is urgent, slow ones for the rest. llama.cpp gives each
    thread the same share of the work, and all wait for the last. With one thread on a slow core the fast ones run at the slow
    one's speed. So fewer threads, on the fast cores only, are usually quicker.

    The rule speaks when more threads are set for writing the answer than there are fast cores. The remedy is as many threads as
    fast cores. To be sure that they run there, start with `taskset -c` and the numbers of those processors, which are given.

    When this is wrong: reading a prompt (`threads_batch`) can gain from the slow cores, because it divides the work more
    finely, which is why only `threads` is proposed. Where memory is the limit, a few more threads neither help nor harm.
    """

    code: ClassVar[str] = "MAC07"
    title: ClassVar[str] = "Fast and slow cores"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        cpu, threads = situation.hardware.cpu, situation.config.threads
        fast, slow = cpu.performance_cores, cpu.efficiency_cores
        if not fast or not slow or threads <= fast:
            return ()
        change: dict[str, Any] = {"threads": min(fast, situation.hardware.limits.usable_threads)}
        if situation.config.threads_batch == 0:
            change["threads_batch"] = threads
        pinned = (
            f" Start with `taskset -c {_list_ranges(cpu.performance_cpus)}` to keep them there." if cpu.performance_cpus else ""
        )
        finding = Finding(
            code=self.code,
            title="Some threads run on slow cores, and the fast ones wait for them.",
            severity="slows",
            evidence=(
                Evidence(what="fast cores", value=fast, unit="cores", basis="measured"),
                Evidence(what="slow cores", value=slow, unit="cores", basis="measured"),
                Evidence(what="threads that write the answer", value=threads, unit="threads", basis="measured"),
            ),
            change=change if is_possible(situation, change) else {},
            remedy=f"Set threads to {change['threads']}.{pinned}",
            expected=expect_gain(situation, change, "tpot"),
        )
        return (finding,)


def _list_ranges(numbers: tuple[int, ...]) -> str:
    """(0, 1, 2, 3, 6) as taskset takes it: 0-3,6."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
