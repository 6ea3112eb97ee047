"""What a stored study was asked, so that `--resume NAME` alone goes on with it from any folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tuner.errors import BadInputError, suggest_name
from tuner.session.request import TuneRequest

_OF_THIS_SITTING = ("budget", "trials", "output", "reserve", "no_memory_check")
"""Options that a resume may give anew; all others are the study's own."""


def restore_request(request: TuneRequest) -> TuneRequest:
    """The stored request where only a study's name was given; otherwise `request` as it is.

    Raises BadInputError for a study that is not there, StorageError for a storage that cannot be read.
    """
    from tuner.study.storage import read_studies

    if not request.resume or request.models or request.demo:
        return request
    studies = {study.name: study for study in read_studies(request.storage)}
    if request.resume not in studies:
        hint = suggest_name(request.resume, studies, most=5)
        raise BadInputError(f"There is no study {request.resume!r} in {request.storage}.", hint)
    try:
        asked = msgspec.json.decode(studies[request.resume].origin, type=TuneRequest)
    except msgspec.DecodeError:
        return request
    plain = TuneRequest()
    anew = {name: getattr(request, name) for name in _OF_THIS_SITTING if getattr(request, name) != getattr(plain, name)}
    return msgspec.structs.replace(asked, study="", resume=request.resume, storage=request.storage, **anew)


def write_origin(request: TuneRequest, models: Sequence[str]) -> str:
    """The request as it can be read again from another folder."""
    files = {name: _anchor(getattr(request, name)) for name in ("workload", "space", "output")}
    whole = msgspec.structs.replace(request, models=() if request.demo else tuple(models), resume="", **files)
    return msgspec.json.encode(whole).decode()


def _anchor(text: str) -> str:
    """A file's whole path; a preset's name stays."""
    return str(Path(text).absolute()) if text.lower().endswith((".yaml", ".yml")) else text
