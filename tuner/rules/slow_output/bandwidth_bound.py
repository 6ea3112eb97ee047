"""DEC01: writing the answer is limited by memory speed."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import predict_point
from tuner.rules.figures import feels_slow_output, tell_figure
from tuner.units import format_bytes

_WELL_USED: Final = 0.6


class BandwidthBoundDecode(Rule):
    """To write one token (a word or a piece of one), the processor must fetch every weight of the model from memory once, and
    use it once. It computes far faster than memory delivers, so the speed of memory sets the pace: bytes per token divided by
    bytes per second. A model of 8 GB on a machine whose memory delivers 40 GB/s cannot write more than 5 tokens a second,
    whatever one sets.

    So three things help: fewer bytes per token (a smaller number format, DEC03, or a smaller model, DEC12), faster memory (a
    GPU, or more memory channels in use), or more than one token per pass through the model (several users at once, or
    speculation, DEC11). More threads help only until memory delivers all it can, usually well before all cores are busy.

    The rule speaks only when the output is slow: when you said so, or when it is slower than people read. It tells which share
    of the machine's own best memory speed is reached; far below it, something else is wrong and other findings say what.

    When this is wrong: very small models spend much of each token outside of memory, on starting operations and on threads
    waiting for each other; the rule is silent when the prediction says so. Models with experts fetch only those in use.
    """

    code: ClassVar[str] = "DEC01"
    title: ClassVar[str] = "Writing is limited by memory speed"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        prediction = predict_point(situation, situation.config)
        if prediction is None or prediction.decode.bound != "memory bandwidth" or not feels_slow_output(situation):
            return ()
        phase, basis = prediction.decode, prediction.tpot.basis
        finding = Finding(
            code=self.code,
            title="Each token waits for the weights to come from memory.",
            severity="hint",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(what="fetched for each token", value=phase.bytes_read, unit="bytes", basis=basis),
                Evidence(what="calculations for each byte fetched", value=phase.intensity, unit="operations/byte", basis=basis),
                Evidence(what="share of the memory speed reached", value=phase.reached, unit="share", basis=basis),
            ),
            remedy=f"Every token fetches {format_bytes(phase.bytes_read)}: fewer bytes (a smaller format or model) or faster "
            "memory (a GPU) help, more threads hardly." + ("" if phase.reached >= _WELL_USED else _TELL_UNUSED),
        )
        return (finding,)


_TELL_UNUSED: Final = " Part of the memory's speed is not reached, so look at the other findings first."
