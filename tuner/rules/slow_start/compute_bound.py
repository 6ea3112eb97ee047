"""PRE01: reading the prompt is limited by arithmetic."""

from __future__ import annotations

from typing import ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import predict_point
from tuner.rules.figures import feels_slow_start, tell_figure
from tuner.units import format_ms


class ComputeBoundPrefill(Rule):
    """Before the first token (a word or a piece of one) appears, the model reads your whole prompt. It does so for many tokens
    at once, so each weight that is fetched from memory is used many times: the processor computes without a pause and memory
    waits for it. Which of the two is the limit depends on how many calculations each fetched byte is good for (textbooks call
    that arithmetic intensity). Every machine has its own number (the ridge point): above it arithmetic is the limit, below it
    memory is. Reading a prompt lies above, writing an answer below.

    That has practical consequences. Faster memory or a smaller file makes a prompt hardly any faster to read. What helps: a
    shorter prompt, not reading the same text again (see PRE07), a smaller model, a number format that this processor multiplies
    quickly (PRE04), all physical cores at work on it (PRE03), or a GPU, which has ten to a hundred times the arithmetic.

    The rule speaks only when the first token is slow: when you said so, when it misses the time you asked for, or when it takes
    more than ten seconds. It tells how much of the machine's arithmetic is reached; below half, look at PRE02 to PRE06 first.

    When this is wrong: with very short prompts, or when a prompt is read in very small pieces, memory or the fixed cost of each
    pass through the model is the limit instead; the rule looks at the prediction and stays silent then. It cannot see a
    processor that is slowed down by heat.
    """

    code: ClassVar[str] = "PRE01"
    title: ClassVar[str] = "Reading the prompt is limited by arithmetic"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        prediction = predict_point(situation, situation.config)
        if prediction is None or prediction.prefill.bound != "compute" or not feels_slow_start(situation):
            return ()
        phase, workload = prediction.prefill, situation.workload
        basis = prediction.ttft.basis
        each = prediction.ttft.value / workload.prompt_tokens
        finding = Finding(
            code=self.code,
            title="The first token waits for arithmetic, not for memory.",
            severity="hint",
            evidence=(
                *tell_figure(situation, "ttft"),
                Evidence(what="prompt", value=workload.prompt_tokens, unit="tokens", basis="measured"),
                Evidence(what="calculations for each byte fetched", value=phase.intensity, unit="operations/byte", basis=basis),
                Evidence(
                    what="from how many on arithmetic is the limit", value=phase.ridge, unit="operations/byte", basis=basis
                ),
                Evidence(what="share of the machine's arithmetic in use", value=phase.reached, unit="share", basis=basis),
            ),
            remedy=f"Each prompt token costs about {format_ms(each)}. Shorten the prompt, or keep its unchanged beginning in "
            "the cache; a smaller model or a GPU is the next step. A smaller file helps the answer, not the prompt.",
        )
        return (finding,)
