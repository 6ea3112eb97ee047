"""The lines that runner and worker exchange: one JSON object a line, each request answered by exactly one answer.

Whatever is not one of these lines is garbage, and the child that wrote it is ended.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tuner.engines.base import Prepared, PrepareRequest, RuntimeFacts, Turn, TurnRequest
from tuner.runconfig import RunConfig

LONGEST_LINE: Final = 4 * 2**20
"""Bytes of one answer; a longer one is garbage (a step time takes about 20 bytes, so this holds 200,000 steps)."""


class Describe(msgspec.Struct, frozen=True, kw_only=True, tag="describe"):
    """Which program is this? Answered by Described."""


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Answered by IsPrepared."""

    request: PrepareRequest
    """What to prepare."""


class RunTurn(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """Answered by DidTurn."""

    request: TurnRequest
    """Which part of a turn to run."""


class ProjectMemory(msgspec.Struct, frozen=True, kw_only=True, tag="project_memory"):
    """Answered by Projected."""

    config: RunConfig
    """The point."""
    front_end: str
    """Whose defaults and output sizes the memory is told for."""


class RunTask(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """Answered by DidTask."""

    name: str
    """A side job of the engine."""
    arguments: dict[str, Any]
    """Its arguments, plain JSON values."""


class Close(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """Give everything back and end. Answered by Closed."""


class Described(msgspec.Struct, frozen=True, kw_only=True, tag="described"):
    """Answer to Describe."""

    facts: RuntimeFacts
    """Engine and versions."""


class IsPrepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """Answer to Prepare."""

    prepared: Prepared
    """Costs and what llama.cpp decided."""


class DidTurn(msgspec.Struct, frozen=True, kw_only=True, tag="did_turn"):
    """Answer to RunTurn."""

    turn: Turn
    """The raw times."""


class Projected(msgspec.Struct, frozen=True, kw_only=True, tag="projected"):
    """Answer to ProjectMemory."""

    buffers: dict[str, int]
    """Bytes by cause and device; {} when the engine cannot say."""


class DidTask(msgspec.Struct, frozen=True, kw_only=True, tag="did_task"):
    """Answer to RunTask."""

    result: dict[str, Any]
    """Plain JSON values."""


class Closed(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    """Answer to Close."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The engine raised EngineError."""

    kind: str
    """invalid, out_of_memory, failed or needs_process."""
    message: str
    """One sentence."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """The engine raised something else; the traceback is in the log."""

    kind: str
    """Name of the exception's class."""
    message: str
    """Its text."""


RequestBody = Describe | Prepare | RunTurn | ProjectMemory | RunTask | Close
AnswerBody = Described | IsPrepared | DidTurn | Projected | DidTask | Closed | Refused | Fault


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One line to the worker."""

    number: int
    """Counts up from 1 within the life of a worker."""
    body: RequestBody
    """What is asked."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One line from the worker."""

    number: int
    """Of the request that it answers."""
    body: AnswerBody
    """The answer."""


def encode_line(message: Request | Answer) -> bytes:
    """The message as one line of JSON."""
    return msgspec.json.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Raises msgspec.DecodeError (or its child ValidationError) for anything that is no request."""
    return msgspec.json.decode(line, type=Request)


def decode_answer(line: bytes) -> Answer:
    """Raises msgspec.DecodeError (or its child ValidationError) for anything that is no answer."""
    return msgspec.json.decode(line, type=Answer)
