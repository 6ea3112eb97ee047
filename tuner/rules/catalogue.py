"""The rules there are, found in the areas below `tuner.rules`, in the order of their codes."""

from __future__ import annotations

import inspect
from functools import cache

from tuner import rules
from tuner.discover import discover_classes
from tuner.rules.base import Rule


@cache
def list_rules() -> tuple[Rule, ...]:
    """All rules by code."""
    found = [kind() for kind in discover_classes(rules, Rule)]  # type: ignore[type-abstract]
    return tuple(sorted(found, key=lambda rule: rule.code))


def find_rule(code: str) -> Rule | None:
    """The rule of this code, in capitals or not; None where there is none."""
    return next((rule for rule in list_rules() if rule.code == code.strip().upper()), None)


def read_manual(rule: Rule) -> str:
    """The manual that `rooftune explain CODE` prints."""
    return inspect.cleandoc(type(rule).__doc__ or "")
