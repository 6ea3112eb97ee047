"""The measuring child: drives one engine, and nothing else of rooftune ever loads llama.cpp.

Promises: requests and answers have pipes of their own, so that whatever native code prints lands in the log; the process, and
every process it started, dies with its parent; it is the first that the system kills when memory runs out.

    python -m tuner.measure.worker --engine llama-cpp-python      reads requests on stdin, answers on stdout
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import BinaryIO

from tuner.engines import find_engine
from tuner.engines.base import Engine, EngineError
from tuner.measure import protocol

OOM_SCORE = 800
"""Of 1000; the system's out-of-memory killer takes this process long before the user's desktop or our parent."""


def main(arguments: list[str] | None = None) -> None:
    """Serve one engine until the requests end."""
    options = _read_options(arguments)
    requests, answers = _take_pipes(options.requests, options.answers)
    _settle_process()
    if options.lifeline is not None:
        _die_with_parent(options.lifeline)
    with requests, answers:
        serve(options.engine, requests, answers)


def serve(engine_name: str, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer each request; returns after Close or at the end of the requests."""
    engine: Engine | None = None
    for line in requests:
        request = protocol.decode_request(line)
        try:
            if engine is None:
                engine = load_engine(engine_name)
            body = _answer(engine, request.body)
        except EngineError as refusal:
            body = protocol.Refused(kind=refusal.kind, message=refusal.message)
        except Exception as fault:  # noqa: BLE001 - any fault of an engine is told to the parent, never lost
            traceback.print_exception(fault)
            sys.stderr.flush()
            body = protocol.Fault(kind=type(fault).__name__, message=str(fault))
        answers.write(protocol.encode_line(protocol.Answer(number=request.number, body=body)))
        answers.flush()
        if isinstance(request.body, protocol.Close):
            return
    if engine is not None:
        engine.close()


def load_engine(name: str) -> Engine:
    """The engine of that name; "package.module:Class" names one outside rooftune. Raises UsageError for an unknown one."""
    if ":" in name:
        module_name, _, class_name = name.partition(":")
        engine = getattr(importlib.import_module(module_name), class_name)()
    else:
        engine = find_engine(name)()
    if not isinstance(engine, Engine):
        raise EngineError("invalid", f"{name!r} is no engine")
    return engine


def _answer(engine: Engine, body: protocol.RequestBody) -> protocol.AnswerBody:
    match body:
        case protocol.Describe():
            return protocol.Described(facts=engine.describe_runtime())
        case protocol.Prepare(request=request):
            return protocol.IsPrepared(prepared=engine.prepare(request))
        case protocol.RunTurn(request=turn):
            return protocol.DidTurn(turn=engine.run_turn(turn))
        case protocol.ProjectMemory(config=config, front_end=front_end):
            return protocol.Projected(buffers=engine.project_memory(config, front_end=front_end))
        case protocol.RunTask(name=name, arguments=values):
            return protocol.DidTask(result=engine.run_task(name, values))
        case protocol.Close():
            engine.close()
            return protocol.Closed()


def _read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tuner.measure.worker", description="The measuring child of rooftune.")
    parser.add_argument("--engine", required=True, help="an engine's name, or package.module:Class")
    parser.add_argument("--requests", type=int, help="file descriptor of the requests; stdin when left out")
    parser.add_argument("--answers", type=int, help="file descriptor of the answers; stdout when left out")
    parser.add_argument("--lifeline", type=int, help="file descriptor of a pipe whose other end the parent holds")
    return parser.parse_args(arguments)


def _take_pipes(requests: int | None, answers: int | None) -> tuple[BinaryIO, BinaryIO]:
    """Private descriptors for the talk with the parent; 0 becomes empty and 1 becomes the log, for whoever comes later."""
    private_in = os.dup(0) if requests is None else requests
    private_out = os.dup(1) if answers is None else answers
    for descriptor in (private_in, private_out):
        os.set_inheritable(descriptor, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return open(private_in, "rb"), open(private_out, "wb")  # noqa: PTH123 - descriptors, closed by the caller


def _settle_process() -> None:
    """No core files, no debugger at an abort, first in line when memory runs out, deaf to a terminal's Ctrl-C."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.exists():
        adjustment.write_text(str(max(OOM_SCORE, int(adjustment.read_text()))))


def _die_with_parent(lifeline: int) -> None:
    """When the parent is gone, its end of the pipe closes and this whole process group is killed.

    Linux does it by itself (the kernel sends the signal, so native code that never returns is no hindrance). The usual
    PR_SET_PDEATHSIG is not used: it fires when the *thread* that started us ends, and leaves our own children behind.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform == "linux" and os.getpgrp() == os.getpid():
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_wait_for_parent, args=(lifeline,), daemon=True, name="lifeline").start()


def _wait_for_parent(lifeline: int) -> None:
    """Also covers a parent that was gone before the signal was set up, and systems without it."""
    while os.read(lifeline, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
