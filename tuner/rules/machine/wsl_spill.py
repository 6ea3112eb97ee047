"""MAC11: under Windows the GPU's memory spills over without a word."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import predict_point
from tuner.rules.points import count_memory

_FULL: Final = 0.95
_NEARLY_FULL: Final = 0.9
_COLLAPSED: Final = 5.0


class WslSpill(Rule):
    """In the Windows Subsystem for Linux a GPU that is full does not refuse more. The driver of Windows moves what does not fit
    into main memory, and everything goes on without an error at a tenth of the speed. The GPU is shown as fully busy.

    The rule looks at how full the GPU would be with your settings. Above nine tenths it warns. When a measurement was five
    times slower than predicted while more than 95 percent were in use, it says that this is what happened. The remedy is to
    leave more room: a smaller context, an 8-bit cache, fewer layers (the rules of memory propose them with `--reserve 3GiB`),
    and to set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback" in the NVIDIA control panel, so that it fails
    openly.

    When this is wrong: the desktop of Windows takes memory that comes and goes, so the same settings can fit today and spill
    tomorrow. A slow measurement can have other reasons, a busy machine above all.
    """

    code: ClassVar[str] = "MAC11"
    title: ClassVar[str] = "Spill into main memory under WSL"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        if not situation.hardware.environment.wsl or not situation.hardware.devices:
            return ()
        share, slower = find_fill(situation), find_slowdown(situation)
        spilled = share is not None and share > _FULL and slower is not None and slower > _COLLAPSED
        if share is None or share < _NEARLY_FULL or (slower is not None and not spilled):
            return ()
        finding = Finding(
            code=self.code,
            title="The GPU's memory has most likely spilled into main memory."
            if spilled
            else "The GPU's memory would be so full that Windows may move parts of it to main memory.",
            severity="slows" if spilled else "hint",
            evidence=(
                Evidence(what="share of the GPU's free memory in use", value=share, unit="share", basis="predicted"),
                *(
                    Evidence(what="measured time per token against predicted", value=times, unit="times", basis="measured")
                    for times in (slower,)
                    if times is not None
                ),
            ),
            remedy="Leave more room with `--reserve 3GiB`, and forbid the spill in the NVIDIA control panel (Prefer No Sysmem "
            "Fallback).",
            costs="What is left out of the GPU is slower.",
        )
        return (finding,)


def find_fill(situation: Situation) -> float | None:
    """Share of a device's free memory that the settings take, the fullest of all; None where none is known."""
    footprint = count_memory(situation, situation.config)
    shares = []
    for name, free in situation.budget.devices:
        used = sum(part.n_bytes or 0 for part in footprint.parts if part.device == name)
        if free:
            shares.append(used / free)
    return max(shares, default=None)


def find_slowdown(situation: Situation) -> float | None:
    """Measured time per token over the predicted one; None where either is missing."""
    measurement, prediction = situation.measurement, predict_point(situation, situation.config)
    if measurement is None or measurement.tpot_ms is None or prediction is None or prediction.tpot.value <= 0:
        return None
    return measurement.tpot_ms / prediction.tpot.value
