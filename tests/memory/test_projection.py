"""Arithmetic and projection against contexts that were really made, on real models."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.base import PrepareRequest
from tuner.hardware.record import DeviceFacts, HardwareProfile
from tuner.measure import protocol
from tuner.measure.child import Child
from tuner.measure.projection import ask_projection
from tuner.memory import estimate_footprint, kv_bytes, place_layers
from tuner.memory.estimate import device_of
from tuner.model import read_model
from tuner.runconfig import RunConfig
from tuner.workload import Workload

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"ctx_size": 1000, "parallel": 3},
    {"ubatch_size": 128, "cache_type_k": "q8_0", "cache_type_v": "q4_0"},
    {"flash_attn": "off"},
    {"swa_full": True},
    {"cache_type_k": "f32", "cache_type_v": "bf16", "load_mode": "none"},
)
SHORT = Workload(name="short", prompt_tokens=32, output_tokens=4)

pytestmark = pytest.mark.llama


@pytest.mark.parametrize("which", ["smollm2", "gemma3"])
def test_total_is_what_a_real_context_reports(which: str, request: pytest.FixtureRequest) -> None:
    """KV to the byte by arithmetic and by projection, the total within 2 % of the buffers that were allocated."""
    path = str(request.getfixturevalue(which))
    model = read_model(path)
    configs = [RunConfig(model=path, ctx_size=2048, threads=1, threads_batch=1).replace(**settings) for settings in SETTINGS]
    child = Child("llama-cpp-python")
    try:
        for config in configs:
            made = child.ask(protocol.Prepare(request=PrepareRequest(config=config, workload=SHORT)), limit_s=120)
            assert isinstance(made, protocol.IsPrepared), made
            answer = child.ask(protocol.ProjectMemory(config=config, front_end="llama-server"), limit_s=30)
            assert isinstance(answer, protocol.Projected), answer
            assert answer.buffers["kv CPU"] == kv_bytes(model, config)
            total = estimate_footprint(model, config, projected=answer.buffers).total_bytes
            assert total == pytest.approx(made.prepared.memory_bytes, rel=0.02)
    finally:
        child.end()


def test_front_ends_are_asked_apart(smollm2: Path) -> None:
    """The binding's buffers hold logits for a whole batch."""
    config = RunConfig(model=str(smollm2), ctx_size=2048)
    server, binding = (ask_projection([config], front_end=name)[0].buffers for name in ("llama-server", "llama-cpp-python"))
    assert server is not None
    assert binding is not None
    assert binding["compute CPU"] > server["compute CPU"] + 50 * 2**20
    assert binding["kv CPU"] == server["kv CPU"]


def test_a_refusal_is_a_reason_and_the_next_is_answered(smollm2: Path, tmp_path: Path) -> None:
    """llama.cpp's own words where it refuses; nothing raised, nothing lost."""
    config = RunConfig(model=str(smollm2), ctx_size=512)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    refused, damaged, fine = ask_projection(
        [config.replace(cache_type_v="q8_0", flash_attn="off"), config.replace(model=str(broken)), config],
        front_end="llama-server",
    )
    assert refused.buffers is None
    assert "flash_attn" in refused.reason
    assert damaged.buffers is None
    assert damaged.reason
    assert fine.buffers


def test_log_says_what_the_walk_says(smollm2: Path) -> None:
    """Where the breakdown cannot be walked, the log's figures are near it, and the sum is the same."""
    script = (
        "import json, sys\n"
        "from tuner.engines.llama_cpp_python import projection\n"
        "from tuner.engines.llama_cpp_python.native import Native\n"
        "from tuner.runconfig import RunConfig\n"
        "ask = projection.Projector(Native())\n"
        "config = RunConfig(model=sys.argv[1], ctx_size=4096)\n"
        "walked = ask.project(config, front_end='llama-server')\n"
        "projection._walk_breakdown = lambda *_: {}\n"
        "print(json.dumps([walked, ask.project(config, front_end='llama-server')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(smollm2)], cwd=ROOT, capture_output=True, text=True, check=True)
    walked, logged = json.loads(done.stdout)
    assert logged["kv CPU"] == pytest.approx(walked["kv CPU"], abs=8192)
    assert logged["compute CPU"] == pytest.approx(walked["compute CPU"], abs=8192)
    assert walked["kv CPU"] == 94_371_840


@pytest.fixture
def rpc_server(llama_tool: Any) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [llama_tool("ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(port)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _await_port(port: int) -> None:
    import time

    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("the RPC server did not start")


@pytest.mark.rpc
@pytest.mark.tool("ggml-rpc-server")
def test_layers_lie_where_arithmetic_puts_them(smollm2: Path, rpc_server: str) -> None:
    """Weights and cache by device, for none, the output alone, some and all layers, on a real second device."""
    script = (
        "import json, sys\n"
        "from tuner.engines.llama_cpp_python.projection import Projector\n"
        "from tuner.engines.llama_cpp_python.native import Native\n"
        "from tuner.runconfig import RunConfig\n"
        "ask = Projector(Native())\n"
        "for ngl in (0, 1, 10, 31):\n"
        "    config = RunConfig(model=sys.argv[1], ctx_size=2048, n_gpu_layers=ngl)\n"
        "    print(json.dumps(ask.project(config, front_end='llama-server', rpc_servers=(sys.argv[2],))), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(smollm2), rpc_server],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"ROOFTUNE_REPACK": "off"},
    )
    model = read_model(smollm2)
    machine = HardwareProfile(devices=(DeviceFacts(name="RPC0"),))
    for ngl, line in zip((0, 1, 10, 31), done.stdout.splitlines(), strict=True):
        buffers = json.loads(line)
        config = RunConfig(ctx_size=2048, n_gpu_layers=ngl)
        expected = estimate_footprint(model, config, machine=machine)
        on_device = place_layers(model, config, machine).blocks.count("RPC0")
        assert _on(buffers, "kv", "RPC0") == (kv_bytes(model, config) or 0) // 30 * on_device
        for device in ("CPU", "RPC0"):
            weights = sum(part.n_bytes or 0 for part in expected.parts if part.cause == "weights" and part.device == device)
            assert _on(buffers, "weights", device) == pytest.approx(weights, rel=0.001), (ngl, device)


def _on(buffers: dict[str, int], cause: str, device: str) -> int:
    return sum(
        size for key, size in buffers.items() if key.startswith(f"{cause} ") and device_of(key.partition(" ")[2]) == device
    )
