"""What a study is asked to do, and the facts that make it the same study when it goes on another day."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from tuner.objective import Goal, Limit
from tuner.workload import Workload

if TYPE_CHECKING:
    from tuner.roofline.record import Prediction
    from tuner.runconfig import RunConfig
    from tuner.space.searchspace import SearchSpace

StrategyName = Literal["physics", "tpe", "random"]
STRATEGIES: Final[tuple[StrategyName, ...]] = get_args(StrategyName)
DEFAULT_STORAGE: Final = "sqlite:///results/studies.db"
CONFIRM_SHARE: Final = 0.35
"""Part of the budget that the search leaves to the confirmation."""
SHORT_BUDGET_S: Final = 120.0
"""Below this even the default writes only a short answer at first, since nobody knows yet how long a whole one takes."""
SHORT_ANSWER: Final = 32
"""Tokens of a short answer."""


class KeyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure holds for. A study goes on only where all of it is the same."""

    models: tuple[str, ...]
    """Identity of each file's content, in the order of the search space."""
    engine: str
    """Name and version of what runs the model."""
    llama_cpp: str
    """llama.cpp's own version text; "" when it does not say."""
    machine: str
    """The machine's fingerprint."""


class StudyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One tune."""

    workload: Workload
    """What is to be fast."""
    goals: tuple[Goal, ...]
    """What is wanted; the first one decides the single best."""
    limits: tuple[Limit, ...] = ()
    """What every answer must keep."""
    space: SearchSpace
    """The points, with the default configuration as `baseline`."""
    facts: KeyFacts
    """What the figures hold for."""
    budget_s: float = 600.0
    """Wall time for everything, confirmation included, over all sittings, s."""
    trials: int | None = None
    """Most points to run; None leaves it to the budget."""
    seed: int = 0
    """Seeds the sampler."""
    storage: str = DEFAULT_STORAGE
    """Optuna storage URL."""
    study_name: str = ""
    """Name in the storage; "" makes one from model, workload and goals."""
    resume: bool = False
    """Go on with the study of that name."""
    strategy: StrategyName = "physics"
    """Who proposes the points."""
    allow_quality_loss: bool = False
    """A less precise file may win."""
    origin: str = ""
    """What the front end was asked, in its own words, kept so that a resume needs the name alone."""
    predict: Callable[[RunConfig], Prediction | None] | None = None
    """What a point should do before it is run; None without a calibration. No part of what makes a study the same."""

    @property
    def answer_tokens(self) -> int:
        """Tokens that a run of full length writes in the search; rounds of the confirmation are told by what fits."""
        whole = self.workload.output_tokens
        return whole if self.budget_s >= SHORT_BUDGET_S else min(whole, SHORT_ANSWER)

    @property
    def title(self) -> str:
        """Model, workload and goals as one word: the start of a study's name."""
        stem = Path(self.space.baseline.model).stem or "model"
        return "-".join((stem, self.workload.name, *self.goals)).replace(" ", "_")


def describe_identity(request: StudyRequest) -> dict[str, str]:
    """The facts by the names a user knows, as text that can be compared and stored."""
    facts = request.facts
    return {
        "model": ", ".join(facts.models),
        "engine": facts.engine,
        "llama.cpp": facts.llama_cpp,
        "machine": facts.machine,
        "workload": msgspec.json.encode(request.workload, order="deterministic").decode(),
        "objective": ",".join(request.goals),
        "limits": ", ".join(limit.text for limit in request.limits),
        "search space": _digest_space(request.space),
        "strategy": request.strategy,
        "quality loss": "allowed" if request.allow_quality_loss else "not allowed",
    }


def _digest_space(space: SearchSpace) -> str:
    domains = {name: list(domain.values) for name, domain in space.domains.items() if name != "model"}
    fixed = {name: value for name, value in space.baseline.as_dict().items() if name != "model"}
    text = msgspec.json.encode([domains, fixed], order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]
