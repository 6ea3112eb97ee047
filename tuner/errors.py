"""Every error a user can see: one sentence saying what is wrong, one saying what to do, and the exit code it ends with.

A crash of llama.cpp is never raised from here: it is a trial state (see `tuner.trial`).
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The process exit codes, fixed so that scripts can rely on them."""

    DONE = 0
    FAULT = 1
    USAGE = 2
    BAD_INPUT = 3
    NOTHING_FEASIBLE = 4
    VERIFICATION_FAILED = 5
    INTERRUPTED = 130


class RooftuneError(Exception):
    """Base of all errors meant for a user.

    `message` says what happened in one sentence, `hint` what to do about it ("" when the message already says it).
    """

    exit_code: ExitCode = ExitCode.FAULT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(RooftuneError):
    """A flag, name or value on the command line that cannot be meant."""

    exit_code = ExitCode.USAGE


class BadInputError(RooftuneError):
    """A file or value that was found but cannot be used: unreadable model, invalid YAML, a unit that is none."""

    exit_code = ExitCode.BAD_INPUT


class NothingFeasibleError(RooftuneError):
    """No point fits the machine and the limits, or no trial completed."""

    exit_code = ExitCode.NOTHING_FEASIBLE


class VerificationFailedError(RooftuneError):
    """A tuned configuration no longer holds its gain."""

    exit_code = ExitCode.VERIFICATION_FAILED


class InterruptedRunError(RooftuneError):
    """The user stopped the run; what was measured is saved."""

    exit_code = ExitCode.INTERRUPTED


class StorageError(RooftuneError):
    """The study database cannot be opened or written: disk full, read-only folder, server gone."""

    exit_code = ExitCode.BAD_INPUT
