"""CHT04: more context than the model was trained on."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import is_possible
from tuner.runconfig import pad256, pad_context


class BeyondTraining(Rule):
    """A model has seen texts of a certain length in training, and its file says which. Beyond that length it has never been: it
    begins to repeat itself, to lose the thread or to write nonsense, often without any sign that something is wrong. llama.cpp
    only prints a warning, and llama-server cuts each slot to the trained length.

    The rule speaks when a slot, the place of one conversation, has more context than that. If your workload needs less, the
    context is cut to the trained length, which saves memory too. If the workload itself is longer, no setting helps.

    When this is wrong: some models can be stretched with a method that their makers tested (YaRN, a factor on the positions).
    If they say so, and the settings they give are used, longer texts work, though usually a little worse in all lengths. The
    length stated in a file can be wrong when it was converted carelessly. A purely recurrent model has no hard limit.
    """

    code: ClassVar[str] = "CHT04"
    title: ClassVar[str] = "Longer than the training context"
    symptoms: ClassVar[frozenset[str]] = frozenset({"long-chat", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        trained, config = situation.model.context_length, situation.config
        if trained is None or not situation.model.has_kv:
            return ()
        slots, need = max(1, config.parallel), situation.workload.tokens_per_slot
        share = pad_context(config.ctx_size, slots) // slots if config.ctx_size else trained
        if max(share, need) <= pad256(trained) and need <= trained:
            return ()
        change: dict[str, Any] = {"ctx_size": pad256(trained) * slots}
        possible = need <= trained and is_possible(situation, change)
        finding = Finding(
            code=self.code,
            title="The context is longer than any text that the model was trained on."
            if need <= trained
            else "The workload is longer than any text that the model was trained on.",
            severity="hint" if need <= trained else "slows",
            evidence=(
                Evidence(what="training context", value=trained, unit="tokens", basis="measured"),
                Evidence(what="context per slot", value=share, unit="tokens", basis="measured"),
                Evidence(what="one turn of the workload", value=need, unit="tokens", basis="measured"),
            ),
            change=change if possible else {},
            remedy=f"Set ctx_size to {change['ctx_size']}."
            if possible
            else "Use a model that was trained on longer texts, or shorten the text: answers beyond may be nonsense.",
        )
        return (finding,)
