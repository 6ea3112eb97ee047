"""Light stays light: what each module drags in when it is imported alone, in a fresh interpreter."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import tui
import tuner

HEAVY = ("llama_cpp", "optuna", "textual", "numpy", "sqlalchemy", "pynvml")
CHILD_ONLY = ("tuner.engines.llama_cpp_python",)
MAY_IMPORT = {
    "tuner.study": ("optuna", "numpy", "sqlalchemy"),
    "tuner.engines.llama_cpp_python.tiling": ("numpy",),  # imported in the measuring child only
}


def all_modules() -> list[str]:
    found = [tuner.__name__, tui.__name__]
    for package in (tuner, tui):
        walked = pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
        found.extend(entry.name for entry in walked if not entry.name.endswith("__main__"))
    return found


def heavy_after_import(name: str) -> set[str]:
    code = f"import sys, {name}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", all_modules())
def test_importing_a_module_loads_no_heavy_library(name: str) -> None:
    """llama_cpp, optuna and textual come in only where they are used."""
    allowed = {lib for room, libs in MAY_IMPORT.items() if name.startswith(room) for lib in libs}
    assert heavy_after_import(name) <= allowed


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tune", "--help"], ["inspect", "--help"]])
def test_a_command_that_measures_nothing_starts_without_heavy_libraries(arguments: list[str]) -> None:
    """What makes a start slow is what it imports, so that is what is asserted."""
    code = (
        "import sys\nfrom tuner.cli.main import run\n"
        f"code = run({arguments!r})\nprint(*(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == []
