"""Makes a GGUF file in another format. The target appears whole or not at all."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from tuner.engines.base import EngineError
from tuner.engines.llama_cpp_python.native import Native

FTYPES: Final = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ3_S": 26,
    "IQ3_M": 27, "IQ4_XS": 30, "BF16": 32,
}  # fmt: skip
"""llama.cpp's number of each format that needs no importance matrix."""


class QuantiseJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of the task."""

    source: str
    """Path of the (first) GGUF file to read."""
    target: str
    """Path of the file to write."""
    ftype: str
    """Format, one of FTYPES, such as Q4_K_M."""
    threads: int = 0
    """Threads to use; 0 means all."""


def quantise(native: Native, arguments: dict[str, Any]) -> dict[str, Any]:
    """Write `target` and return its size: {"path": …, "bytes": …}. Raises EngineError and leaves no partial file."""
    job = _read_job(arguments)
    target = Path(job.target)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    native.log.start_model()
    params = native.api.llama_model_quantize_default_params()
    params.nthread = job.threads
    params.ftype = FTYPES[job.ftype]
    params.allow_requantize = True
    try:
        code = native.api.llama_model_quantize(job.source.encode(), str(partial).encode(), ctypes.byref(params))
        if code != 0:
            said = native.log.complaint or f"llama.cpp returned {code}"
            raise EngineError("failed", f"cannot make {job.ftype} from {job.source}: {said}")
        size = partial.stat().st_size
        partial.replace(target)
    except OSError as error:
        raise EngineError("failed", f"cannot write {target}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return {"path": str(target), "bytes": size}


def _read_job(arguments: dict[str, Any]) -> QuantiseJob:
    try:
        job = msgspec.convert(arguments, QuantiseJob)
    except msgspec.ValidationError as error:
        raise EngineError("invalid", f"quantise: {error}") from error
    if job.ftype not in FTYPES:
        raise EngineError("invalid", f"ftype {job.ftype!r} is none of {', '.join(FTYPES)}")
    if not Path(job.source).is_file():
        raise EngineError("unreadable", f"there is no file {job.source}")
    if not Path(job.target).parent.is_dir():
        raise EngineError("invalid", f"there is no folder {Path(job.target).parent} to write into")
    return job
