"""Finds out whether this build's AMX kernels run here, at the cost of a forked process instead of this one.

Older GCC (12.2 among them) compiles llama.cpp's tile set-up to nothing, so that the first batch dies of an illegal instruction
on every CPU with AMX. Such a build still runs with weights left as they are in the file.
"""

from __future__ import annotations

import os
from typing import Any, Final

from tuner.engines.llama_cpp_python.native import Native

AMX_WARNING: Final = (
    "rooftune: this llama.cpp build crashes in its AMX code, so weights are not repacked; "
    "reinstall llama-cpp-python with `CMAKE_ARGS='-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8'`"
)

_BATCH: Final = 32
"""Tokens of the trial batch; a single token takes another kernel."""


def amx_crashes(native: Native, model: Any) -> bool:
    """Whether computing a batch with `model`, loaded into AMX buffers, kills the process that does it."""
    child = os.fork()
    if child == 0:
        _compute_a_batch(native, model)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _compute_a_batch(native: Native, model: Any) -> None:
    """On one thread: the threads of this process did not survive the fork."""
    import ctypes

    api = native.api
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_outputs_max = 256, _BATCH, _BATCH, 1
    params.n_threads = params.n_threads_batch = 1
    context = api.llama_init_from_model(model, params)
    if context:
        tokens = (ctypes.c_int32 * _BATCH)()
        api.llama_decode(context, api.llama_batch_get_one(tokens, _BATCH))
        api.llama_synchronize(context)
