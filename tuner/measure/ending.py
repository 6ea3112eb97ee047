"""Why a child ended, in plain words: exit code, signal, our own reasons for ending it, and what its log said last."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from tuner.measure.record import OutcomeState
from tuner.units import format_bytes, format_duration

Cause = Literal["exited", "timeout", "ceiling", "garbage", "stopped"]
"""exited: by itself or by a signal that was not ours; the others: ended by us, and why."""

_ABORT_TEXT: Final = re.compile(r"GGML_ASSERT|GGML_ABORT|what\(\):|terminate called|[Ff]atal error|[Aa]ssert", re.ASCII)
_NO_MEMORY: Final = re.compile(r"bad_alloc|out of memory|failed to allocate|cannot allocate|MemoryError", re.IGNORECASE)
_LONGEST_REASON: Final = 300
WAYS_ROUND: Final = "--no-memory-check lifts the ceiling to nearly all that this machine has, and a --reserve given lowers it"
"""The flags that move the ceiling."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a child's life ended."""

    cause: Cause
    """Who ended it, and why."""
    exit_code: int | None = None
    """As subprocess tells it: negative for a signal; None when it could not be learned."""
    log_tail: tuple[str, ...] = ()
    """Last lines of its log."""
    limit_s: float = 0.0
    """For timeout: the limit, s."""
    memory_bytes: int = 0
    """For ceiling: what it held, bytes."""
    ceiling_bytes: int = 0
    """For ceiling: the limit, bytes."""
    detail: str = ""
    """For garbage: what was seen."""


def explain_ending(ending: Ending) -> tuple[OutcomeState, str]:
    """The trial state that an ending means, and the reason for it in one sentence."""
    match ending.cause:
        case "timeout":
            return "timeout", f"no answer within {format_duration(ending.limit_s)}; the engine's process was ended"
        case "ceiling":
            held, ceiling = format_bytes(ending.memory_bytes), format_bytes(ending.ceiling_bytes)
            ended = f"the engine's process held {held}, more than the ceiling of {ceiling}, and was ended"
            return "out_of_memory", f"{ended}; {WAYS_ROUND}"
        case "garbage":
            return "crash", f"the engine's process wrote {ending.detail} where an answer belongs, and was ended"
        case "stopped":
            return "crash", "the engine's process was ended on request"
        case "exited":
            return _explain_exit(ending.exit_code, ending.log_tail)


def _explain_exit(code: int | None, log_tail: Sequence[str]) -> tuple[OutcomeState, str]:
    if code is None:
        return "crash", "the engine's process closed its answers and would not end"
    if code == -signal.SIGKILL:
        return "out_of_memory", "the engine's process was killed by the system, most likely out of memory"
    if code == -signal.SIGABRT:
        words = find_abort_text(log_tail)
        state: OutcomeState = "out_of_memory" if _NO_MEMORY.search(words) else "crash"
        return state, _join("the native code aborted", words)
    if code in {-signal.SIGSEGV, -signal.SIGBUS}:
        return "crash", f"the native code crashed with {_name_signal(-code)} (a memory access fault)"
    if code == -signal.SIGILL:
        return "crash", "the native code used an instruction that this processor refuses (SIGILL); llama.cpp needs a rebuild"
    if code < 0:
        return "crash", f"the engine's process was ended by {_name_signal(-code)}"
    if code == 0:
        return "crash", "the engine's process ended without an answer"
    return "crash", _join(f"the engine's process ended with exit code {code}", _last_words(log_tail))


def find_abort_text(log_tail: Sequence[str]) -> str:
    """The line that says why native code aborted: the last that looks like an assertion, else the last line; "" without any."""
    for line in reversed(log_tail):
        if _ABORT_TEXT.search(line):
            return line.strip()[:_LONGEST_REASON]
    return _last_words(log_tail)


def _last_words(log_tail: Sequence[str]) -> str:
    return next((line.strip()[:_LONGEST_REASON] for line in reversed(log_tail) if line.strip()), "")


def _join(what: str, words: str) -> str:
    return f"{what}: {words}" if words else what


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
