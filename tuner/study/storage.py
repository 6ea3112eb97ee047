"""Optuna's storage is the record of every study. This file opens it, and turns its failures into one clear sentence.

SQLite is opened so that several tunes can share one file, and so that a kill -9 loses nothing that was written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tuner.errors import StorageError, UsageError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_SQLITE: Final = "sqlite:///"
IN_MEMORY: Final = "memory://"
"""A storage that ends with the process."""
_EXAMPLE: Final = "Write it like sqlite:///results/studies.db."
_LOCK_PATIENCE_S: Final = 60
_CREATE_ATTEMPTS: Final = 8
_IDENTITY_KEY: Final = "rooftune"
UNFINISHED: Final = frozenset({None, "interrupted"})
"""States of an attempt that a resume takes up again."""
_CAUSES: Final = (
    ("disk is full", "The disk that holds {url} is full.", "Free some space; the study goes on with --resume."),
    ("no space left", "The disk that holds {url} is full.", "Free some space; the study goes on with --resume."),
    ("disk i/o error", "The disk that holds {url} does not take writes.", "Check it, or give another place with --storage."),
    ("readonly", "{url} cannot be written.", "Check its permissions, or give another place with --storage."),
    ("read-only", "{url} cannot be written.", "Check its permissions, or give another place with --storage."),
    ("permission denied", "{url} cannot be written.", "Check its permissions, or give another place with --storage."),
    ("unable to open", "{url} cannot be opened.", "Check its folder, or give another place with --storage."),
    ("is locked", "{url} is locked by another program.", "Wait until it is done, or give another place with --storage."),
    ("not a database", "{url} is no SQLite database.", "Give another file with --storage."),
    ("file is encrypted", "{url} is no SQLite database.", "Give another file with --storage."),
    ("malformed", "The database {url} is damaged.", "Give another file with --storage."),
    ("refused", "The database server of {url} does not answer.", "Start it, or give another place with --storage."),
    ("could not translate host", "The database server of {url} is not known.", "Check the host's name in --storage."),
)


class StoredStudy(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `rooftune studies`."""

    name: str
    """As --resume takes it."""
    title: str
    """Model, workload and goals."""
    state: str
    """finished, interrupted or running."""
    trials: int
    """Attempts whose end is stored, confirmation rounds included; what was interrupted is tried again and does not count."""
    complete: int
    """Of these, with a figure."""
    elapsed_s: float | None
    """Wall time used; None when no trial was finished."""
    started: str | None
    """Local date and time of the first trial; None without trials."""
    best: dict[str, Any] | None
    """Settings of the result; None before the study is finished."""
    gain: float | None
    """Ratio against the default; None before the study is finished."""
    origin: str = ""
    """What the front end was asked, in its own words; "" where it kept nothing."""


def open_storage(url: str) -> BaseStorage:
    """The storage at `url`; an SQLite file and its folder are made. Raises StorageError, or UsageError for no URL."""
    if "://" not in url:
        raise UsageError(f"{url!r} is no storage URL.", "Write it like sqlite:///results/studies.db or postgresql://….")
    if url == IN_MEMORY:
        from optuna.storages import InMemoryStorage

        return InMemoryStorage()
    if url.startswith(_SQLITE):
        _make_folder(url)
    with guard_storage(url), _hold_folder(url):
        return _connect(url)


@contextmanager
def guard_storage(url: str) -> Iterator[None]:
    """Failures of the storage leave this block as StorageError with one sentence."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError, OSError) as error:
        raise _explain(error, url) from error


def read_studies(url: str) -> tuple[StoredStudy, ...]:
    """The studies that rooftune keeps at `url`, newest last; () where an SQLite file does not exist yet."""
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        return ()
    storage = open_storage(url)
    with guard_storage(url):
        found = [study for study in storage.get_all_studies() if _IDENTITY_KEY in study.user_attrs]
        return tuple(_summarise(storage, study) for study in found)


def _summarise(storage: BaseStorage, study: Any) -> StoredStudy:
    attrs = study.user_attrs
    trials = storage.get_all_trials(study._study_id, deepcopy=False)  # noqa: SLF001  # the public API opens each study anew
    result = attrs.get("result") or {}
    spent = [trial.user_attrs["elapsed_s"] for trial in trials if "elapsed_s" in trial.user_attrs]
    starts = [trial.datetime_start for trial in trials if trial.datetime_start]
    return StoredStudy(
        name=study.study_name,
        title=attrs.get("title", ""),
        state=_tell_state(attrs),
        trials=sum(trial.user_attrs.get("state") not in UNFINISHED for trial in trials),
        complete=sum(trial.user_attrs.get("state") == "complete" for trial in trials),
        elapsed_s=max(spent, default=None),
        started=min(starts).isoformat(sep=" ", timespec="seconds") if starts else None,
        best=result.get("best"),
        gain=result.get("ratio"),
        origin=attrs.get("origin", ""),
    )


def _tell_state(attrs: dict[str, Any]) -> str:
    if attrs.get("result"):
        return "finished"
    return "running" if is_owner_alive(attrs.get("owner")) else "interrupted"


def is_owner_alive(owner: dict[str, Any] | None) -> bool:
    """Whether the process that a study names as its own still runs on this host."""
    import platform

    import psutil

    if not owner or owner.get("host") != platform.node():
        return False
    try:
        return bool(abs(psutil.Process(int(owner["pid"])).create_time() - float(owner["started"])) < 1.0)
    except psutil.Error:
        return False


def _make_folder(url: str) -> None:
    path = Path(url.removeprefix(_SQLITE))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, url) from error
    if path.is_dir():
        raise StorageError(f"{path} is a folder.", "Give a file, such as sqlite:///results/studies.db.")


def _connect(url: str) -> BaseStorage:
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

    arguments = {"connect_args": {"timeout": _LOCK_PATIENCE_S}} if url.startswith(_SQLITE) else {"pool_pre_ping": True}
    for attempt in range(_CREATE_ATTEMPTS):
        try:
            storage = RDBStorage(url, engine_kwargs=dict(arguments))
        except (ArgumentError, NoSuchModuleError) as error:
            raise UsageError(f"{hide_password(url)!r} is no storage URL.", _EXAMPLE) from error
        except ImportError as error:
            raise StorageError(f"The driver for {hide_password(url)} is not installed.", "Install it with pip.") from error
        except DBAPIError as error:
            if attempt + 1 == _CREATE_ATTEMPTS or not _is_race(error):
                raise
            time.sleep(0.1 * (attempt + 1))
        except RuntimeError as error:
            raise StorageError(
                f"{hide_password(url)} was written by another version of Optuna.", "Give another --storage."
            ) from error
        else:
            if url.startswith(_SQLITE):
                _prepare_sqlite(storage)
            return get_storage(storage)
    raise StorageError(f"{url} cannot be opened.", "Try again.")


@contextmanager
def _hold_folder(url: str) -> Iterator[None]:
    """One process at a time makes the tables of an SQLite file; the lock is on its folder and ends with the process."""
    if not url.startswith(_SQLITE) or fcntl is None:
        yield
        return
    descriptor = os.open(Path(url.removeprefix(_SQLITE)).parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_race(error: Exception) -> bool:
    """Two processes making the tables at once: the second finds them there, or locked."""
    text = str(error)
    return any(sign in text for sign in ("already exists", "is locked", "UNIQUE constraint failed"))


def _prepare_sqlite(storage: Any) -> None:
    """A write-ahead log: readers never block a tune, a kill leaves a sound file, and a commit needs no disk flush."""
    from sqlalchemy import event

    def settle(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    event.listen(storage.engine, "connect", settle)
    storage.engine.dispose()


def retry_locked(write: Callable[[], Any]) -> Any:
    """Run a write again a few times while another program holds the file; the last failure is raised."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import OperationalError

    for pause in (0.2, 0.5, 1.0):
        try:
            return write()
        except (OperationalError, StorageInternalError) as error:
            if "is locked" not in _full_text(error):
                raise
            time.sleep(pause)
    return write()


def _full_text(error: BaseException) -> str:
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        parts.append(str(current))
        current = current.__cause__ or current.__context__
    return " ".join(parts).lower()


def _explain(error: BaseException, url: str) -> StorageError:
    text, place = _full_text(error), hide_password(url)
    for sign, message, hint in _CAUSES:
        if sign in text:
            return StorageError(message.format(url=place), hint)
    first = " ".join(str(error).split())[:160]
    return StorageError(f"The storage {place} failed: {first}.", "Check it, or give another place with --storage.")


def hide_password(url: str) -> str:
    """The URL as it may be shown: a file's path for SQLite, no password elsewhere."""
    if url.startswith(_SQLITE):
        return url.removeprefix(_SQLITE)
    scheme, _, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}://{credentials.split(':')[0]}{at}{host}"
