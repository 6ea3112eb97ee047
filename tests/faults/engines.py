"""Engines that go wrong, each in one way. They run in real measuring children, started as `tests.faults.engines:Name`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from tuner.engines.base import Engine, EngineError, Prepared, PrepareRequest, RuntimeFacts, Turn, TurnRequest
from tuner.runconfig import RunConfig


class Honest(Engine):
    """Does nothing, takes the time that it says it takes, and obeys `config.batch_size` as a signal to go wrong."""

    name = "honest"

    def describe_runtime(self) -> RuntimeFacts:
        return RuntimeFacts(engine=self.name, version="1", llama_cpp="b1")

    def prepare(self, request: PrepareRequest) -> Prepared:
        if request.config.batch_size == FAULTY.batch_size:
            self.go_wrong()
        return Prepared(
            load_ms=2.0,
            context_ms=1.0,
            fill_ms=1.0,
            flash_attn="on",
            ctx_per_slot=256,
            memory_bytes=1000,
            buffers={"weights CPU": 600, "kv CPU": 400},
        )

    def run_turn(self, request: TurnRequest) -> Turn:
        time.sleep(0.002)
        return Turn(
            ttft_ms=1.0 if request.prefill else None,
            decode_ms=0.5 * (request.decode_tokens - 1) if request.decode_tokens else None,
            decode_steps=max(0, request.decode_tokens - 1),
            slots=1,
        )

    def project_memory(self, config: RunConfig, *, front_end: str) -> dict[str, int]:
        if config.batch_size == FAULTY.batch_size:
            self.go_wrong()
        return {"weights CPU": 600, "kv CPU": config.ctx_size}

    def run_task(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name != "echo":
            return super().run_task(name, arguments)
        return arguments

    def close(self) -> None:
        pass

    def go_wrong(self) -> None:
        """Nothing here; the children of this class know how."""


FAULTY = RunConfig(batch_size=13, threads=1, threads_batch=1)
SOUND = RunConfig(batch_size=512, threads=1, threads_batch=1)


class Aborts(Honest):
    def go_wrong(self) -> None:
        sys.stderr.write("model.cpp:12: GGML_ASSERT(view_src == nullptr) failed\nlast line of the log\n")
        sys.stderr.flush()
        os.abort()


class AbortsForMemory(Honest):
    def go_wrong(self) -> None:
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
        os.abort()


class Segfaults(Honest):
    def go_wrong(self) -> None:
        ctypes.string_at(0)


class Hangs(Honest):
    def go_wrong(self) -> None:
        sys.stderr.write("about to wait for ever\n")
        sys.stderr.flush()
        time.sleep(3600)


class HangsDeafly(Honest):
    """Ignores the polite signal."""

    def go_wrong(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)


class HangsWithChild(Honest):
    """Leaves a process of its own behind, deaf to the polite signal."""

    def go_wrong(self) -> None:
        deaf = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(3600)"
        with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            os.write(2, f"grandchild {process.pid}\n".encode())
            time.sleep(3600)


class UsesUnknownInstructions(Honest):
    """As a library built for another processor does."""

    def go_wrong(self) -> None:
        os.kill(os.getpid(), signal.SIGILL)


class HangsInNativeCode(Honest):
    """In a call that never lets another Python thread run, with a process of its own beside it."""

    def go_wrong(self) -> None:
        with subprocess.Popen(["sleep", "3600"]):
            ctypes.PyDLL(None).sleep(3600)


class GetsKilled(Honest):
    def go_wrong(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class GetsTerminated(Honest):
    def go_wrong(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class EatsMemory(Honest):
    def go_wrong(self) -> None:
        eaten = []
        while True:
            eaten.append(b"\1" * 8_000_000)
            time.sleep(0.002)


class EatsMemoryInChild(Honest):
    """It is the group's memory that counts."""

    def go_wrong(self) -> None:
        eat = "import time\neaten = []\nwhile True:\n    eaten.append(b'1' * 4_000_000)\n    time.sleep(0.005)\n"
        subprocess.run([sys.executable, "-c", eat], check=False)


class HoldsMemoryToTheEnd(Honest):
    """A hundred and ninety MiB while it lives, given back by its death."""

    def go_wrong(self) -> None:
        held = b"\1" * 200_000_000
        os.kill(os.getpid(), signal.SIGKILL)
        del held


class LeavesAHolder(Honest):
    """Crashes, and a process of its own got away in a session of its own with a hundred and ninety MiB, until it is killed."""

    def go_wrong(self) -> None:
        hold = "import time; held = b'1' * 200_000_000; print(1, flush=True); time.sleep(3600)"
        with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, start_new_session=True) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            os.write(2, f"holder {holder.pid}\n".encode())
            os.abort()


class WritesGarbage(Honest):
    def go_wrong(self) -> None:
        os.write(find_answer_pipe(), b"\xff\xfe llama_model_load: done\n")


class WritesJsonOfOthers(Honest):
    def go_wrong(self) -> None:
        os.write(find_answer_pipe(), b'{"number": 1, "body": {"type": "did_turn"}}\n')


class AnswersForAnother(Honest):
    """A well-formed answer that nobody asked for."""

    def go_wrong(self) -> None:
        os.write(find_answer_pipe(), b'{"number": 99, "body": {"type": "closed"}}\n')


class WritesWithoutEnd(Honest):
    def go_wrong(self) -> None:
        pipe = find_answer_pipe()
        while True:
            os.write(pipe, b"0123456789" * 1000)


class AnswersByteByByte(Honest):
    """Bytes keep coming, a line never does."""

    def go_wrong(self) -> None:
        pipe = find_answer_pipe()
        while True:
            os.write(pipe, b" ")
            time.sleep(0.02)


class ClosesItsAnswers(Honest):
    def go_wrong(self) -> None:
        os.close(find_answer_pipe())
        time.sleep(3600)


class ExitsSilently(Honest):
    def go_wrong(self) -> None:
        os._exit(0)


class ExitsWithCode(Honest):
    def go_wrong(self) -> None:
        os.write(2, b"CUDA driver version is insufficient\n")
        os._exit(7)


class Raises(Honest):
    def go_wrong(self) -> None:
        raise ValueError("Failed to create llama_context")


class RunsOutOfPython(Honest):
    def go_wrong(self) -> None:
        raise MemoryError


class Refuses(Honest):
    def go_wrong(self) -> None:
        raise EngineError("invalid", "quantized V cache requires flash_attn to be enabled")


class LacksMemory(Honest):
    def go_wrong(self) -> None:
        raise EngineError("out_of_memory", "failed to allocate buffer for kv cache")


class Fails(Honest):
    def go_wrong(self) -> None:
        raise EngineError("failed", "llama_decode returned -3")


class PrintsOnStdout(Honest):
    """Native libraries do; it must land in the log."""

    def prepare(self, request: PrepareRequest) -> Prepared:
        os.write(1, b"ggml_cuda_init: found 0 devices\n")
        print("and Python prints too", flush=True)
        return super().prepare(request)


class FloodsTheLog(Honest):
    """More than a pipe holds, and a line without an end."""

    def prepare(self, request: PrepareRequest) -> Prepared:
        os.write(2, b"x" * 3_000_000)
        for number in range(5000):
            os.write(2, f"\nline {number} \x1b[31mred\x1b[0m".encode())
        os.write(2, b"\nlast words")
        if request.config.batch_size == FAULTY.batch_size:
            os.abort()
        return super().prepare(request)


class DiesAfterAnswering(Honest):
    """The answer is good; the next request finds nobody."""

    def run_turn(self, request: TurnRequest) -> Turn:
        subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -9 {os.getpid()}"]).returncode = 0
        return super().run_turn(request)


class DiesInThirdTurn(Honest):
    def run_turn(self, request: TurnRequest) -> Turn:
        self.turns = getattr(self, "turns", 0) + 1
        if self.turns == 3:
            os.abort()
        return super().run_turn(request)


class TiresAfterOnePoint(Honest):
    """Crashes at every second preparing: a new process is all it needs."""

    def prepare(self, request: PrepareRequest) -> Prepared:
        self.points = getattr(self, "points", 0) + 1
        if self.points == 2:
            os.abort()
        return super().prepare(request)


class NeedsProcess(Honest):
    """A setting that is fixed for the life of a process, as llama.cpp's NUMA policy is."""

    def prepare(self, request: PrepareRequest) -> Prepared:
        settled = getattr(self, "numa", request.config.numa)
        if settled != request.config.numa:
            raise EngineError("needs_process", "the NUMA policy is fixed for the life of a process")
        self.numa = settled
        return super().prepare(request)


class AlwaysNeedsProcess(Honest):
    def prepare(self, request: PrepareRequest) -> Prepared:
        raise EngineError("needs_process", "never content")


class CannotStart(Honest):
    def __init__(self) -> None:
        raise ImportError("libllama.so: undefined symbol")


class StartsSlowly(Honest):
    """The first turn is far slower than the rest."""

    def run_turn(self, request: TurnRequest) -> Turn:
        self.turns = getattr(self, "turns", 0) + 1
        return Turn(ttft_ms=50.0 if self.turns == 1 else 1.0 + self.turns / 100, decode_ms=None, decode_steps=0, slots=1)


class CachesPrompts(Honest):
    """From the second turn on a prompt cache answers, as servers do."""

    def run_turn(self, request: TurnRequest) -> Turn:
        self.turns = getattr(self, "turns", 0) + 1
        cached = 0 if self.turns == 1 else 127
        return Turn(ttft_ms=40.0 if not cached else 1.0, decode_ms=None, decode_steps=0, slots=1, cached_tokens=cached)


class StopsEarly(Honest):
    """The model ended its answer after nine tokens."""

    def run_turn(self, request: TurnRequest) -> Turn:
        return Turn(ttft_ms=1.0, decode_ms=8.0, decode_steps=8, slots=1)


class TakesItsTime(Honest):
    """A turn lasts 0.4 s."""

    def run_turn(self, request: TurnRequest) -> Turn:
        time.sleep(0.4)
        return super().run_turn(request)


def find_answer_pipe() -> int:
    """The private descriptor of the answers, as a stray native write could hit it."""
    return int(next(each for each in sys.argv if each.startswith("--answers=")).partition("=")[2])
