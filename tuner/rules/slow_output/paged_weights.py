"""DEC08: the weights do not fit into memory and come from the disk."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.memory.record import HOST
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import count_memory, is_possible
from tuner.units import format_bytes

_MAPPED: Final = frozenset({"auto", "mmap"})


class PagedWeights(Rule):
    """llama.cpp does not copy a model file into memory but maps it: the system brings in pages as they are needed and drops
    them when memory runs short. So a model that is larger than the free memory does load, and seems to work. But each token
    needs all weights, in the same order, so the system drops exactly the pages that are needed next. Every token then reads
    from the disk, at a hundredth of the speed of memory.

    The rule compares the weights that stay in main memory with what is free there. The remedy is less weight: a smaller format
    or model (a file at hand that fits is proposed), more layers on a GPU, or more free memory.

    When this is wrong: models with experts use only a part of their weights for each token, so a model a little too large may
    still do. Memory that other programs hold may be given back a moment later. On a machine without a disk (the file in a RAM
    disk) the pages cost little.
    """

    code: ClassVar[str] = "DEC08"
    title: ClassVar[str] = "Weights read from disk for every token"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        free, weights = situation.budget.on(HOST), _find_host_weights(situation)
        if free is None or weights <= free or situation.config.load_mode not in _MAPPED:
            return ()
        fitting = [each for each in situation.siblings if is_possible(situation, {"model": each.path})]
        best = max(fitting, key=lambda each: each.weights_bytes, default=None)
        finding = Finding(
            code=self.code,
            title="The weights are larger than the free memory, so they are read from the disk again and again.",
            severity="stops",
            evidence=(
                Evidence(what="weights in main memory", value=weights, unit="bytes", basis="measured"),
                Evidence(what="memory free for them", value=free, unit="bytes", basis="measured"),
                Evidence(what="read from disk for a token, about", value=weights - free, unit="bytes", basis="predicted"),
            ),
            change={"model": best.path} if best else {},
            remedy=f"Use {best.path}, which fits."
            if best
            else f"Use a file of less than {format_bytes(free)}, put layers on a GPU, or free memory.",
            costs=f"Precision: {best.bits_per_weight:.1f} bits per weight in place of {situation.model.bits_per_weight:.1f}."
            if best
            else "",
        )
        return (finding,)


def _find_host_weights(situation: Situation) -> int:
    footprint = count_memory(situation, situation.config)
    return sum(part.n_bytes or 0 for part in footprint.parts if part.cause == "weights" and part.device == HOST)
