"""Everything that can be wrong with a request, found before any child is started: names, numbers, files, settings, places.

The cheap checks come first, so that a slip of the hand is answered at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from tuner.engines.registry import find_engine
from tuner.errors import BadInputError, StorageError, UsageError, reading_flag, suggest_name
from tuner.model import ModelSpec, demo_model_path, read_model, require_decoder, resolve_models
from tuner.objective import Goal, Limit, parse_goals, parse_limit
from tuner.session.guarding import MemoryRules, read_rules
from tuner.session.request import MeasureRequest, TuneRequest
from tuner.session.saving import check_output
from tuner.space import SpaceFile, load_space, parse_settings
from tuner.study.request import StrategyName
from tuner.units import parse_duration
from tuner.workload import Workload, load_workload

MOST_BUDGET_S = 7 * 24 * 3600.0


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A tune request whose every part means something."""

    request: TuneRequest
    """As it was given."""
    goals: tuple[Goal, ...]
    """What is wanted."""
    limits: tuple[Limit, ...]
    """What must be kept."""
    workload: Workload
    """What is to be fast."""
    budget_s: float
    """Wall time for everything, s."""
    strategy: StrategyName
    """Who proposes the points."""
    settings: dict[str, Any]
    """Fixed settings by name."""
    space: SpaceFile | None
    """The space that was named; None: to be chosen by machine."""
    models: tuple[ModelSpec, ...]
    """The files, most precise first."""
    memory: MemoryRules
    """What may be taken of memory, and who says so."""


def check_tune(request: TuneRequest) -> Checked:
    """The request with its parts read. Raises UsageError, BadInputError or StorageError."""
    goals = parse_goals(request.objective)
    with reading_flag("--limit"):
        limits = tuple(parse_limit(text) for text in request.limits)
    workload = load_workload(request.workload)
    budget_s = check_budget(request.budget)
    strategy = _check_strategy(request.strategy)
    _check_numbers(request)
    find_engine(request.engine)
    check_servers(request.rpc)
    if request.resume and not request.demo and not request.models:
        raise UsageError("The study does not say what it was asked.", f"Repeat its command and add --resume {request.resume}.")
    memory = read_rules(request.reserve, no_memory_check=request.no_memory_check)
    settings = parse_settings(request.settings)
    space = load_space(request.space) if request.space else None
    models = read_models(request.models, demo=request.demo)
    check_output(request.output)
    return Checked(
        request=request,
        goals=goals,
        limits=limits,
        workload=workload,
        budget_s=budget_s,
        strategy=strategy,
        settings=settings,
        space=space,
        models=models,
        memory=memory,
    )


def check_measure(request: MeasureRequest) -> tuple[ModelSpec, Workload, dict[str, Any], MemoryRules]:
    """Model, workload, settings and memory rules of a single measurement. Raises UsageError or BadInputError."""
    workload = load_workload(request.workload)
    find_engine(request.engine)
    check_servers(request.rpc)
    if not 1 <= request.samples <= 1000:
        raise UsageError(f"{request.samples} samples make no measurement.", "Give a number from 1 to 1000.")
    rules = read_rules(request.reserve, no_memory_check=request.no_memory_check)
    settings = parse_settings(request.settings)
    models = read_models(request.models, demo=request.demo)
    if len(models) > 1:
        raise UsageError("measure takes one model file.", "Use `rooftune tune` to compare several.")
    return models[0], workload, settings, rules


def check_budget(text: str) -> float:
    """A budget in seconds. Raises UsageError."""
    with reading_flag("--budget"):
        budget_s = parse_duration(text)
    if budget_s > MOST_BUDGET_S:
        raise UsageError(f"A budget of {text} is more than a week.", "Give a shorter one, such as 10m.")
    return budget_s


def check_servers(servers: Sequence[str]) -> None:
    """Raises UsageError for an endpoint that is none."""
    for server in servers:
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})", server)
        if not match or not 0 < int(match.group(2)) < 65536:
            raise UsageError(f"{server!r} is no RPC server.", "Write it like --rpc 192.168.1.5:50052.")


def read_models(arguments: Sequence[str], *, demo: bool) -> tuple[ModelSpec, ...]:
    """The facts of the given files, most precise first. Raises UsageError or BadInputError."""
    if demo and arguments:
        raise UsageError("--demo stands in place of MODEL.", "Give one of the two.")
    if not demo and not arguments:
        raise UsageError("No model was given.", "Give a GGUF file, or use --demo.")
    paths = [demo_model_path()] if demo else _resolve(arguments)
    specs = [read_model(path.absolute()) for path in paths]
    for spec in specs:
        require_decoder(spec)
    _check_one_model(specs)
    return tuple(sorted(specs, key=lambda spec: (-spec.bits_per_weight, spec.path)))


def _resolve(arguments: Sequence[str]) -> list[Path]:
    try:
        return resolve_models(arguments)
    except (OSError, ValueError) as error:  # names that no file system takes
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"The model cannot be looked for: {reason}.", "Check the path.") from error


def _check_one_model(specs: Sequence[ModelSpec]) -> None:
    """Several files must be formats of one model, or the fastest would be another model."""
    first = specs[0]
    for spec in specs[1:]:
        if (spec.architecture, spec.n_layer, spec.n_embd) != (first.architecture, first.n_layer, first.n_embd):
            raise BadInputError(
                f"{spec.path} and {first.path} are different models, not two formats of one.", "Tune them one by one."
            )


def _check_strategy(name: str) -> StrategyName:
    for strategy in get_args(StrategyName):
        if strategy == name:
            found: StrategyName = strategy
            return found
    raise UsageError(f"There is no strategy {name!r}.", suggest_name(name, get_args(StrategyName)))


def _check_numbers(request: TuneRequest) -> None:
    if request.trials is not None and request.trials < 1:
        raise UsageError(f"{request.trials} trials make no search.", "Give 1 or more with --trials.")
    if not 0 <= request.seed < 2**32:
        raise UsageError(f"The seed {request.seed} is out of range.", "Give one from 0 to 4294967295.")
    for name in (request.study, request.resume):
        if len(name) > 200 or not name.isprintable():
            raise UsageError("The name of the study is no short text.", "Give one of at most 200 printable letters.")
    if request.study and request.resume and request.study != request.resume:
        raise UsageError("--study names a new study and --resume an old one.", "Give one of the two.")


def check_study(request: TuneRequest) -> None:
    """The storage opens, and the study to go on with is there. The dearest check, so the last one.

    Raises StorageError or BadInputError.
    """
    from tuner.study.storage import open_storage, read_studies

    try:
        if not request.resume:
            open_storage(request.storage)
            return
        names = [study.name for study in read_studies(request.storage)]
    except (OSError, ValueError) as error:  # names that no file system takes
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"The storage cannot be opened: {reason}.", "Check --storage.") from error
    if request.resume not in names:
        hint = suggest_name(request.resume, names, most=5)
        raise BadInputError(f"There is no study {request.resume!r} in {request.storage}.", hint)
