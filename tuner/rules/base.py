"""The seam of the checklist: what a rule sees, and what it may say.

A rule is one file under `tuner/rules/<area>/` with one subclass of `Rule`; its docstring is the manual that
`rooftune explain CODE` prints. A rule is a pure function of a `Situation`: it measures nothing and reads no file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec

from tuner.hardware import HardwareProfile
from tuner.measure.record import Measurement
from tuner.memory import Budget
from tuner.model import ModelSpec
from tuner.roofline.ceilings import Ceilings
from tuner.roofline.record import Basis, Prediction
from tuner.runconfig import RunConfig
from tuner.workload import Workload

Severity = Literal["stops", "slows", "hint"]
"""stops: it does not run or fit; slows: worth changing; hint: worth knowing."""

Symptom = Literal["slow-start", "slow-output", "out-of-memory", "many-users", "long-chat", "machine"]
"""What the user feels; "machine" holds what is wrong whatever one feels."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One number (or fact) that a finding rests on."""

    what: str
    """What it is, in plain words ("first token", "KV cache at 32,768 tokens")."""
    value: float | str
    """The number in `unit`, or the fact as text."""
    unit: str = ""
    """ms, tok/s, bytes, tokens, share, …; "" for text."""
    basis: Basis
    """measured, predicted or assumed."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a change should bring, or brought: how many times better a metric gets."""

    metric: str
    """ttft, tpot, latency, throughput or memory."""
    ratio: float
    """Default over changed for times and memory, changed over default for throughput: above 1 is better."""
    low: float
    """Lower end of the interval (80 % where predicted, 95 % where measured)."""
    high: float
    """Upper end of the interval."""
    basis: Basis = "predicted"
    """measured, predicted or assumed."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be better, and how."""

    code: str
    """The rule's code."""
    title: str
    """One plain sentence that anybody understands."""
    severity: Severity
    """How bad it is."""
    evidence: tuple[Evidence, ...]
    """The numbers behind it; at least one."""
    change: dict[str, Any] = {}
    """Settings to change, by RunConfig's names; empty where the remedy is no setting."""
    remedy: str
    """What to do, in plain words; the exact command where there is one."""
    expected: Expected | None = None
    """What it should bring; None where that cannot be said."""
    costs: str = ""
    """What one gives up; "" where nothing."""
    measured: Expected | None = None
    """What the change brought when it was tried; None until it was."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that rules may look at."""

    hardware: HardwareProfile
    """The machine, with devices on other machines that take layers."""
    model: ModelSpec
    """The file in question."""
    siblings: tuple[ModelSpec, ...] = ()
    """Other formats of the same model at hand."""
    workload: Workload
    """What is to be fast."""
    config: RunConfig
    """The effective settings in question (llama.cpp's default unless the user gave others)."""
    budget: Budget
    """Memory that may be used."""
    find_misfit: Callable[[RunConfig], str | None]
    """Why a point does not fit; None where it fits or nothing is known against it."""
    ceilings: Ceilings | None = None
    """Figures of this machine; None where it was not calibrated."""
    predict: Callable[[ModelSpec, RunConfig, Workload], Prediction | None]
    """A prediction from those figures; None without them or where the model says too little."""
    measurement: Measurement | None = None
    """Figures of `config` for `workload`, where it was measured."""
    symptom: Symptom | None = None
    """What the user feels; None: nothing was said."""
    promise_ttft_ms: float | None = None
    """First token within this time was asked for, ms; None: no promise."""
    projector_bytes: int | None = None
    """A projector for images or sound beside the model, with room for an input, bytes; None: none was named."""
    draft: ModelSpec | None = None
    """A small model that guesses tokens ahead; None: none was named."""


class Rule(ABC):
    """One line of the checklist. The docstring says, in plain English: what it looks at, why it matters, what to do, and
    a paragraph "When this is wrong" with the cases in which its advice does not hold.
    """

    code: ClassVar[str]
    """Short and stable: area letters and a number, such as PRE03."""
    title: ClassVar[str]
    """What the rule is about, a few words."""
    symptoms: ClassVar[frozenset[str]]
    """Symptoms it belongs to."""

    @abstractmethod
    def check(self, situation: Situation) -> tuple[Finding, ...]:
        """What is wrong; () when nothing is. Never raises for unknown facts: unknown means silent."""
