"""Runs the checklist on a situation and makes one consistent answer of it.

Promise: every proposed change is a point that llama.cpp takes and that fits, alone and together with all others in the answer;
no two findings pull a setting in different directions; the worst comes first, then what should gain most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from tuner.rules.base import Evidence, Finding, Rule, Severity, Situation
from tuner.rules.catalogue import list_rules
from tuner.rules.expectation import expect_gain
from tuner.rules.points import change_point, is_possible

_RANK: Final[dict[Severity, int]] = {"stops": 0, "slows": 1, "hint": 2}
_WHATEVER: Final = "machine"
"""Rules of this symptom are run whatever one feels."""
_FELT: Final = {"slow-start": "ttft", "slow-output": "tpot"}
"""Which phase a symptom speaks of."""
_MEMORY: Final = "out-of-memory"
"""Hints of other rules wait until what stops the model is removed."""


def check_situation(situation: Situation, rules: Iterable[Rule] | None = None) -> tuple[Finding, ...]:
    """All findings, worst first; () where nothing is to be fixed. With a symptom, the rules that belong to it."""
    chosen = [rule for rule in (list_rules() if rules is None else rules) if _belongs(rule, situation)]
    found = [finding for rule in chosen for finding in rule.check(situation)]
    if any(finding.severity == "stops" for finding in found):
        about_memory = {rule.code for rule in chosen if _MEMORY in rule.symptoms}
        found = [each for each in found if each.severity != "hint" or each.code in about_memory]
    return resolve_findings(situation, [each for each in found if not _slows_what_counts(situation, each)])


def resolve_findings(situation: Situation, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that hold together: better ones win over those that contradict them, and take over what supports them."""
    kept: list[Finding] = []
    possible = [each for each in findings if not each.change or is_possible(situation, each.change)]
    for finding in sort_findings(situation, possible):
        if not finding.change:
            kept.append(finding)
            continue
        same = next((index for index, each in enumerate(kept) if _says_same(situation, each, finding)), None)
        if same is not None:
            kept[same] = _merge(kept[same], finding)
        elif _goes_with(situation, kept, finding):
            kept.append(finding)
    return sort_findings(situation, kept)


def sort_findings(situation: Situation, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first, then the largest expected gain, then by code; what stops has no speed to gain, so there the codes rule."""
    return tuple(sorted(findings, key=lambda each: (_RANK[each.severity], -_gain(situation, each), each.code)))


def join_changes(findings: Sequence[Finding]) -> dict[str, Any]:
    """All proposed settings together; resolved findings never disagree."""
    return {name: value for finding in findings for name, value in finding.change.items()}


def _belongs(rule: Rule, situation: Situation) -> bool:
    return situation.symptom is None or bool({situation.symptom, _WHATEVER} & rule.symptoms)


def _gain(situation: Situation, finding: Finding) -> float:
    """In what counts for the user, so that gains of different phases can be compared; else as the finding tells it."""
    if finding.expected is None or finding.severity == "stops":
        return 1.0
    return _expect_what_counts(situation, finding.change) or finding.expected.ratio


def _expect_what_counts(situation: Situation, change: dict[str, Any]) -> float | None:
    """The change's gain in the phase that is complained of, else in a whole turn; None where nobody can say."""
    metric = _FELT.get(situation.symptom or "", "throughput" if situation.workload.users > 1 else "latency")
    expected = expect_gain(situation, change, metric) if change else None
    return expected.ratio if expected else None


def _slows_what_counts(situation: Situation, finding: Finding) -> bool:
    """It would make one phase faster and the whole slower, which nobody asked for."""
    is_about_speed = finding.expected is not None and finding.expected.metric != "memory" and finding.severity != "stops"
    return is_about_speed and (_expect_what_counts(situation, finding.change) or 1.0) < 1


def _says_same(situation: Situation, one: Finding, other: Finding) -> bool:
    """Both lead to the same point."""
    return bool(one.change) and change_point(situation, one.change) == change_point(situation, other.change)


def _merge(kept: Finding, other: Finding) -> Finding:
    known = {each.what for each in kept.evidence}
    more: tuple[Evidence, ...] = tuple(each for each in other.evidence if each.what not in known)
    return msgspec.structs.replace(kept, evidence=kept.evidence + more, expected=kept.expected or other.expected)


def _goes_with(situation: Situation, kept: Sequence[Finding], finding: Finding) -> bool:
    """No setting is pulled elsewhere, neither change undoes the other's effect, and all together still run and fit."""
    before = join_changes(kept)
    if any(before.get(name, value) != value for name, value in finding.change.items()):
        return False
    together = before | finding.change
    if not is_possible(situation, together):
        return False
    if not all(_keeps_effect(situation, each.change, together) for each in (*kept, finding) if each.change):
        return False
    return not before or _speeds_up(situation, before, together) or finding.expected is None


def _speeds_up(situation: Situation, before: dict[str, Any], together: dict[str, Any]) -> bool:
    """What helps alone may hurt beside another change; where nobody can say, it is taken to help."""
    without, joint = (_expect_what_counts(situation, each) for each in (before, together))
    return without is None or joint is None or joint >= without


def _keeps_effect(situation: Situation, change: dict[str, Any], together: dict[str, Any]) -> bool:
    """What a change moves by itself is moved to the same place when all are made (llama.cpp clamps one setting by another)."""
    base, alone, joint = (change_point(situation, each) for each in ({}, change, together))
    moved = [name for name in change if getattr(alone, name) != getattr(base, name)]
    return all(getattr(joint, name) == getattr(alone, name) for name in moved)
