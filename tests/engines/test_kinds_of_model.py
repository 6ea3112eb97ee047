"""Turns of models that keep no plain cache: states, mixtures of both, experts, latent attention. Weights are zero, shapes are true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.architectures import place
from tests.engines.child import run_child

pytestmark = [pytest.mark.llama, pytest.mark.timeout(280)]

KINDS = ("mamba", "falcon-h1", "qwen3next", "lfm2", "qwen3moe", "deepseek2, keys only", "gemma3, wide window", "gpt-oss")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("kinds")
    made = subprocess.run(
        [sys.executable, "-m", "tests.builders.architectures", str(where), *KINDS], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-2000:]
    return where


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0, 40, 1300])
def test_a_turn_is_timed_from_the_depth_it_says(folder: Path, kind: str, depth: int) -> None:
    """Whatever the cache is made of, each turn starts with the whole history and ends n_out - 1 steps after the prompt."""
    got = run_child(
        f"""
        from tuner.engines.llama_cpp_python import engine as room
        starts = []
        timed = room.time_prefill
        room.time_prefill = lambda *a: starts.append(held()) or timed(*a)
        prepare(point(ctx_size=2048), load(prompt=24, output=4, depth={depth}))
        starts.clear()
        turns = [turn(prefill=True, decode_tokens=4) for _ in range(2)]
        report([starts, held(), [(t.decode_steps, t.ttft_ms > 0, t.decode_ms > 0) for t in turns]])
        """,
        place(folder, kind),
    )
    assert got == [[[depth]] * 2, [depth + 24 + 3], [[3, True, True]] * 2]
