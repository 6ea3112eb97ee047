"""DEC06: another number of layers on the device would write faster."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import find_best_change, predict_point
from tuner.rules.figures import tell_figure
from tuner.rules.points import change_point, is_possible

_MOST_TRIED: Final = 24
_REMOTE: Final = "RPC"


class PartialOffload(Rule):
    """A model is a stack of layers. When it does not fit into a GPU, some of its layers can go there and the others stay with
    the processor (`n_gpu_layers`). Each token then crosses from one to the other and back. Over a fast connector in the same
    machine (PCIe) that costs little. Over a slow link (another machine, a card on a thin connector) it can cost more than the
    few layers gain: then half is slower than nothing, and only above a certain number of layers the device pays. That number is
    the break-even.

    Layers are counted from the end of the model: the output first, then the last layers. With a calibration the rule predicts
    the time per token for many counts that fit, tells the break-even and proposes the best one. Without, it speaks only where
    all layers fit into a local GPU but not all were put there, and where some are on another machine: there it asks for a trial
    against none.

    When this is wrong: reading the prompt often gains from the device even where writing does not, since big batches are
    computed there; look at both. A link that is shared with other traffic is slower than it was when it was measured.
    """

    code: ClassVar[str] = "DEC06"
    title: ClassVar[str] = "Layers on the device: too few or too many"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        full, devices = situation.model.full_offload, situation.hardware.devices
        if full is None or not devices:
            return ()
        predicted = predict_point(situation, situation.config) is not None
        found = _predict_best(situation, full) if predicted else _assume_full(situation, full)
        if found is None:
            return () if predicted else _propose_trial(situation, full)
        change, expected = found
        layers, now = change["n_gpu_layers"], situation.config.n_gpu_layers
        pays_from = find_break_even(situation, full) if predicted else None
        evidence = (
            *tell_figure(situation, "tpot"),
            Evidence(what="layers on the device", value=now, unit="layers", basis="measured"),
            Evidence(what="layers of the model, output included", value=full, unit="layers", basis="measured"),
        )
        if pays_from is not None:
            evidence += (Evidence(what="layers from which the device pays", value=pays_from, unit="layers", basis="predicted"),)
        finding = Finding(
            code=self.code,
            title=_entitle(layers, now),
            severity="slows",
            evidence=evidence,
            change=change,
            remedy=f"Set n_gpu_layers to {layers}" + (" (all of them)." if layers == full else "."),
            expected=expected,
            costs="Memory of the device."
            if layers > now
            else "Prompts may be read more slowly; check the time to first token.",
        )
        return (finding,)


def find_break_even(situation: Situation, full: int) -> int | None:
    """The fewest layers on the device with which a token takes no longer than with none there; None where no number does."""
    without = predict_point(situation, change_point(situation, {"n_gpu_layers": 0}))
    if without is None:
        return None
    for layers in range(1, full + 1):
        prediction = predict_point(situation, change_point(situation, {"n_gpu_layers": layers}))
        if prediction is not None and prediction.tpot.value <= without.tpot.value:
            return layers
    return None


def _predict_best(situation: Situation, full: int) -> tuple[dict[str, Any], Expected] | None:
    step = max(1, full // _MOST_TRIED)
    counts = dict.fromkeys((full, 0, *range(full, 0, -step), _find_most(situation, full)))
    return find_best_change(situation, [{"n_gpu_layers": count} for count in counts], "tpot")


def _find_most(situation: Situation, full: int) -> int:
    """The most layers that fit."""
    return next((count for count in range(full, 0, -1) if _fits(situation, count)), 0)


def _fits(situation: Situation, layers: int) -> bool:
    return situation.find_misfit(change_point(situation, {"n_gpu_layers": layers})) is None


def _assume_full(situation: Situation, full: int) -> tuple[dict[str, Any], Expected | None] | None:
    change = {"n_gpu_layers": full}
    local = any(device.backend != _REMOTE for device in situation.hardware.devices)
    if not local or not 0 < situation.config.n_gpu_layers < full or not is_possible(situation, change):
        return None
    return change, None


def _propose_trial(situation: Situation, full: int) -> tuple[Finding, ...]:
    """Some layers behind a link that nobody has timed: none at all is what to compare with."""
    change, now = {"n_gpu_layers": 0}, situation.config.n_gpu_layers
    remote = any(device.backend == _REMOTE for device in situation.hardware.devices)
    if not remote or not 0 < now < full or not is_possible(situation, change):
        return ()
    finding = Finding(
        code=PartialOffload.code,
        title="A part of the layers is on another machine, which can be slower than none there.",
        severity="hint",
        evidence=(
            *tell_figure(situation, "tpot"),
            Evidence(what="layers on the device", value=now, unit="layers", basis="measured"),
            Evidence(what="layers of the model, output included", value=full, unit="layers", basis="measured"),
        ),
        change=change,
        remedy="Compare with n_gpu_layers 0, and with all layers there if they fit: nobody has timed the link, so only a trial "
        "tells (`rooftune diagnose --verify`).",
    )
    return (finding,)


def _entitle(layers: int, now: int) -> str:
    if layers == 0:
        return "The few layers on the device make the output slower than none at all."
    if now == 0:
        return "No layer is on the device, although some there would make the output faster."
    return f"{'More' if layers > now else 'Fewer'} layers on the device would make the output faster."
