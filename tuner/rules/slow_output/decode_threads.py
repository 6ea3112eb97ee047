"""DEC05: another number of threads would write faster."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.hardware import HardwareProfile
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import find_best_change, predict_point
from tuner.rules.figures import tell_figure
from tuner.rules.machine.busy_neighbours import count_free_cores
from tuner.rules.points import is_possible


class DecodeThreads(Rule):
    """While the answer is written, `threads` decides how many cores fetch weights from memory. One core alone can ask for only
    a part of what memory could deliver; each further core adds some, until memory delivers all it can. Beyond that, more
    threads only add waiting for each other. So the best number is often between half of the physical cores and all of them.

    When this machine was calibrated (`rooftune calibrate`), the rule compares predicted times for several counts up to the
    physical cores of this process and proposes the best where it gains clearly. Without that it speaks only where no more than
    half of those cores are used, as some programs do unasked. More threads than cores are the business of DEC04.

    When this is wrong: with all layers on a GPU these threads hardly matter. With several users their tokens are computed
    together, and `threads_batch` counts (USR06). On a machine that other programs keep busy, the cores they use are not counted
    (MAC05); they may be free again a moment later.
    """

    code: ClassVar[str] = "DEC05"
    title: ClassVar[str] = "Thread count for writing"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config, machine = situation.config, situation.hardware
        cores = count_free_cores(machine)
        if machine == HardwareProfile() or config.parallel > 1 or not 0 < config.threads <= cores:
            return ()
        found = _predict_best(situation, cores) or _assume_more(situation, cores)
        if found is None:
            return ()
        change, expected = found
        more = change["threads"] > config.threads
        finding = Finding(
            code=self.code,
            title=f"Too {'few' if more else 'many'} threads write the answer.",
            severity="slows",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(what="threads that write the answer", value=config.threads, unit="threads", basis="measured"),
                Evidence(what="physical cores free for it", value=cores, unit="cores", basis="measured"),
            ),
            change=change,
            remedy=f"Set threads to {change['threads']}.",
            expected=expected,
            costs="The processor is busier while it writes." if more else "",
        )
        return (finding,)


def _predict_best(situation: Situation, cores: int) -> tuple[dict[str, Any], Expected] | None:
    counts = dict.fromkeys(count for count in (cores, cores - 1, cores * 3 // 4, cores // 2) if count >= 1)
    return find_best_change(situation, [{"threads": count} for count in counts], "tpot")


def _assume_more(situation: Situation, cores: int) -> tuple[dict[str, Any], Expected] | None:
    """Between nothing to speak of (memory was saturated already) and all of the added cores."""
    config, change = situation.config, {"threads": cores}
    known = predict_point(situation, config) is not None
    if known or config.n_gpu_layers != 0 or 2 * config.threads > cores or not is_possible(situation, change):
        return None
    most = cores / config.threads
    return change, Expected(metric="tpot", ratio=most**0.5, low=1.0, high=most, basis="assumed")
