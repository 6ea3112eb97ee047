"""Measures the ceilings of this machine through llama.cpp itself, and keeps them."""

from tuner.calibration.measuring import calibrate, calibrate_server, find_ceilings, find_server
from tuner.calibration.store import Kept, find_folder, keep, name_build, name_server, read_kept

__all__ = [
    "Kept",
    "calibrate",
    "calibrate_server",
    "find_ceilings",
    "find_folder",
    "find_server",
    "keep",
    "name_build",
    "name_server",
    "read_kept",
]
