"""PRE02: the prompt is read in pieces of the wrong size."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import find_best_change, predict_point
from tuner.rules.figures import tell_figure
from tuner.units import format_ratio

_SIZES: Final = (64, 128, 256, 512, 1024, 2048, 4096)


class MicroBatch(Rule):
    """A prompt is not read word by word but in pieces, the micro-batches (`ubatch_size`, 512 tokens unless told otherwise). For
    each piece llama.cpp goes through the whole model once. Small pieces mean going through it again and again with too little
    to do each time; pieces that are too large push their own intermediate results out of the processor's fast memory.

    This rule compares the predicted time to first token for several sizes with that of yours, and speaks up only where another
    size should be clearly faster and fits into memory. The remedy is one setting: `--ubatch-size`, with `--batch-size` at least
    as large. Larger pieces cost memory for intermediate results, which the check has counted. How fast the answer is written
    does not change.

    When this is wrong: the best size depends on the model as much as on the chip, and the calibration measured a few sizes
    only, and what lies between them is estimated. The default being best is a normal result. For prompts shorter than a
    micro-batch nothing changes at all. `rooftune diagnose --verify` tries it.
    """

    code: ClassVar[str] = "PRE02"
    title: ClassVar[str] = "Micro-batch too small or too large"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        now = situation.config.ubatch_size
        sizes = sorted(_SIZES, key=lambda size: abs(size.bit_length() - now.bit_length()))
        batch = situation.config.batch_size
        changes = [{"ubatch_size": size} | ({"batch_size": size} if size > batch else {}) for size in sizes if size != now]
        best = find_best_change(situation, changes, "ttft")
        if best is None or predict_point(situation, situation.config) is None:
            return ()
        change, expected = best
        smaller = change["ubatch_size"] < now
        finding = Finding(
            code=self.code,
            title=f"The prompt is read in pieces that are too {'large' if smaller else 'small'}.",
            severity="slows",
            evidence=(
                *tell_figure(situation, "ttft"),
                Evidence(what="micro-batch", value=now, unit="tokens", basis="measured"),
            ),
            change=change,
            remedy=f"Set ubatch_size to {change['ubatch_size']}: the first token should come {format_ratio(expected.ratio)} "
            "as fast.",
            expected=expected,
            costs="" if smaller else "Some more memory for intermediate results; it fits here.",
        )
        return (finding,)
