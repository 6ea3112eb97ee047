"""Runs a calibration: writes each model, has the measuring child time it, fits, and keeps what came out.

Promises: whatever llama.cpp does with one format is a doubt about that format, and the others go on; models are gone
at the end; a stop ends it within the probe that is under way and keeps nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from tuner.calibration.fitting import Timed, fit_ceilings, fit_device
from tuner.calibration.plan import REFERENCE, Probe, plan_probes
from tuner.calibration.store import find_folder, keep, read_kept
from tuner.calibration.synthetic import write_model
from tuner.errors import BadInputError, InterruptedRunError, NothingFeasibleError
from tuner.hardware import HardwareProfile
from tuner.measure.activity import compare_snapshots, take_snapshot
from tuner.measure.runner import ChildMeasurer
from tuner.measure.stop import Stop
from tuner.measure.validity import STRICT, Effort, judge_sample
from tuner.roofline.ceilings import Ceilings
from tuner.runconfig import RunConfig

ENGINE: Final = "llama-cpp-python"
LIMIT_S: Final = 60.0
"""One probe that takes longer than this is given up, s."""
AGAIN_S: Final = 70.0
"""No disturbed probe is repeated after so long, s."""
ENOUGH_S: Final = 6.0
"""No further round of a probe is begun after so long, s."""

Tell = Callable[[str], None]


class _Times(msgspec.Struct, frozen=True):
    seconds: tuple[float, ...]
    cpu_share: float


def find_ceilings(machine: HardwareProfile, llama_cpp: str, *, folder: Path | None = None) -> Ceilings | None:
    """The calibration kept for this machine and this llama.cpp version; None: there is none that can be used."""
    return read_kept(folder or find_folder(), machine.fingerprint, llama_cpp).ceilings


def calibrate(
    machine: HardwareProfile,
    *,
    tell: Tell,
    stop: Stop | None = None,
    folder: Path | None = None,
    plan: Sequence[Probe] | None = None,
    engine: str = ENGINE,
) -> Ceilings:
    """Measure the processor's ceilings and keep them.

    Raises InterruptedRunError after a stop, NothingFeasibleError where llama.cpp times nothing, BadInputError where it cannot
    be started or there is no room for the models.
    """
    began = time.monotonic()
    threads = sorted({1, machine.limits.usable_threads})
    probes = plan_probes(threads) if plan is None else plan
    with (
        tempfile.TemporaryDirectory(prefix="rooftune-calibrate-") as scratch,
        ChildMeasurer(engine, stop=stop, usable_cores=float(machine.limits.usable_threads)) as measurer,
    ):
        runtime = measurer.describe_runtime()
        timed, doubts = _run_probes(probes, measurer, Path(scratch), machine, tell)
    if not any(each.shape.format == REFERENCE and not each.history for each in timed):
        raise NothingFeasibleError("llama.cpp timed none of the models of this calibration.", doubts[0] if doubts else "")
    fit = fit_ceilings(timed)
    ceilings = Ceilings(
        source="calibrated",
        machine=machine.fingerprint,
        summary=machine.summary,
        llama_cpp=(machine.build.llama_cpp_version if machine.build else None) or "",
        engine=f"{runtime.engine} {runtime.version}".strip(),
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        devices=(fit_device(fit.formats),),
        formats=fit.formats,
        attention=fit.attention,
        fixed=fit.fixed,
        doubts=(*doubts, *_sum_up_marks(timed)),
        elapsed_s=time.monotonic() - began,
    )
    _keep(ceilings, folder or find_folder(), tell)
    return ceilings


def _run_probes(
    probes: Sequence[Probe], measurer: ChildMeasurer, scratch: Path, machine: HardwareProfile, tell: Tell
) -> tuple[list[Timed], list[str]]:
    timed: list[Timed] = []
    doubts: list[str] = []
    again_until = time.monotonic() + AGAIN_S
    for number, probe in enumerate(probes, 1):
        tell(f"{number} of {len(probes)}: {probe.title}")
        try:
            found = _run_probe(probe, measurer, scratch, machine)
            if any(each.marked for each in found) and time.monotonic() < again_until:
                tell("disturbed, so once more")
                found = [_pick_better(*both) for both in zip(found, _run_probe(probe, measurer, scratch, machine), strict=True)]
            timed += found
        except InterruptedRunError:
            raise InterruptedRunError("Stopped before the calibration was through; none of it is kept.") from None
        except BadInputError as error:
            doubts.append(f"{probe.title} could not be timed: {error.message}")
    return timed, doubts


def _pick_better(first: Timed, second: Timed) -> Timed:
    """What was undisturbed; of two disturbed ones the faster, since a disturbance only ever slows down."""
    if bool(first.marked) != bool(second.marked):
        return second if first.marked else first
    return min(first, second, key=lambda each: min(each.seconds))


def _run_probe(probe: Probe, measurer: ChildMeasurer, scratch: Path, machine: HardwareProfile) -> list[Timed]:
    path = scratch / "model.gguf"
    try:
        write_model(path, probe.shape)
    except OSError as error:
        raise BadInputError(f"there is no room for a model in {scratch}: {error.strerror}", "") from error
    try:
        before = take_snapshot(own_s=_spent(measurer))
        answer = measurer.run_task("probe", _ask_for(probe, path), limit_s=LIMIT_S)
        activity = compare_snapshots(before, take_snapshot(own_s=_spent(measurer)))
    finally:
        path.unlink(missing_ok=True)
    times = msgspec.convert(answer["times"], tuple[_Times, ...])
    cores = float(machine.limits.usable_threads)
    found = []
    for case, each in zip(probe.cases, times, strict=True):
        effort = Effort(threads=case.threads, share=each.cpu_share, on_cpu=True)
        reason = judge_sample([effort], activity, usable_cores=cores, tolerance=STRICT)
        found.append(
            Timed(
                shape=probe.shape,
                cache=probe.cache,
                history=probe.history,
                tokens=case.tokens,
                depth=case.depth,
                threads=case.threads,
                seconds=each.seconds,
                marked=f"Measured on a busy machine ({reason})." if reason else "",
            )
        )
    return found


def _ask_for(probe: Probe, path: Path) -> dict[str, Any]:
    most = max(case.tokens for case in probe.cases)
    config = RunConfig(
        model=str(path),
        n_gpu_layers=0,
        ctx_size=max(case.depth + case.tokens for case in probe.cases),
        batch_size=most,
        ubatch_size=most,
        cache_type_k=probe.cache[0],
        cache_type_v=probe.cache[1],
        flash_attn="on" if probe.cache[2] else "off",
        threads=1,
        threads_batch=1,
    )
    return {
        "config": msgspec.to_builtins(config),
        "cases": msgspec.to_builtins(probe.cases),
        "rounds": probe.rounds,
        "visit_s": probe.visit_s,
        "limit_s": ENOUGH_S,
    }


def _spent(measurer: ChildMeasurer) -> float | None:
    """Processor time of the child and of ourselves, s; None while there is no child."""
    import psutil

    if measurer.child_pid is None:
        return None
    try:
        times = psutil.Process(measurer.child_pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system) + time.process_time()


def _sum_up_marks(timed: Sequence[Timed]) -> list[str]:
    marked = sum(bool(each.marked) for each in timed)
    if not marked:
        return []
    return [f"The machine was busy while {marked} of {len(timed)} times were taken; calibrate again when it is idle."]


def _keep(ceilings: Ceilings, folder: Path, tell: Tell) -> None:
    """A folder that cannot be written costs the next prediction another calibration, and nothing else."""
    try:
        keep(folder, ceilings)
    except OSError as error:
        tell(f"note: the calibration cannot be kept in {folder}: {error.strerror}")
