"""What one dimension of the search is: one declaration that gives the flag, the form field, the YAML schema and the help."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import msgspec

from tuner.hardware import HardwareProfile
from tuner.model import ModelSpec
from tuner.workload import Workload

Phase = Literal["prefill", "decode", "memory"]
Cost = Literal["live", "context", "model", "process"]


class SpaceSituation(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which values of a dimension mean something here."""

    hardware: HardwareProfile
    """This machine."""
    models: tuple[ModelSpec, ...]
    """The files given, most precise first; one in the usual case."""
    workload: Workload
    """What is to be fast."""
    goals: tuple[str, ...]
    """What the user wants: ttft, tpot, latency, throughput, context."""
    allow_quality_loss: bool = False
    """The user lets speed cost answers."""
    rpc_devices: int = 0
    """Remote devices that will take layers."""
    least_context: int = 0
    """Cells over all slots that the user's limit on ctx_size asks for, tokens; 0 without one."""


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """The values a dimension takes here."""

    values: tuple[Any, ...]
    """Distinct, the meaning of their order told by `ordered`."""
    ordered: bool
    """Neighbours in `values` behave alike (numbers), so a sampler may interpolate."""


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A dimension that means nothing here."""

    reason: str
    """Why, in plain words."""
    may_be_asked_for: bool = False
    """It does mean something, but searching it unasked would waste time; values listed by the user are taken."""


class Dimension(ABC):
    """One setting that can be searched. The class docstring is its manual (`rooftune explain NAME` prints it)."""

    name: ClassVar[str]
    """The RunConfig field and llama.cpp's long flag with underscores."""
    title: ClassVar[str]
    """A few words for a form."""
    affects: ClassVar[frozenset[Phase]]
    """What it moves; a phase that is not named is not touched by it."""
    cost: ClassVar[Cost]
    """What must be rebuilt to change it."""

    @abstractmethod
    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        """The sensible values here, or why there are none to choose among."""

    @abstractmethod
    def find_default(self, situation: SpaceSituation) -> Any:
        """llama-server's own value here."""

    @abstractmethod
    def parse_value(self, value: object) -> Any:
        """A value from YAML or a flag, checked. Raises BadInputError with the values it takes."""

    def affects_in(self, situation: SpaceSituation) -> frozenset[Phase]:
        """`affects` in this situation (several slots make decode a batch, for example)."""
        del situation
        return self.affects
