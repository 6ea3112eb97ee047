"""`verify`: read the file, see what changed since, measure again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuner.engines.base import RuntimeFacts
from tuner.engines.registry import find_engine
from tuner.errors import BadInputError
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.activity import Activity, survey_load
from tuner.measure.stop import Stop
from tuner.measure.validity import describe_busy_machine
from tuner.model import ModelSpec, read_model
from tuner.report import Report, read_report
from tuner.report.build import note_machine
from tuner.session.checking import check_budget
from tuner.session.guarding import read_rules
from tuner.session.tuning import SURVEY_S, guard_measured, open_measurer
from tuner.session.verification import Verification, check_fit, compare_again, confirm_default
from tuner.units import format_bytes


def verify(
    path: Path,
    *,
    budget: str = "5m",
    reserve: str = "",
    no_memory_check: bool = False,
    tell: Callable[[str], None],
    stop: Stop,
    profile: Callable[[], HardwareProfile] = profile_machine,
    survey: Callable[[float], Activity] = survey_load,
) -> Verification:
    """Default against best again. Raises BadInputError for a file or model that cannot be used."""
    budget_s = check_budget(budget)
    rules = read_rules(reserve, no_memory_check=no_memory_check)
    report = read_report(path)
    find_engine(report.runtime.engine)
    spec = _read_model(report, path)
    machine = profile()
    changed = find_changes(report, spec, machine)
    if report.is_default_best:
        return confirm_default(report, changed=changed)
    busy = describe_busy_machine(survey(SURVEY_S), usable_cores=float(machine.limits.usable_threads))
    for line in (*(f"changed since: {each}" for each in changed), *([busy] if busy else [])):
        tell(line)
    with open_measurer(report.runtime.engine, machine, stop=stop, rpc=report.rpc, rules=rules) as measurer:
        check_fit(report, spec.path, guard_measured(measurer, (spec,), machine, rules, rpc=report.rpc))
        changed += find_runtime_changes(report.runtime, measurer.describe_runtime())
        return compare_again(
            report,
            measurer=measurer,
            model=spec.path,
            budget_s=budget_s,
            tell=tell,
            changed=changed,
            notes=(busy,) if busy else (),
        )


def find_changes(report: Report, spec: ModelSpec, machine: HardwareProfile) -> tuple[str, ...]:
    """What of model and machine is not as it was, in plain words."""
    was, now = report.machine, note_machine(machine)
    pairs = (
        ("the machine", was.summary, now.summary, was.fingerprint != now.fingerprint),
        ("the GPU driver", was.driver or "none", now.driver or "none", was.driver != now.driver),
        ("usable threads", was.usable_threads, now.usable_threads, was.usable_threads != now.usable_threads),
        (
            "the memory limit",
            format_bytes(was.memory_limit_bytes),
            format_bytes(now.memory_limit_bytes),
            was.memory_limit_bytes != now.memory_limit_bytes,
        ),
        ("the model file", report.model.sha256[:12], spec.identity[:12], report.model.sha256 != spec.identity),
    )
    return tuple(f"{what} was {old} and is {new}" for what, old, new, differs in pairs if differs)


def find_runtime_changes(was: RuntimeFacts, now: RuntimeFacts) -> tuple[str, ...]:
    """What of the program is not as it was."""
    pairs = (
        (was.engine, was.version, now.version),
        ("llama.cpp", was.llama_cpp, now.llama_cpp),
    )
    return tuple(f"{what} was {old or 'unknown'} and is {new or 'unknown'}" for what, old, new in pairs if old != new)


def _read_model(report: Report, path: Path) -> ModelSpec:
    if not Path(report.model.path).is_file():
        raise BadInputError(
            f"The model of {path} is not at {report.model.path} any more.", "Put it back, or run `rooftune tune` again."
        )
    return read_model(report.model.path)
