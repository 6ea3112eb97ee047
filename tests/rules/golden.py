"""Golden cases of the checklist: a situation in, what a rule says out."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.rules.builders import check_rule, evidence_of
from tuner.rules.base import Situation


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """One case of one rule that must speak."""

    code: str
    situation: Situation
    severity: str
    change: dict[str, Any] = {}
    says: tuple[str, ...] = ()
    """Words of title, remedy or costs."""
    evidence: dict[str, float | str] = {}
    """Numbers that must be among the evidence, to one part in a hundred."""
    gain: tuple[str, float] | None = None
    """Metric and expected ratio, to one part in twenty."""


def check_golden_case(case: Golden) -> None:
    """The rule says one thing, and that."""
    (finding,) = check_rule(case.code, case.situation)
    text = f"{finding.title} {finding.remedy} {finding.costs}"
    assert (finding.severity, finding.change) == (case.severity, case.change)
    assert [words for words in case.says if words not in text] == [], text
    told = evidence_of(finding)
    for what, value in case.evidence.items():
        assert _agree(told[what], value), (what, told)
    if case.gain is not None:
        assert finding.expected is not None
        metric, ratio = case.gain
        assert finding.expected.metric == metric
        assert abs(finding.expected.ratio / ratio - 1) < 0.05, finding.expected


def _agree(told: float | str, value: float | str) -> bool:
    if isinstance(told, str) or isinstance(value, str):
        return told == value
    return abs(told - value) <= 0.01 * abs(value)
