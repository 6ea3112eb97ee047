"""What Ctrl-C and SIGTERM do while something is measured: asked for politely first, at once when asked again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tuner.measure.stop import Stop

FINISHING: Final = "Finishing this sample; once more stops at once."


@contextmanager
def hear_interrupts(*, answer: str = FINISHING, at_once: bool = False) -> Iterator[Stop]:
    """A stop that the first signal requests and the second hastens, or the first too with `at_once`. A main thread's matter.

    `answer` is told on stderr when the first signal comes. Once asked, the process is on its way out: further signals
    then change nothing about what it saves, says and returns.
    """
    from tuner.measure.stop import Stop

    stop = Stop()
    told = f"\n{answer}\n".encode()

    def hear(number: int, frame: object) -> None:
        del number, frame
        if not stop.requested:
            os.write(2, told)
            if at_once:
                stop.request()
        stop.request()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        if not stop.requested:
            for number, handler in before.items():
                signal.signal(number, handler)


def ignore_interrupts() -> None:
    """From here to the end of the process a signal no longer changes its exit code. Python's own shutdown honours only this."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
