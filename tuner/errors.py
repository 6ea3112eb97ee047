"""Every error a user can see: one sentence saying what is wrong, one saying what to do, and the exit code it ends with.

What was typed and cannot be meant is usage (2), whatever read it. What was named properly, but is not there or has a content
that cannot be used (a file, a model, a study, a folder), is bad input (3).
A crash of llama.cpp is never raised from here: it is a trial state (see `tuner.trial`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

_ALIKE: Final = 0.6
"""Share of letters in common, as difflib counts it, from which a name may be a slip of another."""
_FEW: Final = 8
"""So many names can be listed even where it is clear which one was meant."""


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
    """A flag, a name out of our own lists or a value that was typed and cannot be meant."""

    exit_code = ExitCode.USAGE


class BadInputError(RooftuneError):
    """What was named and is not there or cannot be used: no such file, unreadable model, invalid YAML, a value in a file."""

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


@contextmanager
def reading_flag(flag: str) -> Iterator[None]:
    """A value that is refused in this block was typed after `flag`: that is usage, and the message says which flag it was."""
    try:
        yield
    except BadInputError as error:
        raise UsageError(f"{flag}: {error.message}", error.hint) from error


def suggest_name(name: str, known: Iterable[str], *, others: str = "", most: int | None = None) -> str:
    """A hint towards the name that was meant, and the names there are where they are few or none is near.

    `others` is what is taken beside the names. `most`: the last so many of a list that may be long; None lists all.
    """
    from difflib import get_close_matches

    names = list(known)
    if not names:
        return "There are none yet."
    folded = {each.lower(): each for each in names}
    close = get_close_matches(name.strip().lower(), folded, n=1, cutoff=_ALIKE)
    meant = f"Did you mean {folded[close[0]]}?" if close else ""
    if meant and len(names) > _FEW:
        return meant
    listed = ", ".join(names[-most:] if most else names)
    return f"{meant} There are {listed}{', ' + others if others else ''}.".strip()
