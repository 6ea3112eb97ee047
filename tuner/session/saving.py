"""Where a result goes, and the commands that use it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import msgspec

from tuner.errors import BadInputError
from tuner.export.llama_server import build_argv
from tuner.report import Report, write_report
from tuner.report.build import hide_password
from tuner.report.summary import build_measure_command, describe_verdict
from tuner.session.request import TuneRequest, build_tune_command

RESULTS = "results"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A result on disk, and what to type next."""

    path: Path
    """The YAML file."""
    verify_command: str
    """Does the gain still hold?"""
    serve_command: str
    """llama-server with the tuned settings."""
    measure_command: str | None
    """Measures the tuned configuration alone; None for a workload that only a file describes."""
    reproduce_command: str
    """Runs llama.cpp's own benchmark at the same point."""
    export_command: str
    """Other runtimes' formats."""


def check_output(output: str) -> None:
    """Raises BadInputError where the result could not be written in the end; "" means the results folder here."""
    path = Path(output) if output else Path(RESULTS) / "best.yaml"
    if not str(path).isprintable():
        raise BadInputError(f"{str(path)!r} is no name for a file.", "Give another one with -o.")
    folder = path.parent
    try:
        if not output:
            folder.mkdir(exist_ok=True)
        if path.is_dir():
            raise BadInputError(f"{path} is a folder.", "Give the name of a file with -o.")
        if not folder.is_dir():
            raise BadInputError(f"There is no folder {folder} for {path.name}.", "Make it, or give another place with -o.")
        writable = os.access(path if path.exists() else folder, os.W_OK) and os.access(folder, os.W_OK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"Cannot write {path}: {reason}.", "Give another place with -o.") from error
    if not writable:
        raise BadInputError(f"{path} cannot be written here.", "Check the folder's permissions, or give another place with -o.")


def save_report(report: Report, request: TuneRequest) -> Saved:
    """Write the YAML file. Raises BadInputError where that fails."""
    path = Path(request.output) if request.output else Path(RESULTS) / f"{_name_file(report.study)}.yaml"
    serve = shlex.join(build_argv(report))
    shown = msgspec.structs.replace(request, storage=hide_password(request.storage))
    comment = "\n".join(
        (
            "A result of rooftune; every figure in it was measured.",
            describe_verdict(report),
            f"Made by: {build_tune_command(shown)}",
            f"Serve it: {serve}",
        )
    )
    write_report(report, path, comment=comment)
    file = shlex.quote(str(path))
    return Saved(
        path=path,
        verify_command=f"rooftune verify {file}",
        serve_command=serve,
        measure_command=build_measure_command(report),
        reproduce_command=f"rooftune export {file} --to llama-bench | sh",
        export_command=f"rooftune export {file} --to NAME (rooftune export --list)",
    )


def _name_file(study: str) -> str:
    """A study's name as a file name that stays in its folder."""
    return re.sub(r"[^\w.+-]+", "-", study).strip(".-") or "best"
