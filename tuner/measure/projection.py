"""Asks llama.cpp in a child process what configurations would take of memory, without allocating it.

A child that crashes, hangs or has no such library is a reason in plain words, never an exception: an estimate that cannot be
had refuses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tuner.measure import protocol
from tuner.measure.child import Child, ChildEndedError
from tuner.measure.ending import explain_ending
from tuner.runconfig import RunConfig

ENGINE: Final = "llama-cpp-python"
MEMORY_CEILING_BYTES: Final = 4 * 2**30
"""Above it the child is ended: recurrent state is allocated for real even by a projection, bytes."""


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's answer for one configuration."""

    buffers: dict[str, int] | None
    """Bytes by cause and buffer type ("weights CPU", "kv CPU", "compute CPU", …); None: it could not say."""
    reason: str = ""
    """Why it could not say, in plain words; "" when it did."""


def ask_projection(
    configs: Sequence[RunConfig],
    *,
    front_end: str,
    limit_s: float = 30.0,
    memory_ceiling_bytes: int | None = MEMORY_CEILING_BYTES,
) -> tuple[Projection, ...]:
    """One answer per configuration, in order, each with a path in `config.model`; `limit_s` is for each of them.

    After a crash or a timeout the next configuration gets a new child.
    """
    answers: list[Projection] = []
    child: Child | None = None
    try:
        for config in configs:
            try:
                child = child or Child(ENGINE, memory_ceiling_bytes=memory_ceiling_bytes)
                answer = child.ask(protocol.ProjectMemory(config=config, front_end=front_end), limit_s=limit_s)
            except ChildEndedError as end:
                child = None
                answers.append(Projection(buffers=None, reason=explain_ending(end.ending)[1]))
            else:
                answers.append(_read_answer(answer))
    finally:
        if child is not None:
            child.end()
    return tuple(answers)


def _read_answer(answer: protocol.AnswerBody) -> Projection:
    match answer:
        case protocol.Projected(buffers=buffers) if buffers:
            return Projection(buffers=buffers)
        case protocol.Refused(message=message) | protocol.Fault(message=message):
            return Projection(buffers=None, reason=message)
        case _:
            return Projection(buffers=None, reason="the engine cannot project memory")
