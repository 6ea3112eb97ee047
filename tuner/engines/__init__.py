"""Runtimes that rooftune can drive, one a file (or a folder with `engine.py`), named like the engine with "-" as "_"."""

from tuner.engines.registry import find_engine, list_engines

__all__ = ["find_engine", "list_engines"]
