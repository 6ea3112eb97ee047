"""What users download: the wheel brings all that runs, the sdist all that is needed to build and to test it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tuner", "search_spaces", "tui")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both files, made by the build back end that pyproject.toml names."""
    pytest.importorskip("hatchling", reason="hatchling, the build back end, is not installed")
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def list_source(suffixes: Iterable[str]) -> set[str]:
    files = (path for package in PACKAGES for suffix in suffixes for path in (ROOT / package).rglob(f"*{suffix}"))
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_the_wheel_holds_every_module_and_every_table(built: Path) -> None:
    """Presets of the search space and data of the machines are read at run time, so they are no less code than the rest."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    needed = list_source((".py", ".yaml"))
    assert {f"search_spaces/{name}.yaml" for name in ("quick", "cpu", "gpu", "long_context", "server")} <= needed
    assert needed <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    assert "rooftune = tuner.cli.main:main" in entry_points


def test_the_sdist_can_be_built_and_tested(built: Path) -> None:
    """It holds the source, the tests with their data, and what a reader looks for first."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "results/README.md"} <= names
    assert list_source((".py", ".yaml")) <= names
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    assert tests <= names
