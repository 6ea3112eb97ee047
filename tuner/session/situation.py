"""The situation that the checklist looks at: one effective point with its model, its machine and what can be predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tuner.errors import BadInputError
from tuner.hardware import HardwareProfile
from tuner.memory import estimate_footprint, explain_misfit, find_budget, place_layers
from tuner.memory.record import HOST
from tuner.model import ModelSpec, read_model
from tuner.roofline.ceilings import Ceilings
from tuner.roofline.prediction import Predictor
from tuner.roofline.record import Prediction
from tuner.rules.base import Situation
from tuner.runconfig import RunConfig
from tuner.session.guarding import MemoryRules
from tuner.workload import Workload

MOST_SIBLINGS: Final = 24
"""Files beside the model whose headers are read."""


def describe_point(
    config: RunConfig,
    workload: Workload,
    *,
    models: Sequence[ModelSpec],
    machine: HardwareProfile,
    memory: MemoryRules,
    ceilings: Ceilings | None,
    projector_bytes: int | None = None,
    draft: ModelSpec | None = None,
) -> Situation:
    """The situation of one effective point; `models` are its file and the other formats at hand.

    `machine` has the devices on other machines too (`add_remote_devices`); `projector_bytes` and `draft` lie beside the model.
    """
    files = {each.path: each for each in models}
    spec = files.get(config.model, models[0])
    budget = find_budget(machine, reserve_bytes=memory.reserve_bytes)

    def misfit(asked: RunConfig) -> str | None:
        model = files.get(asked.model, spec)
        footprint = estimate_footprint(model, asked, machine=machine, projector_bytes=projector_bytes, draft=draft)
        return explain_misfit(footprint, budget)

    return Situation(
        hardware=machine,
        model=spec,
        siblings=tuple(each for each in models if each is not spec),
        workload=workload,
        config=config,
        budget=budget,
        find_misfit=misfit,
        ceilings=ceilings,
        predict=open_predictor(ceilings, machine),
        projector_bytes=projector_bytes,
        draft=draft,
    )


def open_predictor(
    ceilings: Ceilings | None, machine: HardwareProfile | None = None
) -> Callable[[ModelSpec, RunConfig, Workload], Prediction | None]:
    """Predictions from these figures, each worked out once; None for what they do not cover: a point with layers on a device
    without figures above all, which would else be predicted as if they were elsewhere. Without `machine` there is no device.
    """
    if ceilings is None:
        return lambda _model, _config, _workload: None
    predictor = Predictor(ceilings)
    covered = {HOST, *(each.device for each in ceilings.devices)}

    @cache
    def predict(model: ModelSpec, config: RunConfig, workload: Workload) -> Prediction | None:
        placement = place_layers(model, config, machine)
        if not {*placement.blocks, placement.output} <= covered:
            return None
        try:
            return predictor.predict(model, config, workload)
        except BadInputError:
            return None

    return predict


def find_siblings(spec: ModelSpec) -> tuple[ModelSpec, ...]:
    """Other formats of the same model in the same folder, most precise first; files that cannot be read are passed over."""
    path = Path(spec.path)
    found: dict[str, ModelSpec] = {}
    for each in _list_neighbours(path):
        try:
            other = read_model(each)
        except BadInputError:
            continue
        if _is_same_model(spec, other):
            found.setdefault(other.identity, other)
    return tuple(sorted(found.values(), key=lambda other: (-other.bits_per_weight, other.path)))


def find_projectors(spec: ModelSpec) -> tuple[str, ...]:
    """Projector files in the model's folder, by the name that publishers give them; they are not opened."""
    try:
        return tuple(sorted(str(each) for each in Path(spec.path).parent.glob("*mmproj*.gguf")))
    except OSError:
        return ()


def _list_neighbours(path: Path) -> Sequence[Path]:
    try:
        files = sorted(each for each in path.parent.glob("*.gguf") if each != path and each.is_file())
    except OSError:
        return ()
    return files[:MOST_SIBLINGS]


def _is_same_model(spec: ModelSpec, other: ModelSpec) -> bool:
    """Same shape and number of weights (a tied output that one file repeats may differ), and the other is whole."""
    shape = (spec.architecture, spec.n_layer, spec.n_embd, spec.n_vocab)
    if (other.architecture, other.n_layer, other.n_embd, other.n_vocab) != shape or other.path == spec.path:
        return False
    return abs(other.parameters - spec.parameters) <= 0.2 * spec.parameters and other.identity != spec.identity
