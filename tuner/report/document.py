"""The YAML file of a report: written so that every reader gets the same types back, read as if it came from an enemy.

Strings that a YAML 1.1 or 1.2 reader could take for a boolean, a number or a date are quoted. Reading is bounded in size and
depth, knows no aliases and no tags, and ends in one BadInputError with one line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tuner.errors import BadInputError, UsageError
from tuner.objective import parse_goals, parse_limit
from tuner.report.record import SCHEMA, Report

MOST_BYTES: Final = 1_048_576
_MOST_DEPTH: Final = 24
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./+ -]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


class _Writer(yaml.SafeDumper):
    """Plain lists of scalars on one line, doubtful strings in quotes, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _write_text(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


def _write_list(writer: yaml.SafeDumper, items: list[Any] | tuple[Any, ...]) -> yaml.SequenceNode:
    nested = any(isinstance(item, dict | list | tuple) for item in items)
    return writer.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=not nested)


_Writer.add_representer(str, _write_text)
_Writer.add_representer(list, _write_list)
_Writer.add_representer(tuple, _write_list)


def render_yaml(report: Report, *, comment: str = "") -> str:
    """The report as YAML, `comment` above it line by line."""
    body = yaml.dump(
        msgspec.to_builtins(report), Dumper=_Writer, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120
    )
    lines = [f"# {_printable(line)}" for line in comment.splitlines()]
    return "\n".join([*lines, body]) if lines else body


def write_report(report: Report, path: Path, *, comment: str = "") -> None:
    """Write the YAML file, whole or not at all. Raises BadInputError when the place cannot be written."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(render_yaml(report, comment=comment), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BadInputError(f"Cannot write {path}: {error.strerror or error}.", "Give another place with -o.") from error


def read_report(path: Path) -> Report:
    """A report that `tune` wrote (YAML, or its JSON).

    Raises BadInputError for a file that cannot be read, is no YAML, or lacks or misnames a key.
    """
    data = _parse(_read_text(path), path)
    if not isinstance(data, dict) or "schema" not in data:
        raise BadInputError(f"{path} is not a result of `rooftune tune`.", "Give the YAML file that tune wrote.")
    if data["schema"] != SCHEMA:
        raise BadInputError(
            f"{path} has the schema {str(data['schema'])[:40]!r}, not {SCHEMA!r}.", "It needs another version of rooftune."
        )
    try:
        return _check_goals(msgspec.convert(data, Report))
    except (UsageError, msgspec.ValidationError, RecursionError, ValueError, OverflowError) as error:
        raise BadInputError(f"{path} is damaged: {_brief(error)}.", "Run `rooftune tune` again.") from error


def _check_goals(report: Report) -> Report:
    """Raises UsageError or BadInputError for an objective or a limit that means nothing."""
    parse_goals(report.objective)
    for limit in report.limits:
        parse_limit(limit)
    return report


def _read_text(path: Path) -> str:
    try:
        if path.is_dir():
            raise BadInputError(f"{path} is a folder.", "Give the YAML file that tune wrote.")
        if path.exists() and not path.is_file():
            raise BadInputError(f"{path} is no plain file.", "Give the YAML file that tune wrote.")
        with path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"Cannot read {path}: {reason}.", "Check the path.") from error
    if len(raw) > MOST_BYTES:
        raise BadInputError(f"{path} is too large for a result of `rooftune tune`.", "Give the YAML file that tune wrote.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is not text in UTF-8.", "Give the YAML file that tune wrote.") from error


def _parse(text: str, path: Path) -> object:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MOST_DEPTH:
                raise BadInputError(f"{path} uses YAML that no result has (aliases, deep nesting).", "Write it out plainly.")
        return yaml.load(text, Loader=loader)  # noqa: S506 - one of the safe loaders
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, TypeError) as error:
        raise BadInputError(f"{path} is not valid YAML: {_brief(error)}.", "Give the YAML file that tune wrote.") from error


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


def _printable(line: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in line)
