"""Which of several files of one model."""

from __future__ import annotations

from typing import ClassVar

from tuner.errors import BadInputError
from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import show_value


class Model(Dimension):
    """Which file runs: the same model in several formats (quantisations).

    Decode reads every weight once per token, so a smaller file is nearly always faster there. Prefill computes more than it
    reads, so it depends on how well the format suits the processor: formats that llama.cpp lays out anew for vector units
    (Q4_0, IQ4_NL and, on ARM, more) may beat both smaller and larger ones.

    A smaller file answers differently. Unless quality loss is allowed, the most precise file stays the best, and the others
    are listed beside it. Changing the file loads a model, the dearest change there is.
    """

    name: ClassVar[str] = "model"
    title: ClassVar[str] = "Model file"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "model"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        paths = tuple(dict.fromkeys(str(spec.path) for spec in situation.models))
        if len(paths) < 2:
            return Absent(reason="only one model file was given")
        return Domain(values=paths, ordered=False)

    def find_default(self, situation: SpaceSituation) -> str:
        return str(situation.models[0].path) if situation.models else ""

    def parse_value(self, value: object) -> str:
        if isinstance(value, str) and value.strip() and value.isprintable() and len(value) < 4096:
            return value
        raise BadInputError(f"model cannot be {show_value(value)}.", "It takes the path of a GGUF file.")
