"""A second process as a device: layers, weights and cache go where n_gpu_layers says."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.engines.child import run_child

pytestmark = [pytest.mark.llama, pytest.mark.rpc, pytest.mark.timeout(280)]

SERVE = """
import ctypes, sys
from llama_cpp import llama_cpp as api
library = api._lib
library.ggml_backend_dev_get.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(library.ggml_backend_dev_get(ctypes.c_size_t(0)))
serve = library.ggml_backend_rpc_start_server
serve.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
serve(sys.argv[1].encode(), None, 1, 1, devices)
"""


@pytest.fixture
def rpc_server() -> Generator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"127.0.0.1:{port}"
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, endpoint], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_for(port)
            yield endpoint
        finally:
            server.kill()


def wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the RPC server did not start")


def test_layers_go_to_the_other_process(smollm2: Path, rpc_server: str) -> None:
    """None, ten or all of 31 units; cache and weights move with them, and turns run."""
    got = run_child(
        """
        rows = []
        for layers in (0, 10, 31):
            ready = prepare(point(n_gpu_layers=layers), load(prompt=16), rpc_servers=(sys.argv[2],))
            away = {cause: sum(v for k, v in ready.buffers.items() if k.startswith(cause + " RPC")) for cause in ("weights", "kv")}
            here = ready.buffers.get("kv CPU", 0)
            rows.append([away["weights"], away["kv"], here, turn(prefill=True, decode_tokens=4).decode_steps])
        report(rows)
        """,
        smollm2,
        rpc_server,
    )
    none, ten, full = got
    assert [row[3] for row in got] == [3, 3, 3]
    assert none[:2] == [0, 0]
    assert 0 < ten[0] < full[0]
    whole = none[2]
    # ten units are the output and nine blocks of thirty
    assert ten[1] == pytest.approx(whole * 9 / 30, abs=2**14)
    assert ten[2] == pytest.approx(whole * 21 / 30, abs=2**14)
    assert full[1:3] == [pytest.approx(whole, abs=2**14), 0]


def test_a_server_that_does_not_answer_is_told(smollm2: Path) -> None:
    """One sentence, and the endpoint in it."""
    got = run_child("report(refusal(lambda: prepare(point(), load(), rpc_servers=('127.0.0.1:9',))))", smollm2)
    assert got[0] == "invalid"
    assert "127.0.0.1:9" in got[1]
