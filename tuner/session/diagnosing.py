"""`diagnose`: machine, model, workload and settings become a situation; the checklist answers; its proposals may be tried."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec

from tuner.engines.registry import find_engine
from tuner.errors import InterruptedRunError, NothingFeasibleError, UsageError, reading_flag, suggest_name
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.record import Measurement
from tuner.measure.stop import Stop
from tuner.memory import FrontEnd, ProjectorMemory, default_config, read_projector
from tuner.model import ModelSpec, read_model
from tuner.roofline.ceilings import Ceilings
from tuner.roofline.record import Prediction
from tuner.rules.base import Finding, Situation, Symptom
from tuner.rules.checking import check_situation
from tuner.runconfig import RunConfig
from tuner.session.checking import check_budget, check_servers, read_models
from tuner.session.guarding import MemoryRules, read_rules
from tuner.session.predicting import FindFigures
from tuner.session.remote import add_remote_devices
from tuner.session.request import DEFAULT_ENGINE
from tuner.session.situation import describe_point, find_projectors, find_siblings
from tuner.session.trying import Trier
from tuner.session.tuning import open_measurer
from tuner.space import SpaceSituation, build_space, parse_settings, settle_point
from tuner.space.traits import draw_effective_facts
from tuner.units import parse_duration
from tuner.workload import Workload, load_workload

LEAST_TRYING_S: Final = 30.0
"""For trying changes where calibrating took most of the budget, s."""

Tell = Callable[[str], None]


class DiagnoseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be diagnosed, as the user asked for it."""

    models: tuple[str, ...] = ()
    """One GGUF file; those beside it count as other formats where they are."""
    demo: bool = False
    """The model of the demo extra in place of `models`."""
    workload: str = "chat"
    """Name of a preset, or a YAML file."""
    settings: tuple[str, ...] = ()
    """KEY=VALUE: what differs from the default."""
    symptom: str = ""
    """What the user feels; "" for the whole checklist."""
    promise_ttft: str = ""
    """First token within this time, such as 2s; "": no promise."""
    verify: bool = False
    """Try each proposed change."""
    budget: str = "110s"
    """Wall time for all of it when changes are tried."""
    engine: str = DEFAULT_ENGINE
    """What runs the model."""
    reserve: str = ""
    """Memory left free for others, such as 2GiB; "" for the usual share."""
    front_end: FrontEnd = "llama-server"
    """Whose own settings stand where the user gave none."""
    rpc: tuple[str, ...] = ()
    """Remote devices, HOST:PORT each."""
    mmproj: str = ""
    """Projector file that is started along, counted in memory; "": none."""
    draft: str = ""
    """Draft model that is started along, counted in memory; "": none."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the checklist says."""

    findings: tuple[Finding, ...]
    """Worst first; empty where nothing is to be fixed."""
    model: ModelSpec
    """The file in question."""
    workload: Workload
    """What is to be fast."""
    config: RunConfig
    """The effective settings in question."""
    prediction: Prediction | None
    """Of those settings; None without a calibration."""
    measurement: Measurement | None
    """Of those settings, from the trials; None where nothing was tried."""
    notes: tuple[str, ...]
    """What a reader should know."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose every part means something."""

    spec: ModelSpec
    """The file in question."""
    workload: Workload
    """What is to be fast."""
    settings: dict[str, Any]
    """What differs from the default."""
    symptom: Symptom | None
    """What the user feels; None: nothing was said."""
    promise_ms: float | None
    """First token within this time, ms; None: no promise."""
    budget_s: float
    """Wall time for all of it, s."""
    memory: MemoryRules
    """What may be taken of memory."""
    front_end: FrontEnd
    """Whose own settings stand where the user gave none."""
    rpc: tuple[str, ...]
    """Remote devices, HOST:PORT each."""
    projector: ProjectorMemory | None
    """What is started along for images or sound."""
    draft: ModelSpec | None
    """What is started along to guess tokens ahead."""


def diagnose(
    request: DiagnoseRequest,
    *,
    tell: Tell,
    stop: Stop,
    find_figures: FindFigures,
    profile: Callable[[], HardwareProfile] = profile_machine,
    clock: Callable[[], float] = time.monotonic,
) -> Diagnosis:
    """Run the checklist; with `verify`, try what it proposes. Raises UsageError, BadInputError, or InterruptedRunError.

    Without figures (`find_figures` raises NothingFeasibleError) the rules that need predictions are silent, and a note says so.
    """
    began = clock()
    asked = check_request(request)
    own = profile()
    ceilings = _find_ceilings(request, own, find_figures)
    machine = add_remote_devices(own, len(asked.rpc), ceilings)
    situation = form_situation(asked, machine, ceilings)
    findings = check_situation(situation)
    notes = list_notes(asked, situation, findings)
    trier = None
    misfit = situation.find_misfit(situation.config) if request.verify else None
    if misfit:
        notes += (f"nothing was tried, for the settings in question do not fit: {misfit}",)
    elif request.verify and any(finding.change for finding in findings):
        left = max(LEAST_TRYING_S, asked.budget_s - (clock() - began))
        with open_measurer(request.engine, machine, stop=stop, rpc=asked.rpc, rules=asked.memory) as measurer:
            trier = Trier(situation, measurer, budget_s=left, tell=tell, clock=clock)
            findings = trier.try_findings(findings)
    if stop.requested:
        raise InterruptedRunError("Stopped before the checklist was through.", "Run it again.")
    return Diagnosis(
        findings=findings,
        model=asked.spec,
        workload=asked.workload,
        config=situation.config,
        prediction=situation.predict(asked.spec, situation.config, asked.workload),
        measurement=trier.baseline if trier else None,
        notes=(*notes, *(trier.notes if trier else ())),
    )


_NO_FIGURES: Final = (
    "this machine is not calibrated, so gains cannot be predicted and rules that need predictions are silent; "
    "`rooftune calibrate` changes that"
)
_NO_SERVER_FIGURES: Final = (
    "this machine or a server of --rpc is not calibrated, so gains cannot be predicted and rules that need them are silent; "
    "`rooftune calibrate --rpc` with the same servers changes that"
)
_NO_DEVICE_FIGURES: Final = (
    "the calibration has no figures of a device that these settings put layers on, so rules that need predictions are silent; "
    "--verify tries what is proposed"
)
_BESIDE: Final = "the draft model's memory is counted, its guesses are not: times are told, and measured, without it"
_ONE_USER: Final = (
    "this workload has one user: name one with several, such as --workload batch, to see what serving more costs and brings"
)


def list_notes(asked: Asked, situation: Situation, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """What a reader should know of the answer, one sentence each."""
    known, bare = (
        situation.predict(asked.spec, point, asked.workload) is not None
        for point in (situation.config, situation.config.replace(n_gpu_layers=0))
    )
    about_memory = asked.symptom == "out-of-memory" or any(finding.severity == "stops" for finding in findings)
    beside = find_projectors(asked.spec) if about_memory and asked.projector is None else ()
    told = (
        (_NO_SERVER_FIGURES if asked.rpc else _NO_FIGURES) if situation.ceilings is None else "",
        _NO_DEVICE_FIGURES if bare and not known else "",
        _ONE_USER if asked.symptom == "many-users" and asked.workload.users < 2 else "",
        asked.projector.note if asked.projector else "",
        _BESIDE if asked.draft else "",
        f"a projector lies beside the model and is not counted; where it is started along: --mmproj {beside[0]}"
        if beside
        else "",
    )
    return tuple(filter(None, told))


def _find_ceilings(request: DiagnoseRequest, machine: HardwareProfile, find_figures: FindFigures) -> Ceilings | None:
    """A pretended machine has no figures: those of the real one say nothing about it."""
    if request.engine == _PRETENDED:
        return None
    try:
        return find_figures(machine)
    except NothingFeasibleError:
        return None


_PRETENDED: Final = "simulated"


def check_request(request: DiagnoseRequest) -> Asked:
    """The request with its parts read. Raises UsageError or BadInputError."""
    workload = load_workload(request.workload)
    find_engine(request.engine)
    check_servers(request.rpc)
    symptom = _check_symptom(request.symptom)
    with reading_flag("--promise-ttft"):
        promise = parse_duration(request.promise_ttft) * 1000 if request.promise_ttft else None
    memory = read_rules(request.reserve, no_memory_check=False)
    settings = parse_settings(request.settings)
    budget_s = check_budget(request.budget)
    models = read_models(request.models, demo=request.demo)
    if len(models) > 1:
        raise UsageError("diagnose takes one model file.", "Files beside it are taken into account by themselves.")
    return Asked(
        spec=models[0],
        workload=workload,
        settings=settings,
        symptom=symptom,
        promise_ms=promise,
        budget_s=budget_s,
        memory=memory,
        front_end=request.front_end,
        rpc=request.rpc,
        projector=read_projector(request.mmproj) if request.mmproj else None,
        draft=read_model(request.draft) if request.draft else None,
    )


def form_situation(asked: Asked, machine: HardwareProfile, ceilings: Ceilings | None) -> Situation:
    """Everything that rules may look at. Raises BadInputError for settings that cannot run."""
    space = SpaceSituation(hardware=machine, models=(asked.spec,), workload=asked.workload, goals=("latency",))
    config = build_space(space, fixed=asked.settings).baseline
    if asked.front_end == "llama-cpp-python":
        config = start_in_python(config, asked, space)
    situation = describe_point(
        config,
        asked.workload,
        models=(asked.spec, *find_siblings(asked.spec)),
        machine=machine,
        memory=asked.memory,
        ceilings=ceilings,
        projector_bytes=asked.projector.total_bytes if asked.projector else None,
        draft=asked.draft,
    )
    return msgspec.structs.replace(situation, symptom=asked.symptom, promise_ttft_ms=asked.promise_ms)


def start_in_python(config: RunConfig, asked: Asked, space: SpaceSituation) -> RunConfig:
    """`config` with what `Llama()` sets where it is not told: whole caches for sliding windows, flash attention off, nothing on
    a device, half of the machine's processors to write and all of them to read, whatever this process may use of them.
    """
    logical = space.hardware.cpu.logical_cpus
    own = default_config("llama-cpp-python", asked.spec)
    names = ("n_gpu_layers", "batch_size", "ubatch_size", "flash_attn", "swa_full")
    told = {name: getattr(own, name) for name in names} | {"threads": max(1, logical // 2), "threads_batch": logical}
    changes = {name: value for name, value in told.items() if name not in asked.settings}
    return settle_point(config.replace(**changes), draw_effective_facts(space, asked.spec))


def _check_symptom(name: str) -> Symptom | None:
    known = [symptom for symptom in get_args(Symptom) if symptom != "machine"]
    for symptom in known:
        if symptom == name:
            found: Symptom = symptom
            return found
    if name:
        raise UsageError(f"There is no symptom {name!r}.", suggest_name(name, known))
    return None
