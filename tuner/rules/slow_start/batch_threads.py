"""PRE03: too few or too many threads read the prompt."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.hardware import HardwareProfile
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import find_best_change, predict_point
from tuner.rules.figures import tell_figure
from tuner.rules.machine.busy_neighbours import count_free_cores
from tuner.rules.points import change_point, is_possible


class BatchThreads(Rule):
    """Reading a prompt is pure arithmetic, and arithmetic is shared well: twice the cores read it almost twice as fast. How
    many threads do it is set by `threads_batch`, apart from `threads`, which is for writing an answer to one user. Some
    programs start with one thread, or with half the cores, and leave the rest of the processor idle.

    When this machine was calibrated (`rooftune calibrate`), the rule compares predicted times for the thread counts that this
    process may use. Without that it speaks only where fewer threads are set than there are physical cores to use, and then
    assumes that two thirds of the added cores turn into speed. More threads than may run at once are the business of DEC04.

    When this is wrong: on processors with fast and slow cores the slow ones can hold up the fast ones, and a machine that does
    other work at the same time has fewer cores free than it has. On a GPU with all layers there, these threads hardly matter.
    """

    code: ClassVar[str] = "PRE03"
    title: ClassVar[str] = "Thread count for reading prompts"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start", "many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config, machine = situation.config, situation.hardware
        limits = machine.limits
        if machine == HardwareProfile() or config.threads_batch == 0 or config.threads_batch > limits.usable_threads:
            return ()
        found = self._predict(situation) or self._assume(situation)
        if found is None:
            return ()
        change, expected = found
        more = change["threads_batch"] > config.threads_batch
        finding = Finding(
            code=self.code,
            title=f"Too {'few' if more else 'many'} threads read the prompt.",
            severity="slows",
            evidence=(
                *tell_figure(situation, "ttft"),
                Evidence(what="threads that read the prompt", value=config.threads_batch, unit="threads", basis="measured"),
                Evidence(what="physical cores of this process", value=limits.usable_physical, unit="cores", basis="measured"),
            ),
            change=change,
            remedy=f"Set threads_batch to {change['threads_batch']}.",
            expected=expected,
            costs="The processor is busier while it reads a prompt." if more else "",
        )
        return (finding,)

    def _predict(self, situation: Situation) -> tuple[dict[str, Any], Expected] | None:
        limits, free = situation.hardware.limits, count_free_cores(situation.hardware)
        most = free if free < limits.usable_physical else limits.usable_threads
        counts = dict.fromkeys((free, most, free // 2))
        return find_best_change(situation, [{"threads_batch": count} for count in counts if count >= 1], "ttft")

    def _assume(self, situation: Situation) -> tuple[dict[str, Any], Expected] | None:
        """Amdahl-like: two thirds of the added cores count, between one third and all of them."""
        config, cores = situation.config, count_free_cores(situation.hardware)
        change = {"threads_batch": cores}
        if predict_point(situation, config) is not None or config.threads_batch >= cores or not is_possible(situation, change):
            return None
        if change_point(situation, change).n_gpu_layers != 0:
            return None
        added = cores / config.threads_batch - 1
        ratio, low, high = (1 + added * share for share in (2 / 3, 1 / 3, 1.0))
        return change, Expected(metric="ttft", ratio=ratio, low=low, high=high, basis="assumed")
