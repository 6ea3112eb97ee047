"""The final frozen answer, its file, and its words."""

from tuner.report.document import read_report, render_yaml, write_report
from tuner.report.record import SCHEMA, FileBest, Gain, MachineNote, ModelNote, Quality, Report, Samples, Side

__all__ = [
    "SCHEMA",
    "FileBest",
    "Gain",
    "MachineNote",
    "ModelNote",
    "Quality",
    "Report",
    "Samples",
    "Side",
    "read_report",
    "render_yaml",
    "write_report",
]
