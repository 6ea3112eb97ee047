"""The arithmetic against llama.cpp itself: every architecture that can be written as a header, in the settings that matter to a cache."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.builders.architectures import VARIANTS, place
from tuner.measure.projection import Projection, ask_projection
from tuner.memory import estimate_footprint, kv_bytes, recurrent_bytes
from tuner.model import read_model
from tuner.runconfig import RunConfig

ROOT = Path(__file__).resolve().parents[2]
GROUPS = 10
SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"ctx_size": 5000, "parallel": 3},
    {"ctx_size": 8192, "ubatch_size": 128, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    {"ctx_size": 8192, "flash_attn": "off"},
    {"swa_full": True},
)
REAL: tuple[dict[str, object], ...] = ({"load_mode": "none"}, {"load_mode": "none", "ctx_size": 5000, "parallel": 3})
"""Settings under which contexts are really made."""

REFUSED = "does not divide|requires flash_attn"
"""What llama.cpp says where a quantised cache cannot be had at all."""

NOT_SEVERAL_SLOTS = {"kimi-linear"}
"""Architectures whose graph llama.cpp cannot build for several slots: it aborts."""

PROJECTED_LESS = {("minimax-01", 3)}
"""(architecture, slots) whose compute buffer llama.cpp itself tells too small while it allocates nothing: 12 MB of 29."""

pytestmark = pytest.mark.llama


@pytest.mark.parametrize("group", range(GROUPS))
def test_cache_is_llama_cpps_own_to_the_byte(group: int, tmp_path: Path) -> None:
    """KV cache and state equal llama.cpp's sum, weights are within 0.5 %, and the bound on compute is one.

    The total is within 2 % of what contexts that are really made take.
    """
    names = sorted(VARIANTS)[group::GROUPS]
    command = [sys.executable, "-m", "tests.builders.architectures", str(tmp_path), *names]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    points = list_points(tmp_path, names, SETTINGS)
    answers = ask_projection([config for _, config in points], front_end="llama-server")
    wrong = [found for (name, config), answer in zip(points, answers, strict=True) if (found := _compare(name, config, answer))]
    assert not wrong, "\n".join(wrong)
    assert sum(answer.buffers is not None for answer in answers) >= 4 * len(names)
    check_real_contexts(list_points(tmp_path, names, REAL))


def list_points(folder: Path, names: Sequence[str], settings: Sequence[dict[str, object]]) -> list[tuple[str, RunConfig]]:
    """Each architecture under each of the settings."""
    return [
        (name, RunConfig(model=str(place(folder, name)), ctx_size=4096).replace(**each)) for name in names for each in settings
    ]


def check_real_contexts(points: list[tuple[str, RunConfig]]) -> None:
    """Nearly all of them can be made, and none takes what was not foretold."""
    configs = [config for _, config in points]
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.real_contexts"],
        cwd=ROOT,
        input=msgspec.json.encode(configs),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    real = [json.loads(line) for line in done.stdout.splitlines()]
    told = ask_projection(configs, front_end="llama-server")
    wrong = []
    for (name, config), buffers, projection in zip(points, real, told, strict=True):
        assert (buffers is None) == (projection.buffers is None), f"{name}: {projection.reason}"
        if buffers is None or projection.buffers is None:
            continue
        total = estimate_footprint(read_model(config.model), config, projected=projection.buffers).total_bytes
        known = (name, config.parallel) in PROJECTED_LESS
        if (total == pytest.approx(sum(buffers.values()), rel=0.02, abs=2**14)) is known:
            wrong.append(f"{name} {config.ctx_size}: total {total}, llama.cpp took {buffers}")
    assert not wrong, "\n".join(wrong)
    assert sum(buffers is not None for buffers in real) >= 0.9 * len(points)


def _compare(name: str, config: RunConfig, answer: Projection) -> str:
    buffers = answer.buffers
    if buffers is None:
        reason = answer.reason
        expected = bool(re.search(REFUSED, reason)) or (name in NOT_SEVERAL_SLOTS and config.parallel > 1)
        return "" if expected else f"{name}: {reason}"
    model = read_model(config.model)
    said = {
        cause: sum(size for key, size in buffers.items() if key.startswith(cause)) for cause in ("weights", "kv", "compute")
    }
    cache = kv_bytes(model, config)
    footprint = estimate_footprint(model, config)
    weights, compute = footprint.bytes_of("weights"), footprint.bytes_of("compute")
    assert weights is not None
    assert compute is not None
    if cache is None or cache + recurrent_bytes(model, config) != said["kv"]:
        return f"{name}: cache {cache} + {recurrent_bytes(model, config)}, llama.cpp says {said['kv']}"
    if abs(weights / said["weights"] - 1) > 0.005:
        return f"{name}: weights {weights}, llama.cpp says {said['weights']}"
    return "" if compute <= said["compute"] else f"{name}: compute at least {compute}, llama.cpp says {said['compute']}"
