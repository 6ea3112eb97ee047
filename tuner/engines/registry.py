"""Finds an engine by the name that --engine takes, importing that one alone.

Importing an engine's module loads no native library: that happens inside its methods, in the measuring child.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

from tuner.engines.base import Engine
from tuner.errors import UsageError, suggest_name

_NO_ENGINES = frozenset({"base", "registry"})


def list_engines() -> list[str]:
    """Names of all engines, as --engine takes them, without importing one."""
    return sorted(entry.name.replace("_", "-") for entry in _iterate_entries())


def find_engine(name: str) -> type[Engine]:
    """The class of the engine called `name`. Raises UsageError for a name that no file bears."""
    for entry in _iterate_entries():
        if entry.name.replace("_", "-") == name:
            place = f"{__package__}.{entry.name}"
            return _pick_class(importlib.import_module(f"{place}.engine" if entry.ispkg else place), name)
    raise UsageError(f"There is no engine {name!r}.", suggest_name(name, list_engines()))


def _iterate_entries() -> list[pkgutil.ModuleInfo]:
    here = str(Path(__file__).parent)
    return [e for e in pkgutil.iter_modules([here]) if not e.name.startswith("_") and e.name not in _NO_ENGINES]


def _pick_class(module: ModuleType, name: str) -> type[Engine]:
    for value in vars(module).values():
        if inspect.isclass(value) and issubclass(value, Engine) and getattr(value, "name", None) == name:
            return value
    raise TypeError(f"{module.__name__} defines no engine named {name!r}")
