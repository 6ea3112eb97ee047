"""Engines are found by name, one at a time, and finding them loads nothing native."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tuner.engines
from tuner.discover import discover_classes
from tuner.engines import find_engine, list_engines
from tuner.engines.base import Engine
from tuner.errors import UsageError


@pytest.mark.parametrize("name", list_engines())
def test_every_listed_name_finds_the_engine_that_bears_it(name: str) -> None:
    """The file's name, the engine's name and the class agree."""
    assert find_engine(name).name == name


def test_the_listing_is_what_discovery_finds() -> None:
    """One file is all that a new engine takes."""
    assert sorted(cls.name for cls in discover_classes(tuner.engines, Engine)) == list_engines()


def test_an_unknown_name_is_told_the_known_ones() -> None:
    """The user reads which names there are."""
    with pytest.raises(UsageError) as caught:
        find_engine("llamacpp")
    assert all(name in str(caught.value) for name in list_engines())


@pytest.mark.parametrize("name", list_engines())
def test_finding_an_engine_loads_no_native_library(name: str) -> None:
    """A parent may look an engine up; only the child drives it."""
    code = (
        f"import sys; from tuner.engines import find_engine; find_engine({name!r})(); "
        "print(*({'llama_cpp', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
