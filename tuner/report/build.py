"""From a study's result to the final answer. Nothing is computed here that was not measured there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.measure.record import Measurement
from tuner.report.record import FileBest, Gain, MachineNote, ModelNote, Report, Samples, Side
from tuner.trial import Trial, count_states

if TYPE_CHECKING:
    from tuner.hardware import HardwareProfile
    from tuner.model import ModelSpec
    from tuner.study.request import StudyRequest
    from tuner.study.result import Gain as StudyGain
    from tuner.study.result import StudyResult


def build_report(
    result: StudyResult,
    request: StudyRequest,
    *,
    machine: HardwareProfile,
    models: Sequence[ModelNote],
    rpc: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    findings: tuple[dict[str, Any], ...] = (),
) -> Report:
    """The answer of `result`; `models` are the notes of the files that the study could choose from, `findings` what the
    checklist says of the default.
    """
    best = _measurement(result.best)
    return Report(
        machine=note_machine(machine),
        runtime=best.runtime,
        model=_find_note(models, best.config.model),
        workload=request.workload,
        objective=",".join(request.goals),
        limits=tuple(limit.text for limit in request.limits),
        strategy=request.strategy,
        seed=request.seed,
        study=result.study_name,
        storage=hide_password(result.storage),
        baseline=build_side(_measurement(result.baseline)),
        best=build_side(best),
        gain=_build_gain(result.gain),
        pareto=tuple(build_side(_measurement(trial)) for trial in result.pareto),
        files=_list_files(result.per_model, models),
        trials=count_states(result.trials),
        findings=findings,
        notes=(*notes, *result.notes, *([f"the search ended: {result.stop_reason}"] if result.stop_reason else [])),
        rpc=rpc,
        elapsed_s=round(result.elapsed_s, 3),
        measured_s=round(result.measured_s, 3),
    )


def build_side(measurement: Measurement) -> Side:
    """One configuration with its figures; flash attention as llama.cpp settled it."""
    config = measurement.config
    if config.flash_attn == "auto" and measurement.flash_attn in {"on", "off"}:
        config = config.replace(flash_attn=measurement.flash_attn)
    samples = measurement.samples
    return Side(
        config=config,
        ttft_ms=measurement.ttft_ms,
        tpot_ms=measurement.tpot_ms,
        latency_ms=measurement.latency_ms,
        throughput_tps=measurement.throughput_tps,
        throughput_total_tps=measurement.throughput_total_tps,
        memory_bytes=measurement.memory_bytes,
        samples=Samples(
            ttft_ms=tuple(each.ttft_ms for each in samples if each.ttft_ms is not None),
            tpot_ms=tuple(each.tpot_ms for each in samples if each.tpot_ms is not None),
            throughput_tps=tuple(each.decode_tps for each in samples if each.decode_tps is not None),
        ),
    )


def note_machine(machine: HardwareProfile) -> MachineNote:
    """What of a machine decides whether figures still hold."""
    return MachineNote(
        fingerprint=machine.fingerprint,
        summary=machine.summary,
        driver=next((gpu.driver for gpu in machine.gpus if gpu.driver), None),
        usable_threads=machine.limits.usable_threads,
        memory_limit_bytes=machine.limits.memory_limit_bytes,
    )


def note_model(spec: ModelSpec) -> ModelNote:
    """What of a model names it in a result."""
    return ModelNote(path=spec.path, name=spec.name, quant=spec.quant, bytes=spec.file_bytes, sha256=spec.identity)


def hide_password(url: str) -> str:
    """A storage URL as it may be shown."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def _measurement(trial: Trial) -> Measurement:
    found = trial.outcome.measurement if trial.outcome else None
    if found is None:
        raise ValueError(f"trial {trial.number} is part of the answer but has no figures")
    return found


def _build_gain(gain: StudyGain) -> Gain:
    known = math.isfinite(gain.low) and math.isfinite(gain.high)
    return Gain(
        metric=gain.metric,
        ratio=gain.ratio if math.isfinite(gain.ratio) else None,
        ci95=(gain.low, gain.high) if known else None,
        significant=gain.significant,
        rounds=gain.rounds,
    )


def _list_files(trials: Sequence[Trial], models: Sequence[ModelNote]) -> tuple[FileBest, ...]:
    sides = [build_side(_measurement(trial)) for trial in trials]
    return tuple(FileBest(model=_find_note(models, side.config.model), best=side) for side in sides)


def _find_note(models: Sequence[ModelNote], path: str) -> ModelNote:
    return next((note for note in models if note.path == path), models[0])
