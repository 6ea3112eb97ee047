"""The façade that both front ends drive: plain values in, one frozen answer out, events on the way."""

from tuner.session.request import DEFAULT_STORAGE, MeasureRequest, TuneRequest, build_tune_command
from tuner.session.resuming import restore_request
from tuner.session.saving import Saved, save_report
from tuner.session.tuning import measure_once, tune
from tuner.session.verification import Verification
from tuner.session.verifying import verify

__all__ = [
    "DEFAULT_STORAGE",
    "MeasureRequest",
    "Saved",
    "TuneRequest",
    "Verification",
    "build_tune_command",
    "measure_once",
    "restore_request",
    "save_report",
    "tune",
    "verify",
]
