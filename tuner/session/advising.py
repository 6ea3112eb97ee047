"""What the checklist says of a tune's default, with what the study itself measured beside what was expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tuner.errors import NothingFeasibleError
from tuner.hardware import HardwareProfile
from tuner.measure.record import Measurement, Sample
from tuner.measure.statistics import mean_interval
from tuner.objective import LARGER_IS_BETTER
from tuner.roofline.ceilings import Ceilings
from tuner.rules.base import Expected, Finding, Situation
from tuner.rules.checking import check_situation
from tuner.rules.points import change_point
from tuner.session.checking import Checked
from tuner.session.predicting import find_stored_figures
from tuner.session.remote import add_remote_devices
from tuner.session.situation import describe_point
from tuner.study.result import StudyResult
from tuner.trial import Trial

FEWEST_SAMPLES = 3
"""Samples of each side below which a ratio bears no interval."""


def advise(checked: Checked, result: StudyResult, machine: HardwareProfile) -> tuple[dict[str, Any], ...]:
    """The findings for the default configuration, as a report holds them; `measured` where the study tried that change."""
    outcome = result.baseline.outcome
    baseline = outcome.measurement if outcome else None
    ceilings = _find_ceilings(checked, machine)
    situation = describe_point(
        result.baseline.config,
        checked.workload,
        models=checked.models,
        machine=add_remote_devices(machine, len(checked.request.rpc), ceilings),
        memory=checked.memory,
        ceilings=ceilings,
    )
    situation = msgspec.structs.replace(situation, measurement=baseline)
    findings = compare_findings(situation, check_situation(situation), (*result.trials, *result.rounds))
    return tuple(msgspec.json.decode(msgspec.json.encode(findings)))


def compare_findings(situation: Situation, findings: Iterable[Finding], trials: Sequence[Trial]) -> tuple[Finding, ...]:
    """The findings with what their change brought, where `trials` ran both points at full length."""
    return tuple(msgspec.structs.replace(each, measured=_measure_change(situation, each, trials)) for each in findings)


def _measure_change(situation: Situation, finding: Finding, trials: Sequence[Trial]) -> Expected | None:
    if not finding.change:
        return None
    metric = finding.expected.metric if finding.expected else "latency"
    changed = change_point(situation, finding.change)
    before, after = ([*_list_figures(trials, config, metric)] for config in (situation.config, changed))
    if min(len(before), len(after)) < FEWEST_SAMPLES:
        return None
    old, old_half = mean_interval([math.log(value) for value in before])
    new, new_half = mean_interval([math.log(value) for value in after])
    ratio = new - old if metric in LARGER_IS_BETTER else old - new
    half = math.hypot(old_half, new_half)
    return Expected(
        metric=metric, ratio=math.exp(ratio), low=math.exp(ratio - half), high=math.exp(ratio + half), basis="measured"
    )


def _list_figures(trials: Sequence[Trial], config: Any, metric: str) -> Iterable[float]:
    """The metric of every undisturbed full-length sample of a point; a duplicate repeats another trial's samples."""
    for trial in trials:
        found = trial.outcome.measurement if trial.outcome else None
        if found is None or trial.config != config or trial.state == "duplicate":
            continue
        yield from filter(None, (_read_sample(found, sample, metric) for sample in found.samples))


def _read_sample(measurement: Measurement, sample: Sample, metric: str) -> float | None:
    written = measurement.workload.output_tokens
    if metric != "ttft" and measurement.decode_tokens < written:
        return None
    match metric:
        case "ttft":
            return sample.ttft_ms
        case "tpot":
            return sample.tpot_ms
        case "throughput":
            return sample.decode_tps
        case "latency" if sample.ttft_ms is not None and sample.tpot_ms is not None:
            return sample.ttft_ms + (written - 1) * sample.tpot_ms
        case _:
            return None


def _find_ceilings(checked: Checked, machine: HardwareProfile) -> Ceilings | None:
    """What is kept of this machine; a pretended one has no figures, and nothing is measured for advice alone."""
    if checked.request.engine == "simulated":
        return None
    try:
        return find_stored_figures(machine, servers=checked.request.rpc, may_calibrate=False, say=lambda _: None)
    except NothingFeasibleError:
        return None
