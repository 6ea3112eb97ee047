"""What a change should bring, from predictions of both points, and when that is worth a word."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tuner.roofline.record import Basis, Estimate, Prediction
from tuner.rules.base import Expected, Situation
from tuner.rules.points import change_point, find_spec, is_possible
from tuner.runconfig import RunConfig

NOTICEABLE: Final = 1.08
"""A predicted gain below this is not proposed: two predictions of one machine differ by some 5 % where the truth does not, and
less than a twelfth is not felt."""

_JOINT_WIDTHS: Final = {"threads_batch": 0.5, "flash_attn": 1.4}
"""By the setting that changes: the width of the interval that held four of five measured gains, over that of two predictions
which err each by itself. Prefill scales over threads much as predicted, whatever it costs; with and without flash attention
other figures count, the worst known ones. From recorded grids of four files: `python -m tests.bench.gain_intervals`."""
_APART: Final = 1.0
"""The same for other settings (0.8 to 1.2 for `threads` and cache types) and for another file."""

_ALIKE: Final = 1.03
"""Candidates nearer than this in their predicted gain are told apart by preference."""

_LARGER_IS_BETTER: Final = frozenset({"throughput"})


def predict_point(situation: Situation, config: RunConfig) -> Prediction | None:
    """The prediction of a point for the situation's workload; None where nobody can say."""
    return situation.predict(find_spec(situation, config), config, situation.workload)


def expect_gain(situation: Situation, changes: Mapping[str, Any], metric: str) -> Expected | None:
    """What `changes` should bring in `metric` (ttft, tpot, latency, throughput), from predictions of both points.

    None where either cannot be predicted.
    """
    before = predict_point(situation, situation.config)
    after = predict_point(situation, change_point(situation, changes))
    return None if before is None or after is None else compare_predictions(before, after, metric)


def compare_predictions(before: Prediction, after: Prediction, metric: str) -> Expected | None:
    """How many times better `after` is than `before`; None where one lacks the metric.

    The 80 % interval combines those of both, by what changes between them.
    """
    old, new = before.estimate(metric), after.estimate(metric)
    if old is None or new is None or min(old.low, new.low) <= 0:
        return None
    ratio = new.value / old.value if metric in _LARGER_IS_BETTER else old.value / new.value
    half = _find_joint_width(before.config, after.config) * math.hypot(_half_width(old), _half_width(new))
    basis: Basis = "predicted" if (old.basis, new.basis) == ("predicted", "predicted") else "assumed"
    return Expected(metric=metric, ratio=ratio, low=ratio * math.exp(-half), high=ratio * math.exp(half), basis=basis)


def find_best_change(
    situation: Situation, candidates: Iterable[Mapping[str, Any]], metric: str, *, least: float = NOTICEABLE
) -> tuple[dict[str, Any], Expected] | None:
    """The possible change with the largest predicted gain; None where none reaches `least`.

    A change of settings must be a gain nine times of ten (its 80 % interval lies above 1). Another file need not: how its
    format fares is less sure, and nobody settles on a file unseen. Of near equals (3 %) the
    first is taken, so candidates are told in order of preference.
    """
    found: tuple[dict[str, Any], Expected] | None = None
    for changes in candidates:
        if not is_possible(situation, changes):
            continue
        expected = expect_gain(situation, changes, metric)
        if expected is None or expected.ratio < least or (expected.low <= 1 and "model" not in changes):
            continue
        if found is None or expected.ratio > found[1].ratio * _ALIKE:
            found = dict(changes), expected
    return found


def _find_joint_width(before: RunConfig, after: RunConfig) -> float:
    changed = [name for name in RunConfig.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    return max((_JOINT_WIDTHS.get(name, _APART) for name in changed), default=_APART)


def _half_width(estimate: Estimate) -> float:
    return math.log(estimate.high / estimate.low) / 2
