"""`predict`: what models should do here, or on a machine described by its data sheet, without loading any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tuner.errors import BadInputError, NothingFeasibleError, UsageError
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.stop import Stop
from tuner.memory import Budget, Footprint, estimate_footprint, explain_misfit, find_budget, largest_context
from tuner.model import ModelSpec, demo_model_path, read_model, require_decoder, resolve_models
from tuner.objective import LARGER_IS_BETTER, Goal, parse_goals
from tuner.roofline.ceilings import Ceilings, join_ceilings
from tuner.roofline.curves import DepthPoint, SlotPoint, find_batch_knee, predict_depths, predict_slots
from tuner.roofline.layout import imagine_machine
from tuner.roofline.prediction import Predictor
from tuner.roofline.record import Prediction
from tuner.runconfig import RunConfig
from tuner.session.remote import add_remote_devices
from tuner.space import SpaceSituation, build_space, parse_settings
from tuner.workload import Workload, load_workload

Say = Callable[[str], None]
FindFigures = Callable[[HardwareProfile], Ceilings]
"""The ceilings of the machine at hand; raises NothingFeasibleError where there are none and none may be measured."""

NO_CALIBRATION: Final = "This machine is not calibrated, and without its figures nothing can be predicted."


class PredictRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be predicted, as the user asked for it."""

    models: tuple[str, ...] = ()
    """GGUF files, or folders of them."""
    demo: bool = False
    """The model of the demo extra in place of `models`."""
    workload: str = "chat"
    """Name of a preset, or a YAML file."""
    settings: tuple[str, ...] = ()
    """KEY=VALUE: what differs from the default."""
    objective: str = "latency"
    """Goals, separated by commas; the first one orders the models."""
    machine: str = ""
    """Name or file of a data sheet, "GPU+CPU" for two of them; "" for the machine at hand."""
    rpc: tuple[str, ...] = ()
    """RPC servers HOST:PORT whose devices take layers; () for none."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What one model should do."""

    model: ModelSpec
    """The file."""
    prediction: Prediction
    """Both phases, with intervals."""
    footprint: Footprint
    """Memory by cause and device, by arithmetic."""
    misfit: str | None
    """Why it does not fit; None where it fits or nobody can say."""
    largest_context: int | None
    """Largest ctx_size that fits, tokens; None: unknown."""
    depths: tuple[DepthPoint, ...]
    """Time per token over the history."""
    slots: tuple[SlotPoint, ...]
    """Throughput over slots."""
    batch_knee: int | None
    """Slots from which on computing binds and not reading the weights; None: not within reach."""


class Forecasts(msgspec.Struct, frozen=True, kw_only=True):
    """What all models should do, best first."""

    items: tuple[Forecast, ...]
    """Those that fit first, then by the goal."""
    ceilings: Ceilings
    """Whose figures they are made of."""
    workload: Workload
    """What for."""
    goal: Goal
    """What ordered them."""
    passed_over: tuple[str, ...]
    """Files that could not be predicted, one sentence each."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where it is predicted for."""

    machine: HardwareProfile
    """The machine, or what its data sheet tells of it."""
    budget: Budget
    """Memory that a model may take there."""
    ceilings: Ceilings
    """Its figures."""


def predict_models(
    request: PredictRequest, *, find_figures: FindFigures, profile: Callable[[], HardwareProfile] = profile_machine
) -> Forecasts:
    """Predict each model with its default settings and what the user set.

    Raises UsageError, BadInputError (for a file that was named; in a folder, files are passed over), NothingFeasibleError.
    """
    goal = parse_goals(request.objective)[0]
    workload = load_workload(request.workload)
    settings = parse_settings(request.settings)
    _check_servers(request)
    specs, passed_over = read_candidates(request)
    place = imagine_place(request.machine) if request.machine else _find_place(profile(), len(request.rpc), find_figures)
    items: list[Forecast] = []
    for spec in specs:
        try:
            items.append(forecast(spec, workload, settings, place))
        except BadInputError as error:
            if len(specs) == 1:
                raise
            passed_over.append(f"{Path(spec.path).name}: {error.message}")
    if not items:
        raise NothingFeasibleError("None of these files can be predicted.", passed_over[0] if passed_over else "")
    return Forecasts(
        items=tuple(sorted(items, key=lambda item: _rank(item, goal))),
        ceilings=place.ceilings,
        workload=workload,
        goal=goal,
        passed_over=tuple(passed_over),
    )


def read_candidates(request: PredictRequest) -> tuple[list[ModelSpec], list[str]]:
    """The facts of all files, and why some in a folder are passed over. Raises UsageError or BadInputError."""
    if request.demo == bool(request.models):
        raise UsageError("predict takes MODEL, or --demo in its place.", "Give GGUF files or a folder of them.")
    arguments = [str(demo_model_path())] if request.demo else list(request.models)
    specs, passed_over = [], []
    for argument in arguments:
        paths = _resolve(argument)
        for path in paths:
            try:
                spec = read_model(path.absolute())
                require_decoder(spec)
                specs.append(spec)
            except BadInputError as error:
                if not Path(argument).is_dir():
                    raise
                passed_over.append(f"{path.name}: {error.message}")
    if not specs:
        raise BadInputError("None of these files is a model that writes text.", passed_over[0] if passed_over else "")
    return specs, passed_over


def forecast(spec: ModelSpec, workload: Workload, settings: dict[str, Any], place: Place) -> Forecast:
    """Everything about one model there. Raises BadInputError where the file tells too little or the settings cannot run."""
    situation = SpaceSituation(hardware=place.machine, models=(spec,), workload=workload, goals=("latency",))
    config = build_space(situation, fixed=settings).baseline
    prediction = Predictor(place.ceilings).predict(spec, config, workload)
    footprint = estimate_footprint(spec, config, machine=place.machine)
    return Forecast(
        model=spec,
        prediction=msgspec.structs.replace(prediction, memory_bytes=footprint.total_bytes),
        footprint=footprint,
        misfit=explain_misfit(footprint, place.budget),
        largest_context=_find_largest(spec, config, place),
        depths=predict_depths(spec, config, place.ceilings),
        slots=predict_slots(spec, config, workload, place.ceilings),
        batch_knee=find_batch_knee(spec, config, place.ceilings),
    )


def imagine_place(name: str) -> Place:
    """A machine that is not at hand: one data sheet, or a device's and its host's joined by "+".

    Raises UsageError for a name that is none, BadInputError for a file that describes no machine.
    """
    from tuner.roofline.sheet import load_sheet
    from tuner.roofline.sheet_ceilings import sheet_ceilings

    first, _, second = (name, "", "") if Path(name).exists() else name.partition("+")
    sheet = load_sheet(first.strip())
    ceilings = sheet_ceilings(sheet, host=load_sheet(second.strip()) if second else None)
    machine = imagine_machine(ceilings)
    memories = {each.device: each.memory_bytes for each in ceilings.devices}
    devices = tuple((device.name, memories[device.name]) for device in machine.devices)
    return Place(machine=machine, budget=Budget(host_bytes=memories.get("CPU"), devices=devices), ceilings=ceilings)


def find_stored_figures(
    machine: HardwareProfile, *, may_calibrate: bool, say: Say, stop: Stop | None = None, servers: Sequence[str] = ()
) -> Ceilings:
    """The machine's own calibration with that of RPC `servers`; what is missing is measured first.

    Raises NothingFeasibleError where it may not be measured, BadInputError where a server does not answer.
    """
    from tuner.calibration import calibrate, calibrate_server, find_ceilings, find_server

    found = find_ceilings(machine, servers)
    if found is not None:
        return found
    if not may_calibrate:
        raise NothingFeasibleError(NO_CALIBRATION, "Run `rooftune calibrate`, or leave --no-calibrate out.")
    host = find_ceilings(machine, ())
    if host is None:
        say("This machine is not calibrated yet; this is done first and takes about a minute.")
        host = calibrate(machine, tell=say, stop=stop)
    remote = []
    for server in servers:
        known = find_server(machine, server)
        if known is None:
            say(f"{server} is not calibrated yet; this is done first and takes about half a minute.")
            known = calibrate_server(machine, server, tell=say, stop=stop)
        remote.append(known)
    return join_ceilings(host, remote)


def _find_place(machine: HardwareProfile, servers: int, find_figures: FindFigures) -> Place:
    """The machine at hand, with the devices of RPC servers before its own as llama.cpp has them."""
    ceilings = find_figures(machine)
    there = add_remote_devices(machine, servers, ceilings)
    return Place(machine=there, budget=find_budget(there), ceilings=ceilings)


def _check_servers(request: PredictRequest) -> None:
    if not request.rpc:
        return
    from tuner.session.checking import check_servers

    check_servers(request.rpc)
    if request.machine:
        raise UsageError("--rpc names devices of this machine, and --machine another one.", "Give one of the two.")


def _resolve(argument: str) -> Sequence[Path]:
    try:
        return resolve_models([argument])
    except (OSError, ValueError) as error:  # names that no file system takes
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"The model cannot be looked for: {reason}.", "Check the path.") from error


def _find_largest(spec: ModelSpec, config: RunConfig, place: Place) -> int | None:
    known = place.budget.host_bytes is not None or any(free is not None for _, free in place.budget.devices)
    if not known or not spec.kv_known or not spec.has_kv:
        return None
    return largest_context(spec, config, place.budget, machine=place.machine)


def _rank(item: Forecast, goal: Goal) -> tuple[bool, float, str]:
    """What fits comes first, then the better prediction."""
    if goal == "context":
        value = float(item.largest_context or 0)
    else:
        estimate = item.prediction.estimate(goal)
        value = estimate.value if estimate else 0.0
    return item.misfit is not None, -value if goal in LARGER_IS_BETTER else value, item.model.path
