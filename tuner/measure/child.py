"""The measuring child as its parent sees it: started in a session of its own, asked with a limit, watched, and always ended.

Promises: a request returns or raises `ChildEndedError` within its limit and a second; after `end` no process of the child's
group, no zombie and no open descriptor is left. Nothing the child writes can make the parent fail or grow.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import psutil

import tuner
from tuner.measure import protocol
from tuner.measure.ending import Ending

TICK_S: Final = 0.05
"""How often memory, stop wish and time limit are looked at while an answer is awaited, s."""
GRACE_S: Final = 0.3
"""Between the polite and the final signal, s."""
LOG_LINES: Final = 40
LOG_LINE_LENGTH: Final = 500

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_START: Final = "import sys; sys.path.append(sys.argv.pop(1)); from tuner.measure.worker import main; main()"
"""Like `-m tuner.measure.worker`, but neither the current folder nor site-packages can come before Python's own modules."""


class ChildEndedError(Exception):
    """The child is gone, by itself or by us; `ending` says how."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.cause)
        self.ending = ending


class Child:
    """One living worker process and the pipes to it."""

    def __init__(
        self,
        engine_name: str,
        *,
        environ: Mapping[str, str] | None = None,
        memory_ceiling_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ceiling = memory_ceiling_bytes
        self._clock = clock
        self._is_stopped = is_stopped
        self._number = 0
        self._buffer = bytearray()
        self._ended = False
        requests_out, self._requests = os.pipe()
        self._answers, answers_in = os.pipe()
        lifeline_out, self._lifeline = os.pipe()
        theirs = (requests_out, answers_in, lifeline_out)
        try:
            self._process = _start_worker(engine_name, theirs, {**os.environ, **(environ or {})})
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(self._requests, False)
        self._log = _Log(self._process)
        self._group = _Group(self._process.pid)

    @property
    def pid(self) -> int:
        """Of the worker; also its process group and session."""
        return self._process.pid

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines that the worker and its native code printed."""
        return self._log.tail()

    def forget_log(self) -> None:
        """What was printed so far belongs to an earlier point."""
        self._log.clear()

    def is_alive(self) -> bool:
        """It has not ended yet; leaves an ended one for `end` to reap."""
        return not self._ended and not self._has_exited()

    def cpu_seconds(self) -> float | None:
        """Processor time of the whole group so far, s; None when it is gone."""
        return self._group.cpu_seconds()

    def ask(self, body: protocol.RequestBody, *, limit_s: float) -> protocol.AnswerBody:
        """Send one request and wait for its answer. Raises ChildEndedError, after which this child is of no more use."""
        self._number += 1
        deadline = self._clock() + limit_s
        try:
            line = protocol.encode_line(protocol.Request(number=self._number, body=body))
            self._send(line, deadline, limit_s)
            answer = self._decode(self._receive(deadline, limit_s))
        except BaseException:
            self.end()
            raise
        return answer.body

    def end(self, *, patiently: bool = False) -> int | None:
        """Kill the whole group, reap it and close the pipes; the exit code. Safe to call again."""
        if not self._ended:
            self._ended = True
            self._kill(grace_s=GRACE_S, first=None if patiently else signal.SIGTERM)
            self._close()
        return self._process.returncode

    def _send(self, line: bytes, deadline: float, limit_s: float) -> None:
        left = memoryview(line)
        poll = select.poll()
        poll.register(self._requests, select.POLLOUT)
        while left:
            self._check(deadline, limit_s)
            if poll.poll(TICK_S * 1000):
                try:
                    left = left[os.write(self._requests, left) :]
                except BrokenPipeError:
                    raise self._end("exited") from None

    def _receive(self, deadline: float, limit_s: float) -> bytes:
        """One line. Looks after limit, memory and stop at each tick, also while bytes keep coming."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > protocol.LONGEST_LINE:
                raise self._end("garbage", detail=f"more than {protocol.LONGEST_LINE} bytes in one line")
            if poll.poll(TICK_S * 1000):
                chunk = os.read(self._answers, 65_536)
                if not chunk:
                    raise self._end("exited")
                self._buffer += chunk
            elif self._has_exited():
                raise self._end("exited")
            self._check(deadline, limit_s)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _decode(self, line: bytes) -> protocol.Answer:
        try:
            answer = protocol.decode_answer(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise self._end("garbage", detail=f"{line[:40]!r}") from None
        if answer.number != self._number or self._buffer:
            raise self._end("garbage", detail="an answer that nobody asked for")
        return answer

    def _check(self, deadline: float, limit_s: float) -> None:
        if self._is_stopped():
            raise self._end("stopped")
        if self._ceiling is not None and (held := self._group.memory_bytes()) > self._ceiling:
            raise self._end("ceiling", memory_bytes=held, ceiling_bytes=self._ceiling)
        if self._clock() >= deadline:
            raise self._end("timeout", limit_s=limit_s)

    def _end(self, cause: str, **facts: object) -> ChildEndedError:
        """End the child for `cause`; the error to raise. Of one that merely closed its answers, the exit code is our doing."""
        if cause == "exited":
            self._await_exit(GRACE_S)
        elif cause == "ceiling":
            self._signal(signal.SIGKILL)
        says_why = cause != "exited" or self._has_exited()
        code = self.end()
        ending = {"cause": cause, "exit_code": code if says_why else None, "log_tail": self.log_tail, **facts}
        return ChildEndedError(msgspec.convert(ending, Ending))

    def _kill(self, *, grace_s: float, first: signal.Signals | None) -> None:
        """The leader is reaped last: as long as it is not, the group's number cannot become another's."""
        if first is not None:
            self._signal(first)
        self._await_exit(grace_s)
        self._signal(signal.SIGKILL)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return  # stuck in the kernel; the signal is pending and the exit code stays unknown

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody left in the group

    def _await_exit(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._has_exited() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _has_exited(self) -> bool:
        """Without reaping it."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _close(self) -> None:
        for descriptor in (self._requests, self._answers, self._lifeline):
            os.close(descriptor)
        self._log.close()


class _Log:
    """Drains what a process prints, so that it never blocks, and keeps a bounded tail."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._stream = process.stdout
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._thread = threading.Thread(target=self._drain, daemon=True, name="engine-log")
        self._thread.start()

    def tail(self) -> tuple[str, ...]:
        return tuple(self._lines.copy())

    def clear(self) -> None:
        self._lines.clear()

    def close(self) -> None:
        """All writers are dead, so the stream ends; a writer that escaped the group is not waited for."""
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._stream.close()

    def _drain(self) -> None:
        """A line without an end is cut, and its rest thrown away."""
        pending = b""
        while chunk := os.read(self._stream.fileno(), 65_536):
            *whole, pending = (pending + chunk).split(b"\n")
            self._lines.extend(_clean_line(line) for line in whole[-LOG_LINES:])
            pending = pending[:LOG_LINE_LENGTH]
        if pending:
            self._lines.append(_clean_line(pending))


class _Group:
    """Memory and processor time of a worker and of what it started."""

    def __init__(self, pid: int) -> None:
        self._leader = psutil.Process(pid)
        self._members = [self._leader]
        self._looks = 0

    def memory_bytes(self) -> int:
        """What cannot be given back: resident memory without file pages (a mapped model file is reclaimable), bytes."""
        if self._looks % 20 == 0:
            self._refresh()
        self._looks += 1
        return sum(_held_bytes(member) for member in self._members)

    def cpu_seconds(self) -> float | None:
        self._refresh()
        try:
            times = [member.cpu_times() for member in self._members]
        except psutil.Error:
            return None
        return sum(each.user + each.system for each in times)

    def _refresh(self) -> None:
        """Listing children reads every process of the machine, hence not at each tick."""
        try:
            self._members = [self._leader, *self._leader.children(recursive=True)]
        except psutil.Error:
            self._members = [self._leader]


def _held_bytes(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - getattr(memory, "shared", 0))


def _clean_line(line: bytes) -> str:
    text = _COLOUR.sub("", line[:LOG_LINE_LENGTH].decode("utf-8", errors="replace"))
    return "".join(each if each.isprintable() else " " for each in text).rstrip()


def _start_worker(engine_name: str, descriptors: tuple[int, int, int], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    requests, answers, lifeline = descriptors
    root = str(Path(tuner.__file__).resolve().parents[1])
    talk = [f"--requests={requests}", f"--answers={answers}", f"--lifeline={lifeline}"]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, root, f"--engine={engine_name}", *talk],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        pass_fds=descriptors,
        start_new_session=True,
        env=environ | {"GGML_NO_BACKTRACE": "1", "PYTHONIOENCODING": "utf-8:replace"},
    )
