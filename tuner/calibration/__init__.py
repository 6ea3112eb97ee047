"""Measures the ceilings of this machine through llama.cpp itself, and keeps them."""

from tuner.calibration.measuring import calibrate, find_ceilings
from tuner.calibration.store import Kept, find_folder, keep, read_kept

__all__ = ["Kept", "calibrate", "find_ceilings", "find_folder", "keep", "read_kept"]
