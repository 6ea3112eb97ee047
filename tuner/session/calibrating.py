"""`calibrate`: this machine's ceilings, measured where they are not kept yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from tuner.calibration import calibrate, find_folder, read_kept
from tuner.errors import BadInputError
from tuner.hardware import HardwareProfile, profile_machine
from tuner.measure.stop import Stop
from tuner.measure.validity import describe_busy_machine
from tuner.roofline.ceilings import Ceilings

Tell = Callable[[str], None]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The figures and how they were come by."""

    ceilings: Ceilings
    """The machine's figures."""
    fresh: bool
    """They were measured now; False: kept from an earlier time."""


def calibrate_machine(
    *,
    force: bool,
    tell: Tell,
    stop: Stop,
    folder: Path | None = None,
    profile: Callable[[], HardwareProfile] = profile_machine,
    measure: Callable[..., Ceilings] = calibrate,
) -> Calibration:
    """The kept figures of this machine, or new ones where there are none or `force` asks for them.

    Raises BadInputError where llama.cpp cannot be used, NothingFeasibleError where it times nothing, InterruptedRunError.
    """
    machine, place = profile(), folder or find_folder()
    if machine.build is None or not machine.build.importable:
        reason = machine.build.import_error if machine.build else "it could not be asked"
        raise BadInputError(f"llama.cpp cannot be used: {reason or 'unknown reason'}.", "Install llama-cpp-python again.")
    if not force:
        kept = read_kept(place, machine.fingerprint, machine.build.llama_cpp_version or "")
        if kept.note:
            tell(f"note: {kept.note}")
        if kept.ceilings is not None:
            return Calibration(ceilings=kept.ceilings, fresh=False)
    _warn_of_load(machine, tell)
    return Calibration(ceilings=measure(machine, tell=tell, stop=stop, folder=place), fresh=True)


def _warn_of_load(machine: HardwareProfile, tell: Tell) -> None:
    from tuner.measure.activity import survey_load

    busy = describe_busy_machine(survey_load(0.3), usable_cores=float(machine.limits.usable_threads))
    if busy:
        tell(f"note: {busy}")
