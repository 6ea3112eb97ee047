"""The llama-bench commands: what they say, and that the benchmark runs the phase that was measured."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.builders.reports import TUNED, report
from tuner.export.llama_bench import LlamaBench, build_decode_argv, build_prefill_argv
from tuner.workload import PRESETS, Workload


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_each_phase_runs_at_its_own_depth_with_its_own_threads() -> None:
    chat = report(workload=PRESETS["chat"])
    prefill, decode = build_prefill_argv(chat), build_decode_argv(chat)
    assert [value_of(prefill, flag) for flag in ("-p", "-n", "-d", "-t")] == ["512", "0", "2048", "3"]
    assert [value_of(decode, flag) for flag in ("-p", "-n", "-d", "-t")] == ["0", "256", "2560", "2"]


def test_the_figure_to_expect_is_told() -> None:
    text = LlamaBench().render(report())
    assert "Prefill: 1280 tok/s were measured." in text
    assert "Decode: 200 tok/s were measured." in text


def test_tensor_split_uses_the_separator_of_llama_bench() -> None:
    argv = build_prefill_argv(report(best=TUNED.replace(n_gpu_layers=31, tensor_split=(3.0, 1.0), op_offload=False)))
    assert value_of(argv, "-ts") == "3/1"
    assert value_of(argv, "-nopo") == "1"
    assert value_of(argv, "-nkvo") == "0"


def test_several_slots_are_named_as_lost() -> None:
    assert any("parallel 4" in each for each in LlamaBench().dropped(report(best=TUNED.replace(parallel=4))))


@pytest.mark.llama
@pytest.mark.tool("llama-bench")
@pytest.mark.parametrize("build", [build_prefill_argv, build_decode_argv], ids=["prefill", "decode"])
def test_the_benchmark_takes_the_command(build: Any, smollm2: Path, llama_tool: Any) -> None:
    """llama-bench's own record shows the settings that were asked for."""
    load = Workload(name="tiny", prompt_tokens=16, output_tokens=4, depth_tokens=8)
    config = TUNED.replace(batch_size=64, ubatch_size=32, threads=1, threads_batch=2, flash_attn="on", cache_type_v="q8_0")
    argv = build(report(best=config, model=str(smollm2), workload=load), llama_tool("llama-bench"))
    done = subprocess.run([*argv, "-r", "1", "-o", "json"], capture_output=True, text=True, timeout=120, check=True)
    (row,) = json.loads(done.stdout)
    prefill = build is build_prefill_argv
    expected = (16, 0, 8, 2) if prefill else (0, 4, 24, 1)
    assert (row["n_prompt"], row["n_gen"], row["n_depth"], row["n_threads"]) == expected
    assert (row["n_batch"], row["n_ubatch"], row["type_k"], row["type_v"]) == (64, 32, "q8_0", "q8_0")
    assert row["avg_ts"] > 0
