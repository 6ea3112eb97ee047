"""Why a child ended is said in plain words, and with the flag that matters where there is one."""

from __future__ import annotations

import signal

import pytest

from tuner.measure.ending import Ending, explain_ending

GIB = 2**30

ENDINGS = {
    "held too much": (
        Ending(cause="ceiling", memory_bytes=5 * GIB, ceiling_bytes=4 * GIB),
        "out_of_memory",
        ("held 5 GiB", "ceiling of 4 GiB", "--no-memory-check", "--reserve"),
    ),
    "took too long": (Ending(cause="timeout", limit_s=90), "timeout", ("no answer within 1m 30s",)),
    "wrote rubbish": (Ending(cause="garbage", detail="12 bytes"), "crash", ("wrote 12 bytes where an answer belongs",)),
    "killed by the system": (
        Ending(cause="exited", exit_code=-signal.SIGKILL),
        "out_of_memory",
        ("most likely out of memory",),
    ),
    "aborted": (
        Ending(cause="exited", exit_code=-signal.SIGABRT, log_tail=("GGML_ASSERT(n > 0) failed",)),
        "crash",
        ("aborted: GGML_ASSERT(n > 0) failed",),
    ),
    "aborted for memory": (
        Ending(cause="exited", exit_code=-signal.SIGABRT, log_tail=("what(): std::bad_alloc",)),
        "out_of_memory",
        ("bad_alloc",),
    ),
    "crashed": (Ending(cause="exited", exit_code=-signal.SIGSEGV), "crash", ("SIGSEGV",)),
    "went without a word": (Ending(cause="exited", exit_code=0), "crash", ("without an answer",)),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_ending_has_a_state_and_a_reason(name: str) -> None:
    ending, state, words = ENDINGS[name]
    told, reason = explain_ending(ending)
    assert told == state
    assert [word for word in words if word not in reason] == []
    assert "\n" not in reason
