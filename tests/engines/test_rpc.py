"""A second process as a device: layers, weights and cache go where n_gpu_layers says."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.builders.rpc import SERVE, serve_rpc, wait_for
from tests.engines.child import run_child

__all__ = ["SERVE", "wait_for"]
pytestmark = [pytest.mark.llama, pytest.mark.rpc, pytest.mark.timeout(280)]


@pytest.fixture
def rpc_server() -> Generator[str]:
    with serve_rpc() as endpoint:
        yield endpoint


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
