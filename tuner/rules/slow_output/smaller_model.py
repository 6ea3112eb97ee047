"""DEC12: the model is too large to be read along with on this machine."""

from __future__ import annotations

from typing import ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.figures import READING_MS, feels_slow_output, find_figure, tell_figure
from tuner.units import format_count, format_ms


class SmallerModel(Rule):
    """Every setting has its best, and beyond it only the size of the model is left. The time per token is nearly proportional
    to the bytes that a token fetches. So from the time that your model takes one can say how large a model may be that writes
    as fast as a quick reader reads, which is about 150 ms per token, in the same number format.

    The rule speaks when a token takes longer than that, or when you said that the output is slow; then it tells what half the
    time would allow. It names the number of parameters (the numbers a model has learnt) to look for. Models of the same family
    come in several sizes; a newer one of half the size is often as good as an older one of the whole. For models with experts,
    the parameters that each token uses are what counts, and a large model with few of them in use can be the answer.

    When this is wrong: when nobody reads along (summaries overnight, a batch of documents), slow output is fine and quality is
    worth more. The proportion is a rule of thumb: small models have a fixed cost per token that does not shrink with them.
    """

    code: ClassVar[str] = "DEC12"
    title: ClassVar[str] = "The next smaller model"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-output"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found, model = find_figure(situation, "tpot"), situation.model
        if found is None or model.parameters <= 0 or not feels_slow_output(situation):
            return ()
        too_slow = found[0] > READING_MS
        wanted = READING_MS if too_slow else found[0] / 2
        parameters = model.parameters * wanted / found[0]
        active = " in use per token" if model.is_moe else ""
        finding = Finding(
            code=self.code,
            title="This model is too large to write at reading speed on this machine."
            if too_slow
            else "Beyond the best settings only a smaller model writes faster.",
            severity="hint",
            evidence=(
                *tell_figure(situation, "tpot"),
                Evidence(
                    what="a quick reader's time per token" if too_slow else "half of that",
                    value=wanted,
                    unit="ms",
                    basis="assumed",
                ),
                Evidence(what="parameters", value=float(model.parameters), unit="parameters", basis="measured"),
                Evidence(what="parameters that this allows", value=parameters, unit="parameters", basis="assumed"),
            ),
            remedy=f"If {'somebody reads along' if too_slow else 'it must be faster still'}, look for a model of about "
            f"{format_count(parameters)} parameters{active} in the same format: about {format_ms(wanted)} a token.",
            costs="A smaller model knows and reasons less.",
        )
        return (finding,)
