"""USR01: how many conversations at once are worth it."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tuner.roofline.curves import find_worthwhile
from tuner.roofline.record import Prediction
from tuner.rules.base import Evidence, Expected, Finding, Rule, Situation
from tuner.rules.expectation import NOTICEABLE, compare_predictions
from tuner.rules.points import change_point, is_possible
from tuner.runconfig import RunConfig, pad256
from tuner.space.refusal import MOST_SLOTS
from tuner.units import format_ms, format_rate


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """What one number of slots should do."""

    count: int
    """Slots."""
    config: RunConfig
    """The point."""
    prediction: Prediction
    """Its figures."""


class BatchKnee(Rule):
    """For each token all weights of the model are read from memory once, whether the token is for one person or whether one
    token each is made for eight. So serving several people together brings more tokens per second in all, nearly for nothing at
    first. At some number the arithmetic becomes what is waited for. From there on more conversations at once bring no more
    tokens in all, and each person only gets slower output.

    The rule predicts 1, 2, 4, 8 and so on conversations up to your number of users: tokens per second in all, time per token
    that each user sees, and time to the first token. It looks for the number from which doubling brings less than a tenth more,
    and proposes that number of slots, with the context your workload needs for each, where it should be clearly better than
    yours: more throughput, or the same with faster output for everybody. When you asked about many users, the numbers are told
    in any case.

    When this is wrong: the prediction assumes that all slots are busy all the time. With users who mostly read and think, more
    slots than that cost nothing but memory. Figures for many slots rest on calibrated batches of a few sizes; measure with
    `rooftune measure` before you buy hardware by them.
    """

    code: ClassVar[str] = "USR01"
    title: ClassVar[str] = "How many conversations at once"
    symptoms: ClassVar[frozenset[str]] = frozenset({"many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        if situation.workload.users < 2:
            return ()
        curve, now = predict_slots(situation), _predict(situation, situation.config)
        if len(curve) < 2 or now is None:
            return ()
        knee = find_knee(curve)
        found = _compare(situation, now, knee)
        if found is None:
            return self._tell_curve(curve, knee) if situation.symptom == "many-users" else ()
        change, expected = found
        more = knee.count > situation.config.parallel
        finding = Finding(
            code=self.code,
            title="Serving more people together would bring more tokens per second in all."
            if more
            else "More conversations at once than this machine gains from make everybody slower.",
            severity="slows",
            evidence=tuple(each for slot in curve for each in _tell(slot)),
            change=change,
            remedy=f"Set parallel to {knee.count} and ctx_size to {change['ctx_size']}: {_describe(knee)}.",
            expected=expected,
            costs="Each user's output gets slower, and each slot takes memory for its own cache."
            if more
            else "Some users wait for a free slot.",
        )
        return (finding,)

    def _tell_curve(self, curve: tuple[Slot, ...], knee: Slot) -> tuple[Finding, ...]:
        """Nothing to gain by another number: what was asked for is told all the same."""
        beyond = (
            "more bring hardly any further tokens and make each user wait longer" if knee is not curve[-1] else "all users fit"
        )
        finding = Finding(
            code=self.code,
            title="This is what serving more people at once brings in all, and what each of them pays.",
            severity="hint",
            evidence=tuple(each for slot in curve for each in _tell(slot)),
            remedy=f"Up to {knee.count} conversations at once are worth it ({_describe(knee)}); {beyond}.",
        )
        return (finding,)


def predict_slots(situation: Situation) -> tuple[Slot, ...]:
    """1, 2, 4, … slots up to the number of users, those that fit and can be predicted, with the context each needs."""
    users = min(situation.workload.users, MOST_SLOTS)
    counts = sorted({*(2**n for n in range(users.bit_length())), users})
    found = []
    for count in (each for each in counts if each <= users):
        change = _resize(situation, count)
        point = change_point(situation, change)
        if situation.find_misfit(point) is None and (prediction := _predict(situation, point)) is not None:
            found.append(Slot(count=count, config=point, prediction=prediction))
    return tuple(found)


def find_knee(curve: tuple[Slot, ...]) -> Slot:
    """The last number of slots that was worth it: throughput grows at least in proportion to a tenth for a doubling."""
    return curve[find_worthwhile([(slot.count, slot.prediction.throughput.value) for slot in curve])]


def _resize(situation: Situation, count: int) -> dict[str, int]:
    return {"parallel": count, "ctx_size": pad256(situation.workload.tokens_per_slot) * count}


def _predict(situation: Situation, config: RunConfig) -> Prediction | None:
    return situation.predict(situation.model, config, situation.workload)


def _compare(situation: Situation, now: Prediction, knee: Slot) -> tuple[dict[str, int], Expected] | None:
    change = _resize(situation, knee.count)
    metric = "throughput" if knee.count > situation.config.parallel else "tpot"
    expected = compare_predictions(now, knee.prediction, metric)
    if knee.count == situation.config.parallel or expected is None or expected.ratio < NOTICEABLE:
        return None
    return (change, expected) if is_possible(situation, change) else None


def _tell(slot: Slot) -> tuple[Evidence, ...]:
    name = f"{slot.count} slots" if slot.count > 1 else "1 slot"
    told = slot.prediction
    return (
        Evidence(
            what=f"tokens per second in all, {name}", value=told.throughput.value, unit="tok/s", basis=told.throughput.basis
        ),
        Evidence(what=f"time per token of each user, {name}", value=told.tpot.value, unit="ms", basis=told.tpot.basis),
        Evidence(what=f"time to first token, {name}", value=told.ttft.value, unit="ms", basis=told.ttft.basis),
    )


def _describe(slot: Slot) -> str:
    told = slot.prediction
    return f"{format_rate(told.throughput.value)} in all, {format_ms(told.tpot.value)} per token for each user"
