"""USR06: which threads make the tokens of several users."""

from __future__ import annotations

from typing import ClassVar

from tuner.hardware import HardwareProfile
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import find_best_change
from tuner.rules.machine.busy_neighbours import count_free_cores


class ParallelThreads(Rule):
    """llama.cpp has two thread counts. `threads` is used while a single token is computed, which happens only as long as one
    conversation is active. As soon as several tokens are computed together, `threads_batch` is used: when a prompt is read, and
    also when output is made for two or more users at once. So with many users it is `threads_batch` that sets the speed of the
    output, and tuning `threads` does nothing.

    The rule predicts the throughput of your slots for the thread counts that this process may use, and proposes another
    `threads_batch` where it should be clearly better.

    When this is wrong: with all layers on a GPU neither count matters much. When users are rarely active at the same moment,
    `threads` is used most of the time. On a machine that does other work leave cores for it, whatever the prediction says.
    """

    code: ClassVar[str] = "USR06"
    title: ClassVar[str] = "Threads for several users at once"
    symptoms: ClassVar[frozenset[str]] = frozenset({"many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config, limits = situation.config, situation.hardware.limits
        if config.parallel < 2 or config.threads_batch == 0 or situation.hardware == HardwareProfile():
            return ()
        free = count_free_cores(situation.hardware)
        counts = (free, free if free < limits.usable_physical else limits.usable_threads)
        best = find_best_change(situation, [{"threads_batch": count} for count in dict.fromkeys(counts)], "throughput")
        if best is None:
            return ()
        change, expected = best
        finding = Finding(
            code=self.code,
            title="The threads that make the output of several users are too few or too many.",
            severity="slows",
            evidence=(
                Evidence(what="slots", value=config.parallel, unit="slots", basis="measured"),
                Evidence(
                    what="threads for several tokens at once", value=config.threads_batch, unit="threads", basis="measured"
                ),
                Evidence(what="threads for one token", value=config.threads, unit="threads", basis="measured"),
                Evidence(what="physical cores of this process", value=limits.usable_physical, unit="cores", basis="measured"),
            ),
            change=change,
            remedy=f"Set threads_batch to {change['threads_batch']}; threads is not used while several users are active.",
            expected=expected,
        )
        return (finding,)
