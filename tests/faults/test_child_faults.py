"""A measuring child may do anything; its parent gets a state, a reason in plain words and a working next child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.engines import FAULTY, SOUND
from tuner.errors import InterruptedRunError
from tuner.measure.record import Plan
from tuner.measure.runner import ChildMeasurer
from tuner.measure.stop import Stop
from tuner.measure.validity import ANYTHING
from tuner.workload import PRESETS

MIB = 2**20
LIMIT_S = 1.5
QUICK = PRESETS["quick"]
PLAN = Plan(samples=3, decode_tokens=64)
ROOT = Path(__file__).parents[2]

FAULTS = [
    # engine, state, words of the reason, words of the log's tail ("" where nothing is printed)
    ("Aborts", "crash", "GGML_ASSERT(view_src == nullptr) failed", "last line of the log"),
    ("AbortsForMemory", "out_of_memory", "std::bad_alloc", "what():  std::bad_alloc"),
    ("Segfaults", "crash", "SIGSEGV", ""),
    ("UsesUnknownInstructions", "crash", "an instruction that this processor refuses (SIGILL)", ""),
    ("Hangs", "timeout", "no answer within 1.5s", "about to wait for ever"),
    ("HangsDeafly", "timeout", "no answer within 1.5s", ""),
    ("HangsWithChild", "timeout", "no answer within 1.5s", "grandchild"),
    ("AnswersByteByByte", "timeout", "no answer within 1.5s", ""),
    ("GetsKilled", "out_of_memory", "killed by the system, most likely out of memory", ""),
    ("GetsTerminated", "crash", "SIGTERM", ""),
    ("EatsMemory", "out_of_memory", "more than the ceiling of 300 MiB", ""),
    ("EatsMemoryInChild", "out_of_memory", "more than the ceiling of 300 MiB", ""),
    ("WritesGarbage", "crash", "llama_model_load: done", ""),
    ("WritesJsonOfOthers", "crash", "where an answer belongs", ""),
    ("AnswersForAnother", "crash", "an answer that nobody asked for", ""),
    ("WritesWithoutEnd", "crash", "more than 4194304 bytes in one line", ""),
    ("ClosesItsAnswers", "crash", "closed its answers", ""),
    ("ExitsSilently", "crash", "ended without an answer", ""),
    ("ExitsWithCode", "crash", "exit code 7: CUDA driver version is insufficient", "CUDA driver version"),
    ("Raises", "crash", "ValueError: Failed to create llama_context", "in go_wrong"),
    ("RunsOutOfPython", "out_of_memory", "MemoryError", "in go_wrong"),
    ("Refuses", "invalid", "quantized V cache requires flash_attn to be enabled", ""),
    ("LacksMemory", "out_of_memory", "failed to allocate buffer for kv cache", ""),
    ("Fails", "crash", "llama_decode returned -3", ""),
    ("FloodsTheLog", "crash", "last words", "line 4999"),
]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After each test: no child, no zombie, no descriptor more than before."""
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert left == []
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def open_measurer(engine: str, **changes: object) -> ChildMeasurer:
    settings: dict[str, object] = {"time_limit_s": LIMIT_S, "memory_ceiling_bytes": 300 * MIB, "tolerance": ANYTHING}
    return ChildMeasurer(f"tests.faults.engines:{engine}", **(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("engine", "state", "reason", "log"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_is_an_outcome_and_the_next_point_is_measured(engine: str, state: str, reason: str, log: str) -> None:
    """State, reason and log tail are told within the limit and a second; the next point works."""
    with open_measurer(engine) as measurer:
        began = time.monotonic()
        outcome = measurer.measure(FAULTY, QUICK, PLAN)
        lasted = time.monotonic() - began
        assert (outcome.state, outcome.measurement) == (state, None)
        assert reason in outcome.reason
        assert "\n" not in outcome.reason
        assert log in "\n".join(outcome.log_tail)
        assert len(outcome.log_tail) <= 40
        assert lasted < LIMIT_S + 1
        assert 0 < outcome.elapsed_s <= lasted
        after = measurer.measure(SOUND, QUICK, PLAN)
        assert (after.state, after.reason) == ("complete", "")
        assert after.measurement is not None
        assert after.measurement.ttft_ms == 1.0


@pytest.mark.parametrize("engine", [row[0] for row in FAULTS if row[0] != "FloodsTheLog"])
def test_a_fault_while_memory_is_projected_means_that_it_cannot_say(engine: str) -> None:
    """None, and the next projection works."""
    with open_measurer(engine) as measurer:
        assert measurer.project_memory(FAULTY, front_end="llama-server") is None
        assert measurer.project_memory(SOUND.replace(ctx_size=256), front_end="llama-server") == {
            "weights CPU": 600,
            "kv CPU": 256,
        }


def test_a_fault_after_some_samples_keeps_what_was_spent() -> None:
    """Two turns were measured before the abort in the third; their time is told."""
    with open_measurer("DiesInThirdTurn") as measurer:
        outcome = measurer.measure(SOUND, QUICK, PLAN)
    assert outcome.state == "crash"
    assert outcome.measured_s == pytest.approx(2 * (1.0 + 63 * 0.5) / 1000)


def test_prints_on_stdout_are_log_and_not_answers(capfd: pytest.CaptureFixture[str]) -> None:
    """What native code prints reaches neither the pipe of the answers nor our own streams."""
    with open_measurer("PrintsOnStdout") as measurer:
        assert measurer.measure(SOUND, QUICK, PLAN).state == "complete"
        child = measurer._child
        assert child is not None
        assert child.log_tail == ("ggml_cuda_init: found 0 devices", "and Python prints too")
    assert capfd.readouterr() == ("", "")


def test_the_log_is_bounded_and_free_of_control_codes() -> None:
    """Forty lines of at most five hundred characters, whatever was printed."""
    with open_measurer("FloodsTheLog") as measurer:
        outcome = measurer.measure(FAULTY, QUICK, PLAN)
    assert len(outcome.log_tail) == 40
    assert outcome.log_tail[-2:] == ("line 4999 red", "last words")
    assert max(map(len, outcome.log_tail)) <= 500


def test_a_child_that_dies_between_points_is_replaced() -> None:
    """The answer it gave counts, and the next point is not blamed."""
    with open_measurer("DiesAfterAnswering") as measurer:
        assert measurer.measure(SOUND, QUICK, Plan(samples=1)).state == "complete"
        first = measurer._child
        deadline = time.monotonic() + 5
        while measurer.child_pid is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert measurer.child_pid is None
        assert measurer.measure(SOUND, QUICK, Plan(samples=1)).state == "complete"
        assert measurer._child is not first


def test_a_crash_of_a_used_child_is_tried_in_a_new_one() -> None:
    """A point is blamed only when a fresh process crashes too."""
    with open_measurer("TiresAfterOnePoint") as measurer:
        assert [measurer.measure(SOUND, QUICK, PLAN).state for _ in range(4)] == ["complete"] * 4


def test_a_setting_of_the_process_gets_a_new_process() -> None:
    """NUMA policy can be set once; another one restarts the child, the same one keeps it."""
    with open_measurer("NeedsProcess") as measurer:
        pids = []
        for numa in ("off", "off", "isolate", "isolate", "off"):
            assert measurer.measure(SOUND.replace(numa=numa), QUICK, PLAN).state == "complete"
            pids.append(measurer.child_pid)
    assert [pids.index(pid) for pid in pids] == [0, 0, 2, 2, 4]


def test_an_engine_that_is_never_content_is_asked_twice_only() -> None:
    """needs_process from a new process is a failure."""
    with open_measurer("AlwaysNeedsProcess") as measurer:
        outcome = measurer.measure(SOUND, QUICK, PLAN)
    assert (outcome.state, outcome.reason) == ("crash", "never content")


def test_an_unwatched_child_may_hold_what_it_likes() -> None:
    """Without a ceiling the time limit still ends it."""
    with open_measurer("EatsMemory", memory_ceiling_bytes=None, time_limit_s=0.5) as measurer:
        assert measurer.measure(FAULTY, QUICK, PLAN).state == "timeout"


def test_the_child_hears_no_terminal() -> None:
    """It lives in a session of its own: Ctrl-C in the terminal does not reach it, and it cannot spoil the terminal."""
    with open_measurer("Honest") as measurer:
        measurer.measure(SOUND, QUICK, PLAN)
        assert measurer.child_pid is not None
        assert os.getsid(measurer.child_pid) == os.getpgid(measurer.child_pid) == measurer.child_pid != os.getsid(0)
        os.kill(measurer.child_pid, signal.SIGINT)
        assert measurer.measure(SOUND, QUICK, PLAN).state == "complete"


def test_the_child_goes_first_when_memory_runs_out_and_leaves_no_core() -> None:
    """The system's choice falls on it, not on us."""
    with open_measurer("Honest") as measurer:
        measurer.measure(SOUND, QUICK, PLAN)
        proc = Path(f"/proc/{measurer.child_pid}")
        assert int((proc / "oom_score_adj").read_text()) >= 800
        limits = (proc / "limits").read_text().splitlines()
        assert next(line for line in limits if line.startswith("Max core file size")).split()[4:6] == ["0", "0"]
        assert b"GGML_NO_BACKTRACE=1" in (proc / "environ").read_bytes().split(b"\0")


def test_stop_once_finishes_the_sample() -> None:
    """The turn under way ends by itself; then the run is interrupted."""
    stop = Stop()
    with open_measurer("TakesItsTime", stop=stop) as measurer:
        measurer.measure(SOUND, QUICK, Plan(samples=1))
        threading.Timer(0.1, stop.request).start()
        began = time.monotonic()
        with pytest.raises(InterruptedRunError):
            measurer.measure(SOUND, QUICK, PLAN)
        assert 0.4 <= time.monotonic() - began < 1.1
        assert measurer.child_pid is not None
        with pytest.raises(InterruptedRunError):
            measurer.measure(SOUND, QUICK, PLAN)


def test_stop_twice_ends_the_child_now() -> None:
    """Even one that would hang until its limit."""
    stop = Stop()
    with open_measurer("HangsDeafly", stop=stop, time_limit_s=60.0) as measurer:
        for delay in (0.2, 0.3):
            threading.Timer(delay, stop.request).start()
        began = time.monotonic()
        with pytest.raises(InterruptedRunError):
            measurer.measure(FAULTY, QUICK, PLAN)
        assert time.monotonic() - began < 3
        assert measurer.child_pid is None


PARENT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits it ignored
from tests.faults.engines import FAULTY
from tuner.measure.record import Plan
from tuner.measure.runner import ChildMeasurer
from tuner.workload import PRESETS
with ChildMeasurer("tests.faults.engines:" + sys.argv[1], time_limit_s=60) as measurer:
    measurer.describe_runtime()
    print(measurer.child_pid, flush=True)
    measurer.measure(FAULTY, PRESETS["quick"], Plan(samples=1))
"""


@pytest.mark.parametrize("engine", ["HangsWithChild", "HangsInNativeCode"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_survives_a_parent(number: signal.Signals, engine: str) -> None:
    """However the parent dies, the child and the child's own deaf process die with it."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, engine], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        family = wait_for_family(child)
        parent.send_signal(number)
        parent.wait(timeout=10)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []


def wait_for_family(child: psutil.Process) -> list[psutil.Process]:
    """The child and its own deaf process, once that one is up."""
    deadline = time.monotonic() + 10
    while not child.children() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    family = [child, *child.children()]
    assert len(family) == 2
    return family
