"""DEC04: more threads than this process has cores for."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.hardware import HardwareProfile
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import expect_gain


class ThreadsAboveCores(Rule):
    """For every token all threads meet several hundred times, and all wait for the last one. A thread that has no core of its
    own is always the last one. So more threads than free cores do not help a little less: they ruin the speed. Reports tell of
    a fortieth of the speed with eight threads where a container's quota allowed four.

    The rule compares your thread counts with what this process may really use: the cores that the system lets it run on, and
    the processor time that a container grants (its quota). `threads` is used while one token at a time is made, that is while
    an answer is written to one user; `threads_batch` while many are computed at once, that is while a prompt is read, and with
    several users. Two hardware threads of one core share its arithmetic and its way to memory, so `threads` should not exceed
    the physical cores. The remedy is to set `threads` to the number of physical cores that are yours, and `threads_batch` to no
    more than may run at once.

    When this is wrong: on some processors a second thread per core reads prompts a little faster, which is why `threads_batch`
    is only held against the limit of this process. A quota that is raised later, or a virtual machine that hides how its cores
    are shared, changes the right number; then measure it.
    """

    code: ClassVar[str] = "DEC04"
    title: ClassVar[str] = "More threads than cores or quota"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output", "slow-start", "many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        machine, config = situation.hardware, situation.config
        if machine == HardwareProfile() or config.threads == 0:
            return ()
        limits = machine.limits
        cores = max(1, min(limits.usable_physical, limits.usable_threads))
        change: dict[str, Any] = {}
        if config.threads > cores:
            change["threads"] = cores
        if config.threads_batch > limits.usable_threads:
            change["threads_batch"] = limits.usable_threads
        if not change:
            return ()
        above_limit = max(config.threads, config.threads_batch) > limits.usable_threads
        settings = " and ".join(f"{name} to {value}" for name, value in change.items())
        finding = Finding(
            code=self.code,
            title="More threads are set than this process has processor time for."
            if above_limit
            else "More threads are set than there are physical cores to run them on.",
            severity="slows",
            evidence=(*_tell_counts(situation), *_tell_limits(machine)),
            change=change,
            remedy=f"Set {settings}.",
            expected=None if above_limit else _expect(situation, change),
        )
        return (finding,)


def _expect(situation: Situation, change: dict[str, Any]) -> Expected | None:
    """Only where the machine was calibrated with that many threads; beyond its limit nobody can say how bad it gets."""
    expected = expect_gain(situation, change, "tpot" if situation.config.parallel == 1 else "ttft")
    return expected if expected is not None and expected.ratio > 1 else None


def _tell_counts(situation: Situation) -> tuple[Evidence, ...]:
    config = situation.config
    return (
        Evidence(what="threads that write the answer", value=config.threads, unit="threads", basis="measured"),
        Evidence(what="threads that read the prompt", value=config.threads_batch, unit="threads", basis="measured"),
    )


def _tell_limits(machine: HardwareProfile) -> tuple[Evidence, ...]:
    limits = machine.limits
    found = [
        Evidence(what="physical cores of this process", value=limits.usable_physical, unit="cores", basis="measured"),
        Evidence(what="threads that may run at once", value=limits.usable_threads, unit="threads", basis="measured"),
    ]
    if limits.cpu_quota is not None:
        found.append(Evidence(what="processor time granted", value=limits.cpu_quota, unit="CPUs", basis="measured"))
    return tuple(found)
