"""The whole way of a tune: request → machine and model → space → study → report. Front ends call this and nothing below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from tuner.engines.base import RuntimeFacts
from tuner.errors import InterruptedRunError, NothingFeasibleError
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.activity import Activity, survey_load
from tuner.measure.record import Measurement, Measurer, Plan
from tuner.measure.runner import ChildMeasurer
from tuner.measure.stop import Stop
from tuner.measure.validity import describe_busy_machine
from tuner.model import ModelSpec
from tuner.report import Report
from tuner.report.build import build_report, note_model
from tuner.roofline.record import Prediction
from tuner.runconfig import RunConfig
from tuner.session.advising import advise
from tuner.session.checking import Checked, check_measure, check_study, check_tune
from tuner.session.guarding import MemoryRules, Project, add_remote, find_ceiling, guard_memory
from tuner.session.request import MeasureRequest, TuneRequest, build_tune_command
from tuner.session.resuming import restore_request, write_origin
from tuner.space import SearchSpace, SpaceSituation, build_space, choose_space, load_space
from tuner.study.events import Note, StudyEvent
from tuner.study.foresight import make_predict
from tuner.study.loop import run_study
from tuner.study.request import KeyFacts, StudyRequest

Emit = Callable[[StudyEvent], None]
SURVEY_S = 0.4
"""How long the machine is watched before the search, s."""


def tune(
    request: TuneRequest,
    *,
    emit: Emit,
    stop: Stop,
    profile: Callable[[], HardwareProfile] = profile_machine,
    survey: Callable[[float], Activity] = survey_load,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Search, confirm, report. Raises RooftuneError with its exit code for all that a user can cause.

    Everything is checked before the first child starts. An InterruptedRunError says in its hint how to go on.
    """
    began = clock()
    request = restore_request(request)
    checked = check_tune(request)
    machine = profile()
    space = form_space(checked, machine)
    check_study(request)
    notes = describe_start(checked, space, machine, survey)
    for note in notes:
        emit(Note(text=note))
    with open_measurer(request.engine, machine, stop=stop, rpc=request.rpc, rules=checked.memory) as measurer:
        study = form_study(checked, space, measurer.describe_runtime(), machine)
        misfit = guard_measured(measurer, checked.models, machine, checked.memory, rpc=request.rpc)
        try:
            result = run_study(study, measurer, emit=emit, find_misfit=misfit, clock=clock, stop=stop, began=began)
        except InterruptedRunError as error:
            raise InterruptedRunError(error.message, _describe_way_on(error, request)) from error
    models = [note_model(spec) for spec in checked.models]
    findings = advise(checked, result, machine)
    return build_report(result, study, machine=machine, models=models, rpc=request.rpc, notes=notes, findings=findings)


def measure_once(
    request: MeasureRequest, *, stop: Stop, profile: Callable[[], HardwareProfile] = profile_machine
) -> Measurement:
    """Measure one configuration with full turns. Raises NothingFeasibleError with the reason where it does not run."""
    spec, workload, settings, rules = check_measure(request)
    machine = profile()
    situation = SpaceSituation(
        hardware=machine, models=(spec,), workload=workload, goals=("latency",), rpc_devices=len(request.rpc)
    )
    config = build_space(situation, fixed=settings).baseline
    plan = Plan(samples=request.samples, prefill=True, decode_tokens=workload.output_tokens, fresh=True)
    with open_measurer(request.engine, machine, stop=stop, rpc=request.rpc, rules=rules) as measurer:
        reason = guard_measured(measurer, (spec,), machine, rules, rpc=request.rpc)(config)
        if reason is not None:
            raise NothingFeasibleError(f"This does not fit: {reason}.", "Change it with --set, or give a smaller workload.")
        outcome = measurer.measure(config, workload, plan)
    if outcome.measurement is None:
        reason = outcome.reason or outcome.state
        raise NothingFeasibleError(f"The configuration does not run: {reason}.", "Change it with --set.")
    return msgspec.structs.replace(outcome.measurement, notes=(*outcome.measurement.notes, *outcome.notes))


def form_space(checked: Checked, machine: HardwareProfile) -> SearchSpace:
    """The points worth trying here. Raises BadInputError where the fixed settings cannot run."""
    situation = SpaceSituation(
        hardware=machine,
        models=checked.models,
        workload=checked.workload,
        goals=checked.goals,
        allow_quality_loss=checked.request.allow_quality_loss,
        rpc_devices=len(checked.request.rpc),
        least_context=int(max((limit.value for limit in checked.limits if limit.metric == "ctx_size"), default=0)),
    )
    preset = checked.space or load_space(choose_space(machine, goals=checked.goals, rpc_devices=situation.rpc_devices))
    return build_space(situation, preset, fixed=checked.settings)


def form_study(checked: Checked, space: SearchSpace, runtime: RuntimeFacts, machine: HardwareProfile) -> StudyRequest:
    """What the study is asked, with the facts that its figures hold for."""
    request = checked.request
    return StudyRequest(
        workload=checked.workload,
        goals=checked.goals,
        limits=checked.limits,
        space=space,
        facts=KeyFacts(
            models=tuple(spec.identity for spec in checked.models),
            engine=f"{runtime.engine} {runtime.version}".strip(),
            llama_cpp=runtime.llama_cpp,
            machine=machine.fingerprint,
        ),
        budget_s=checked.budget_s,
        trials=request.trials,
        seed=request.seed,
        storage=request.storage,
        study_name=request.resume or request.study,
        resume=bool(request.resume),
        strategy=checked.strategy,
        origin=write_origin(request, [spec.path for spec in checked.models]),
        allow_quality_loss=request.allow_quality_loss,
        predict=find_predict(checked, machine),
    )


def find_predict(checked: Checked, machine: HardwareProfile) -> Callable[[RunConfig], Prediction | None] | None:
    """What this machine's calibration says of a point; None without one, and for a pretended machine."""
    request = checked.request
    if checked.strategy != "physics" or request.engine == "simulated":
        return None
    from tuner.calibration import find_ceilings

    return make_predict(checked.models, checked.workload, find_ceilings(machine, request.rpc))


def note_missing_calibration(checked: Checked, machine: HardwareProfile) -> str:
    """What to tell a user whose search goes without predictions; "" where it has them, or would not ask for any."""
    request = checked.request
    if checked.strategy != "physics" or request.engine == "simulated":
        return ""
    from tuner.calibration import find_ceilings

    if find_ceilings(machine, request.rpc) is not None:
        return ""
    servers = f" --rpc {','.join(request.rpc)}" if request.rpc else ""
    return f"calibrate once (75 s) for better predictions: rooftune calibrate{servers}"


def open_measurer(
    engine: str, machine: HardwareProfile, *, stop: Stop, rpc: tuple[str, ...] = (), rules: MemoryRules | None = None
) -> ChildMeasurer:
    """A measurer whose child stays below the memory that `rules` leave it, the usual ones where none are given."""
    ceiling = find_ceiling(machine, rules or MemoryRules())
    cores = machine.limits.cpu_quota or float(machine.limits.usable_threads)
    return ChildMeasurer(engine, memory_ceiling_bytes=ceiling, rpc_servers=rpc, usable_cores=cores, stop=stop)


def guard_measured(
    measurer: Measurer, models: tuple[ModelSpec, ...], machine: HardwareProfile, rules: MemoryRules, *, rpc: tuple[str, ...]
) -> Callable[[RunConfig], str | None]:
    """Says why a point does not fit before it is run; where arithmetic comes close, the measuring child is asked."""
    return guard_memory(models, add_remote(machine, rpc), rules, project=_make_project(measurer, rpc=rpc))


def _make_project(measurer: Measurer, *, rpc: tuple[str, ...]) -> Project | None:
    """Asks the measuring child what a point takes; None with remote devices, which nothing is on before the model is loaded."""

    def project(config: RunConfig) -> Mapping[str, int] | None:
        try:
            return measurer.project_memory(config, front_end="llama-server")
        except InterruptedRunError:
            return None  # the measurement that follows stops in its own words

    return None if rpc else project


def describe_start(
    checked: Checked, space: SearchSpace, machine: HardwareProfile, survey: Callable[[float], Activity]
) -> tuple[str, ...]:
    """What a user should know before the search begins."""
    notes = list(space.warnings(space.baseline))
    if checked.request.engine != "simulated":
        busy = describe_busy_machine(survey(SURVEY_S), usable_cores=float(machine.limits.usable_threads))
        notes += [busy] if busy else []
    if len(checked.models) > 1 and not checked.request.allow_quality_loss:
        notes.append("smaller files are measured too, but the most precise one stays the best without --allow-quality-loss")
    if not checked.memory.checked:
        rules, there = msgspec.structs.replace(checked.memory, checked=True), add_remote(machine, checked.request.rpc)
        misfit = guard_memory(checked.models, there, rules)(space.baseline)
        notes += [f"memory is not checked; the default: {misfit.partition(';')[0]}"] if misfit else []
    return (*notes, *filter(None, [note_missing_calibration(checked, machine)]))


def _describe_way_on(error: InterruptedRunError, request: TuneRequest) -> str:
    """The command that goes on with the study named in the error's hint."""
    _, found, name = error.hint.partition("--resume ")
    if not found:
        return error.hint
    again = msgspec.structs.replace(request, study="", resume=name.rstrip("."))
    return f"Go on with: {build_tune_command(again)}"
