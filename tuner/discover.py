"""Finds the classes that a package holds: rules, dimensions, engines, exports. The only magic in rooftune.

A newcomer adds one by writing one file; nothing else is edited. A file whose name starts with "_" or is "base" is passed over.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def discover_modules(package: ModuleType) -> list[ModuleType]:
    """The modules below `package`, in the order of their names; sub-packages are descended into."""
    found: list[ModuleType] = []
    for entry in pkgutil.iter_modules(package.__path__):
        if entry.name.startswith("_") or entry.name == "base":
            continue
        module = importlib.import_module(f"{package.__name__}.{entry.name}")
        found.extend(discover_modules(module) if entry.ispkg else [module])
    return found


def discover_instances(package: ModuleType, base: type[T]) -> list[T]:
    """Instances held at the top of each module below `package`, that are a `base`."""
    return [
        value
        for module in discover_modules(package)
        for name, value in vars(module).items()
        if isinstance(value, base) and not name.startswith("_")
    ]


def discover_classes(package: ModuleType, base: type[T]) -> list[type[T]]:
    """Concrete subclasses of `base` defined (not imported) in the modules below `package`."""
    return [
        value
        for module in discover_modules(package)
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
