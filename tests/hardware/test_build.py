"""The build's own account of itself, and children that crash, hang or talk nonsense instead of giving it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tuner.hardware import build
from tuner.hardware.build import BuildDiedError, ask_build, find_tools, probe_build
from tuner.hardware.record import BuildFacts, DeviceFacts

CPU_SIMD = ("AVX", "AVX2", "AVX512")
ANSWER: dict[str, Any] = {
    "package_version": "0.3.36",
    "llama_cpp_version": "b1234",
    "commit": "abcdef0",
    "system_info": "CPU : AVX = 1 | AVX2 = 1 | OPENMP = 1 | REPACK = 1 | ",
    "gpu_offload": True,
    "rpc": True,
    "mmap": True,
    "mlock": False,
    "backends": ["CUDA", "CPU"],
    "devices": [
        {"name": "CUDA0", "description": "NVIDIA A", "kind": "GPU", "backend": "CUDA", "total": 8, "free": 6, "device_id": "0000:0A:00.0"},
        {"name": "CPU", "description": "Some CPU", "kind": "CPU", "backend": "CPU", "total": 32, "free": 32},
    ],
}  # fmt: skip


def probe(answer: bytes | dict[str, Any] | Exception) -> tuple[BuildFacts | None, str]:
    def ask() -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    return probe_build(CPU_SIMD, ask=ask)


def replace_child(monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float = 20.0) -> None:
    monkeypatch.setattr(build, "_ENTER", code)
    monkeypatch.setattr(build, "TIME_LIMIT_S", limit_s)


def test_a_full_answer() -> None:
    """What is compiled in, what the CPU has beyond it, and the devices as llama.cpp lists them."""
    facts, note = probe(ANSWER)
    assert note == ""
    assert facts is not None
    assert (facts.package_version, facts.llama_cpp_version, facts.llama_cpp_commit) == ("0.3.36", "b1234", "abcdef0")
    assert (facts.simd, facts.missing_simd) == (("AVX", "AVX2"), ("AVX512",))
    assert (facts.openmp, facts.repack, facts.supports_mlock) == (True, True, False)
    assert facts.devices[0] == DeviceFacts(
        name="CUDA0",
        description="NVIDIA A",
        kind="GPU",
        backend="CUDA",
        total_bytes=8,
        free_bytes=6,
        pci_bus_id="0000:0a:00.0",
    )
    assert [device.takes_layers for device in facts.devices] == [True, False]


@pytest.mark.parametrize(
    ("told", "kind", "unified", "total"),
    [
        ({"name": "Metal", "kind": "GPU", "backend": "Metal", "total": 5}, "GPU", True, 5),
        ({"name": "MTL0", "kind": "GPU", "backend": "MTL"}, "GPU", True, None),
        ({"name": "Vulkan0", "kind": "IGPU", "backend": "Vulkan"}, "IGPU", True, None),
        ({"name": "Vulkan0", "kind": "GPU", "backend": "Vulkan"}, "GPU", False, None),
        ({"name": "X", "kind": "SOMETHING_NEW"}, "GPU", False, None),
    ],
)
def test_devices(told: dict[str, Any], kind: str, unified: bool, total: int | None) -> None:
    """Integrated parts share main memory; a memory of 0 is no answer."""
    facts, _ = probe({"devices": [told]})
    assert facts is not None
    (device,) = facts.devices
    assert (device.kind, device.unified, device.total_bytes) == (kind, unified, total)


def test_gpu_offload_alone_is_no_gpu() -> None:
    """A build with RPC says that it can offload; without a device nothing takes layers."""
    facts, _ = probe({"gpu_offload": True, "rpc": True, "devices": [{"name": "CPU", "kind": "CPU"}]})
    assert facts is not None
    assert not any(device.takes_layers for device in facts.devices)


def test_a_build_that_cannot_be_loaded_says_why() -> None:
    """The facts exist, with the import's own words and unknown for the rest."""
    facts, note = probe({"import_error": "OSError: libgomp.so.1: cannot open shared object file"})
    assert facts is not None
    assert not facts.importable
    assert (facts.simd, facts.openmp, facts.repack, facts.missing_simd) == ((), None, None, ())
    assert "libgomp.so.1" in note


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "could not be read"),
        (b"ggml: loading\n{}", "could not be read"),
        (b'{"devices": [{}]}', "could not be read"),
        (b'{"package_version": "\xff"}', "could not be read"),
        (subprocess.TimeoutExpired("python", 20), "time limit"),
        (BuildDiedError("its process ended with signal 6"), "signal 6"),
        (FileNotFoundError("python"), "could not be asked"),
    ],
)
def test_no_answer_is_no_facts_and_one_note(answer: bytes | Exception, words: str) -> None:
    """Whatever goes wrong on the way, the profile goes on without the build."""
    facts, note = probe(answer)
    assert facts is None
    assert words in note


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.abort()", "signal 6"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "signal 4"),
        ("import sys; sys.exit('no such backend')", "exit code 1 (no such backend)"),
    ],
)
def test_a_child_that_crashes(monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    """A build for another CPU dies while loading: in its own process, with its ending in the note."""
    replace_child(monkeypatch, code)
    facts, note = probe_build(CPU_SIMD)
    assert facts is None
    assert words in note


def test_a_child_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver that never answers is given up, and the child does not stay."""
    marker = tmp_path / "pid"
    code = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    replace_child(monkeypatch, code, limit_s=4.0)
    facts, note = probe_build(CPU_SIMD)
    assert facts is None
    assert "time limit" in note
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_talk_of_native_code_does_not_spoil_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real child with a library that prints to stdout: the answer stays one document."""
    code = (
        "import sys; sys.path[:] = sys.argv[1:]; import os, types; fake = types.ModuleType('llama_cpp');\n"
        "from tuner.engines.llama_cpp_python import describe\n"
        "def talk():\n    os.write(1, b'noise'); raise OSError('no library')\n"
        "class Loader:\n    def find_spec(self, name, *rest):\n        return talk() if name == 'llama_cpp' else None\n"
        "sys.meta_path.insert(0, Loader()); describe.main()"
    )
    replace_child(monkeypatch, code)
    facts, note = probe_build(CPU_SIMD)
    assert facts is not None
    assert facts.import_error == "OSError: no library"
    assert "no library" in note


def test_the_child_imports_from_the_same_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the same order, and never from the folder that rooftune happens to be started in."""
    here = [place for place in sys.path if place not in ("", ".")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", here)
    find_places = ";".join(build._ENTER.split(";")[:2])
    replace_child(monkeypatch, f"{find_places}; import json; print(json.dumps(sys.path))")
    places = json.loads(ask_build())
    assert places[: len(here)] == here
    assert not {"", ".", str(tmp_path)} & set(places)


def test_tools_are_programs_beside_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the wheel puts them first, then the environment's own; what cannot be run is none."""
    wheel, own = tmp_path / "lib" / "bin", tmp_path / "env" / "bin"
    for path, mode in [
        (wheel / "llama-bench", 0o755),
        (own / "llama-bench", 0o755),
        (own / "llama-server", 0o755),
        (own / "llama-cli", 0o644),
        (own / "something-else", 0o755),
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "lib"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert not (own / "llama-cli").stat().st_mode & stat.S_IXUSR
    assert find_tools() == {"llama-bench": str(wheel / "llama-bench"), "llama-server": str(own / "llama-server")}


@pytest.mark.llama
def test_the_installed_build_answers() -> None:
    """The real llama.cpp: a version, features of this CPU, the CPU among its devices."""
    facts, note = probe_build(CPU_SIMD)
    assert note == ""
    assert facts is not None
    assert facts.importable
    assert facts.package_version
    assert facts.system_info
    assert "CPU" in {device.kind for device in facts.devices}
    assert "CPU" in facts.backends
