"""Keeps calibrations in the user's cache folder: a file for each machine and llama.cpp build, and for each RPC server there.

A file that is damaged, of another schema, or of another machine or version counts as none; it is never an error, since
measuring again brings it back. Written beside and renamed, so that nobody reads half a file.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from tuner.hardware.record import BuildFacts
from tuner.roofline.ceilings import Ceilings

_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    ceilings: Ceilings | None
    """The figures; None: there are none, or none that can be used."""
    note: str = ""
    """Why a file that is there cannot be used; "" otherwise."""


def find_folder() -> Path:
    """Where calibrations are kept; nothing is made."""
    from platformdirs import user_cache_path

    return user_cache_path("rooftune") / "calibrations"


def name_build(build: BuildFacts | None) -> str:
    """llama.cpp's version, commit and the digest of its libraries: a build made anew has another name. "" where unknown."""
    if build is None:
        return ""
    marks = ", ".join(filter(None, (build.llama_cpp_commit, build.library_digest)))
    return f"{build.llama_cpp_version or ''} ({marks})".strip() if marks else build.llama_cpp_version or ""


def name_server(machine: str, endpoint: str) -> str:
    """What stands for the machine where an RPC server's devices are calibrated from it."""
    return f"{machine}+{endpoint}"


def name_file(folder: Path, machine: str, llama_cpp: str) -> Path:
    """The file of one machine with one llama.cpp."""
    return folder / f"{_PLAIN.sub('_', machine) or 'unknown'}-{_PLAIN.sub('_', llama_cpp) or 'unknown'}.json"


def read_kept(folder: Path, machine: str, llama_cpp: str) -> Kept:
    """The calibration of this machine with this llama.cpp. Raises nothing."""
    path = name_file(folder, machine, llama_cpp)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Ceilings)
    except FileNotFoundError:
        return Kept(ceilings=None)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return Kept(ceilings=None, note=f"the calibration in {path} cannot be read ({_first_line(error)}) and counts as none")
    if (found.machine, found.llama_cpp) != (machine, llama_cpp):
        return Kept(ceilings=None, note=f"the calibration in {path} is of another machine or llama.cpp and counts as none")
    if not (found.formats and found.attention and found.fixed and found.devices):
        return Kept(ceilings=None, note=f"the calibration in {path} is not complete and counts as none")
    return Kept(ceilings=found)


def keep(folder: Path, ceilings: Ceilings) -> Path:
    """Write the file, in place of an earlier one. Raises OSError where the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = name_file(folder, ceilings.machine, ceilings.llama_cpp)
    descriptor, beside = tempfile.mkstemp(dir=folder, prefix=".writing-", suffix=".json")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(ceilings), indent=1))
            out.flush()
            os.fsync(out.fileno())
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return path


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
