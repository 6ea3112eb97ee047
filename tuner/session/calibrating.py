"""`calibrate`: the ceilings of this machine and of RPC servers, measured where they are not kept yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tuner.calibration import calibrate, calibrate_server, find_folder, name_build, name_server, read_kept
from tuner.errors import BadInputError
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.stop import Stop
from tuner.measure.validity import describe_busy_machine
from tuner.roofline.ceilings import Ceilings, join_ceilings
from tuner.session.checking import check_servers

Tell = Callable[[str], None]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The figures and how they were come by."""

    ceilings: Ceilings
    """The machine's figures, with those of the servers."""
    fresh: bool
    """Some of them were measured now; False: all were kept from an earlier time."""


def calibrate_machine(
    *,
    force: bool,
    tell: Tell,
    stop: Stop,
    servers: Sequence[str] = (),
    folder: Path | None = None,
    profile: Callable[[], HardwareProfile] = profile_machine,
    measure: Callable[..., Ceilings] = calibrate,
    measure_server: Callable[..., Ceilings] = calibrate_server,
) -> Calibration:
    """The kept figures of this machine and of RPC `servers`, or new ones where there are none or `force` asks for them.

    Raises UsageError for an endpoint that is none, BadInputError where llama.cpp cannot be used or a server does not answer,
    NothingFeasibleError where nothing is timed, InterruptedRunError.
    """
    check_servers(servers)
    machine, place = profile(), folder or find_folder()
    if machine.build is None or not machine.build.importable:
        reason = machine.build.import_error if machine.build else "it could not be asked"
        raise BadInputError(f"llama.cpp cannot be used: {reason or 'unknown reason'}.", "Install llama-cpp-python again.")
    names = (machine.fingerprint, *(name_server(machine.fingerprint, server) for server in servers))
    kept = [None if force else _read(place, name, machine, tell) for name in names]
    if not all(kept):
        _warn_of_load(machine, tell)
    host = kept[0] or measure(machine, tell=tell, stop=stop, folder=place)
    remote = [
        known or measure_server(machine, server, tell=tell, stop=stop, folder=place)
        for server, known in zip(servers, kept[1:], strict=True)
    ]
    return Calibration(ceilings=join_ceilings(host, remote), fresh=not all(kept))


def _read(folder: Path, name: str, machine: HardwareProfile, tell: Tell) -> Ceilings | None:
    kept = read_kept(folder, name, name_build(machine.build))
    if kept.note:
        tell(f"note: {kept.note}")
    return kept.ceilings


def _warn_of_load(machine: HardwareProfile, tell: Tell) -> None:
    from tuner.measure.activity import survey_load

    busy = describe_busy_machine(survey_load(0.3), usable_cores=float(machine.limits.usable_threads))
    if busy:
        tell(f"note: {busy}")
