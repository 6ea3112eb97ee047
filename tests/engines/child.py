"""Runs a snippet that drives an engine in a process of its own, as the product does; a crash is then a failed test only.

The snippet sees `engine`, `prepare(config, workload, **request)`, `turn(**request)`, `point(**settings)`, `load(P, n, D)` and
`report(value)`; what it reports comes back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

PREAMBLE = """
import json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from tuner.engines import find_engine
from tuner.engines.base import EngineError, PrepareRequest, TurnRequest
from tuner.runconfig import RunConfig
from tuner.workload import Workload

MODEL = sys.argv[1]
engine = find_engine("llama-cpp-python")()

def point(**settings):
    return RunConfig(**{"model": MODEL, "ctx_size": 512, "threads": 1, "threads_batch": 1, **settings})

def load(prompt=32, output=8, depth=0):
    return Workload(name="test", prompt_tokens=prompt, output_tokens=output, depth_tokens=depth)

def prepare(config, workload, **request):
    return engine.prepare(PrepareRequest(config=config, workload=workload, **request))

def turn(**request):
    return engine.run_turn(TurnRequest(**request))

def refusal(action):
    try:
        action()
    except EngineError as error:
        return [error.kind, error.message]
    return None

def held():
    return [engine._context.count_tokens(slot) for slot in range(engine._context.settings.parallel)]

def last_logits(length):
    # logits after `length` tokens of history and the prompt, which is decoded now
    from tuner.engines.llama_cpp_python.turn import view_logits

    ready, context = engine._ready, engine._context
    ready.history.bring(length, fill_threads=1)
    for batch in ready.prompts:
        context.decode(batch)
    context.synchronize()
    logits = view_logits(context, ready.prompts[-1].outputs[-1], engine._model.tokens.n_vocab).copy()
    ready.history.note_turn(length)
    return logits

def report(value):
    json.dump(value, answer)
    answer.flush()
"""


def run_child(snippet: str, model: Path | str, *arguments: str) -> Any:
    """What the snippet reports. Fails with the child's stderr when the child does."""
    # one thread: two on a machine that tests share wait for each other
    code = PREAMBLE + textwrap.dedent(snippet)
    done = subprocess.run(
        [sys.executable, "-c", code, str(model), *arguments], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
