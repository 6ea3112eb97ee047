"""A calibration from beginning to end: plan, time, fit, keep. The processor with this machine's devices, or an RPC server's.

A stop ends it within the probe that is under way and keeps nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tuner.calibration.fitting import Fit, fit_ceilings, fit_device
from tuner.calibration.plan import LARGE_BYTES, REFERENCE, Probe, choose_threads, plan_device, plan_probes
from tuner.calibration.probing import Prober, Tell
from tuner.calibration.scaling import fill_threads
from tuner.calibration.store import find_folder, keep, name_build, name_server, read_kept
from tuner.errors import NothingFeasibleError
from tuner.hardware import DeviceFacts, HardwareProfile
from tuner.measure.runner import ChildMeasurer
from tuner.measure.stop import Stop
from tuner.memory.record import HOST
from tuner.roofline.ceilings import Ceilings, DeviceCeiling, join_ceilings

ENGINE: Final = "llama-cpp-python"
DEVICE_BYTES: Final = 2 * LARGE_BYTES
"""Weights of a model that times reading on a device of this machine, whose cache may hold the usual one."""
DEVICE_SHARE: Final = 0.25
"""Of a device's free memory, at most."""

PlanDevice = Callable[[str, int, float], Sequence[Probe]]
"""Name, number and bytes of a model → what is timed there."""


def find_ceilings(machine: HardwareProfile, servers: Sequence[str] = (), *, folder: Path | None = None) -> Ceilings | None:
    """The calibration kept for this machine with this llama.cpp build, and these RPC servers; None: some of it is missing."""
    place = folder or find_folder()
    host = read_kept(place, machine.fingerprint, name_build(machine.build)).ceilings
    remote = [find_server(machine, server, folder=place) for server in servers]
    known = [each for each in remote if each is not None]
    return join_ceilings(host, known) if host is not None and len(known) == len(remote) else None


def find_server(machine: HardwareProfile, server: str, *, folder: Path | None = None) -> Ceilings | None:
    """The calibration kept of one RPC server seen from this machine; None: there is none that can be used."""
    name = name_server(machine.fingerprint, server)
    return read_kept(folder or find_folder(), name, name_build(machine.build)).ceilings


def calibrate(
    machine: HardwareProfile,
    *,
    tell: Tell,
    stop: Stop | None = None,
    folder: Path | None = None,
    plan: Sequence[Probe] | None = None,
    engine: str = ENGINE,
) -> Ceilings:
    """Measure the ceilings of the processor and of each device that takes layers, and keep them.

    Raises InterruptedRunError after a stop, NothingFeasibleError where llama.cpp times nothing, BadInputError where it cannot
    be started or there is no room for the models.
    """
    began = time.monotonic()
    main, between = choose_threads(machine.limits.usable_threads, machine.limits.usable_physical)
    probes = plan_probes(main, between=between) if plan is None else plan
    with _open_prober(machine, tell=tell, stop=stop, engine=engine) as (prober, runtime):
        prober.run(probes)
        _require_times(prober, HOST)
        for number, device in enumerate(machine.devices):
            tell(f"{device.name}: this takes about half a minute more")
            prober.run(plan_device(device.name, number, n_bytes=_limit_bytes(DEVICE_BYTES, device.free_bytes)))
    fits = {HOST: fill_threads(fit_ceilings(prober.timed), between)}
    fits |= {each.name: fit_ceilings(prober.timed, each.name) for each in machine.devices if _is_timed(prober, each.name)}
    roofs = [_find_roofs(name, fit, machine.devices) for name, fit in fits.items()]
    ceilings = _form(
        machine, prober, fits, roofs, name=machine.fingerprint, summary=machine.summary, runtime=runtime, began=began
    )
    _keep(ceilings, folder or find_folder(), tell)
    return ceilings


def calibrate_server(
    machine: HardwareProfile,
    server: str,
    *,
    tell: Tell,
    stop: Stop | None = None,
    folder: Path | None = None,
    plan: PlanDevice | None = None,
    engine: str = ENGINE,
) -> Ceilings:
    """Measure the devices of one RPC server (HOST:PORT) and the way to it, and keep them beside the machine's own.

    Raises as `calibrate` does; BadInputError where no server answers.
    """
    began = time.monotonic()
    with _open_prober(machine, tell=tell, stop=stop, engine=engine, servers=(server,)) as (prober, runtime):
        devices = prober.list_devices()
        for number, device in enumerate(devices):
            tell(f"{server}, {device.name}: this takes about half a minute")
            n_bytes = _limit_bytes(LARGE_BYTES, device.free_bytes)
            prober.run(
                plan_device(device.name, number, n_bytes=n_bytes) if plan is None else plan(device.name, number, n_bytes)
            )
            _require_times(prober, device.name)
    if not devices:
        raise NothingFeasibleError(f"The RPC server {server} offers no device.", "Look at what it says when it starts.")
    fits = {each.name: fit_ceilings(prober.timed, each.name) for each in devices}
    roofs = [fit_device(fits[each.name].formats, each.name, each.total_bytes) for each in devices]
    title = ", ".join(f"{each.name} {each.description}".strip() for each in devices)
    name = name_server(machine.fingerprint, server)
    ceilings = _form(machine, prober, fits, roofs, name=name, summary=f"{server}: {title}", runtime=runtime, began=began)
    _keep(ceilings, folder or find_folder(), tell)
    return ceilings


@contextmanager
def _open_prober(
    machine: HardwareProfile, *, tell: Tell, stop: Stop | None, engine: str, servers: tuple[str, ...] = ()
) -> Generator[tuple[Prober, str]]:
    """A prober, and the engine's name and version."""
    cores = float(machine.limits.usable_threads)
    with (
        tempfile.TemporaryDirectory(prefix="rooftune-calibrate-") as scratch,
        ChildMeasurer(engine, stop=stop, usable_cores=cores) as measurer,
    ):
        runtime = measurer.describe_runtime()
        prober = Prober(measurer, Path(scratch), cores=cores, tell=tell, servers=servers)
        yield prober, f"{runtime.engine} {runtime.version}".strip()


def _limit_bytes(wanted: float, free_bytes: int | None) -> float:
    return wanted if free_bytes is None else min(wanted, DEVICE_SHARE * free_bytes)


def _is_timed(prober: Prober, device: str) -> bool:
    return any(each.device == device and each.shape.format == REFERENCE and not each.history for each in prober.timed)


def _require_times(prober: Prober, device: str) -> None:
    if not _is_timed(prober, device):
        raise NothingFeasibleError(
            "llama.cpp timed none of the models of this calibration.", prober.doubts[0] if prober.doubts else ""
        )


def _find_roofs(name: str, fit: Fit, devices: Sequence[DeviceFacts]) -> DeviceCeiling:
    return fit_device(fit.formats, name, {each.name: each.total_bytes for each in devices}.get(name))


def _form(
    machine: HardwareProfile,
    prober: Prober,
    fits: dict[str, Fit],
    roofs: Sequence[DeviceCeiling],
    *,
    name: str,
    summary: str,
    runtime: str,
    began: float,
) -> Ceilings:
    return Ceilings(
        source="calibrated",
        machine=name,
        summary=summary,
        llama_cpp=name_build(machine.build),
        engine=runtime,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        devices=tuple(roofs),
        formats=tuple(each for fit in fits.values() for each in fit.formats),
        attention=tuple(each for fit in fits.values() for each in fit.attention),
        fixed=tuple(each for fit in fits.values() for each in fit.fixed),
        readings=tuple(each for fit in fits.values() for each in fit.readings),
        links=tuple(each for fit in fits.values() for each in fit.links),
        doubts=prober.sum_up(),
        elapsed_s=time.monotonic() - began,
    )


def _keep(ceilings: Ceilings, folder: Path, tell: Tell) -> None:
    """A folder that cannot be written costs the next prediction another calibration, and nothing else."""
    try:
        keep(folder, ceilings)
    except OSError as error:
        tell(f"note: the calibration cannot be kept in {folder}: {error.strerror}")
