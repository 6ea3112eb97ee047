"""Run as a child: really loads models and makes contexts, and prints what llama.cpp's log says was allocated.

`python -m tests.memory.real_contexts < points.json`: a line of JSON for each point, null where llama.cpp makes no context.
A fork for each, since llama.cpp may abort; nothing is computed, so it does not matter that the weights are zeros.
"""

from __future__ import annotations

import json
import os
import sys

import msgspec

from tuner.engines.base import PrepareRequest
from tuner.engines.llama_cpp_python.log import NativeLog
from tuner.engines.llama_cpp_python.native import Native
from tuner.engines.llama_cpp_python.settings import (
    NativeModelParams,
    build_context_params,
    pick_context_settings,
    pick_model_settings,
)
from tuner.runconfig import RunConfig
from tuner.workload import Workload

NOTHING = Workload(name="nothing", prompt_tokens=1, output_tokens=2)


def measure(native: Native, config: RunConfig) -> dict[str, int] | None:
    """Bytes by cause and device of a context that was made."""
    native.log = NativeLog(lambda _: None)
    params = NativeModelParams(native, pick_model_settings(PrepareRequest(config=config, workload=NOTHING)))
    model = native.api.llama_model_load_from_file(config.model.encode(), params.value)
    if not model:
        return None
    settings = build_context_params(native, pick_context_settings(config), threads=1, threads_batch=1)
    context = native.api.llama_init_from_model(model, settings)
    return native.log.buffers if context else None


def main() -> None:
    """Nothing is freed: each fork ends with its context."""
    native = Native()
    for point in msgspec.json.decode(sys.stdin.buffer.read(), type=list[RunConfig]):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(writer, "w") as answer:
                json.dump(measure(native, point), answer)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            said = answer.read()
        os.waitpid(child, 0)
        sys.stdout.write((said or "null") + "\n")


if __name__ == "__main__":
    main()
