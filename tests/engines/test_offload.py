"""Every setting that places something, on real devices: two other processes that llama.cpp takes for devices.

Weights are zero and the model is small, but llama.cpp's own buffers say what went where.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.builders.gguf_files import F32, tensor_bytes, write_llama
from tests.engines.child import run_child
from tests.engines.test_rpc import SERVE, wait_for
from tuner.hardware.record import DeviceFacts, HardwareProfile
from tuner.memory import estimate_footprint, kv_bytes
from tuner.memory.estimate import device_of
from tuner.model import read_model
from tuner.runconfig import RunConfig

pytestmark = [pytest.mark.llama, pytest.mark.rpc, pytest.mark.timeout(280)]

N_LAYER = 4
EXPERTS = 3 * tensor_bytes((256, 512, 8), F32)
"""Bytes of one block's experts."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four blocks with eight experts each."""
    folder = tmp_path_factory.mktemp("moe")
    return write_llama(folder / "moe.gguf", n_layer=N_LAYER, n_expert=8, n_ff=512, n_head_kv=2, kind=F32)


@pytest.fixture(scope="module")
def servers() -> Generator[tuple[str, ...]]:
    """Two devices, RPC0 and RPC1."""
    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ports.append(probe.getsockname()[1])
            server = subprocess.Popen(
                [sys.executable, "-c", SERVE, f"127.0.0.1:{ports[-1]}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(server.wait)
            stack.callback(server.kill)
        for port in ports:
            wait_for(port)
        yield tuple(f"127.0.0.1:{port}" for port in ports)


POINTS: dict[str, dict[str, Any]] = {
    "everything on the devices": {"tensor_split": (1.0, 1.0)},
    "experts of three blocks at home": {"tensor_split": (1.0, 1.0), "n_cpu_moe": 3},
    "the cache at home": {"tensor_split": (1.0, 1.0), "no_kv_offload": True},
    "three quarters on the first": {"tensor_split": (3.0, 1.0)},
    "the first device alone": {"split_mode": "none"},
    "the second device alone": {"split_mode": "none", "main_gpu": 1},
    "two blocks on the devices": {"tensor_split": (1.0, 1.0), "n_gpu_layers": 3},
    "big batches of host weights at home": {"n_gpu_layers": 0, "op_offload": False},
}


@pytest.fixture(scope="module")
def placed(model: Path, servers: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Bytes by cause and device for each point; each of them ran a turn.

    Read rather than mapped: a mapping spans the file from the first to the last tensor that stays, others in between included.
    """
    answers = run_child(
        f"""
        answers = []
        for settings in {list(POINTS.values())!r}:
            ready = prepare(point(load_mode="none", **settings), load(prompt=40, output=4), rpc_servers=tuple(sys.argv[2].split(",")))
            assert turn(prefill=True, decode_tokens=4).decode_steps == 3
            answers.append(ready.buffers)
        report(answers)
        """,
        model,
        ",".join(servers),
    )
    return {name: by_device(answer, servers) for name, answer in zip(POINTS, answers, strict=True)}


def by_device(buffers: dict[str, int], servers: tuple[str, ...]) -> dict[str, int]:
    """llama.cpp names a remote buffer by the device's number at its own server: RPC0[host:port]."""
    names = {f"RPC0[{endpoint}]": f"RPC{number}" for number, endpoint in enumerate(servers)}
    found: dict[str, int] = {}
    for key, size in buffers.items():
        cause, _, buffer_type = key.partition(" ")
        place = f"{cause} {names.get(buffer_type) or device_of(buffer_type)}"
        found[place] = found.get(place, 0) + size
    return found


@pytest.mark.parametrize("name", POINTS)
def test_llama_cpp_puts_it_where_arithmetic_does(name: str, placed: dict[str, dict[str, int]], model: Path) -> None:
    """Weights and cache by device: what a trial is refused or allowed for is what it would take there."""
    machine = HardwareProfile(devices=(DeviceFacts(name="RPC0"), DeviceFacts(name="RPC1")))
    config = RunConfig(model=str(model), ctx_size=512).replace(**POINTS[name])
    expected = estimate_footprint(read_model(model), config, machine=machine)
    for device in ("CPU", "RPC0", "RPC1"):
        for cause in ("weights", "kv"):
            told = sum(part.n_bytes or 0 for part in expected.parts if (part.cause, part.device) == (cause, device))
            assert placed[name].get(f"{cause} {device}", 0) == pytest.approx(told, rel=0.01, abs=2**14), (cause, device)


def test_experts_come_home_and_nothing_else(placed: dict[str, dict[str, int]]) -> None:
    """Three of four blocks' experts, to the byte that llama.cpp prints."""
    before, after = placed["everything on the devices"], placed["experts of three blocks at home"]
    moved = sum(before[key] - after[key] for key in ("weights RPC0", "weights RPC1"))
    assert moved == pytest.approx(3 * EXPERTS, abs=2**15)
    assert after["weights CPU"] - before["weights CPU"] == pytest.approx(3 * EXPERTS, abs=2**15)
    assert before["kv RPC0"] + before["kv RPC1"] == after["kv RPC0"] + after["kv RPC1"]


def test_the_cache_comes_home(placed: dict[str, dict[str, int]], model: Path) -> None:
    at_home = placed["the cache at home"]
    assert at_home["kv CPU"] == kv_bytes(read_model(model), RunConfig(ctx_size=512))
    assert not {"kv RPC0", "kv RPC1"} & {key for key, size in at_home.items() if size}


def test_one_device_alone_holds_everything(placed: dict[str, dict[str, int]]) -> None:
    """split_mode none takes the one that main_gpu names."""
    first, second = placed["the first device alone"], placed["the second device alone"]
    assert first["weights RPC0"] == second["weights RPC1"]
    assert not first.get("weights RPC1")
    assert not second.get("weights RPC0")
