"""The Python file: which arguments Llama() gets, and that it loads the model and answers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.reports import TUNED, report
from tuner.errors import BadInputError
from tuner.export.llama_cpp_python import TYPE_IDS, LlamaCppPython, build_arguments
from tuner.runconfig import CACHE_TYPES


@pytest.mark.parametrize(("name", "number"), [("q8_0", 8), ("q4_0", 2), ("f16", 1), ("bf16", 30), ("iq4_nl", 20)])
def test_cache_types_become_numbers(name: str, number: int) -> None:
    assert build_arguments(report(best=TUNED.replace(cache_type_k=name)))["type_k"] == number


def test_every_cache_type_that_can_be_searched_has_a_number() -> None:
    assert set(TYPE_IDS) == set(CACHE_TYPES)


def test_an_unknown_cache_type_is_refused() -> None:
    """A wrong number would crash llama.cpp."""
    with pytest.raises(BadInputError, match="q8_1"):
        build_arguments(report(best=TUNED.replace(cache_type_v="q8_1")))


def test_what_llama_would_set_differently_is_set() -> None:
    arguments = build_arguments(report())
    assert arguments["swa_full"] is False
    assert (arguments["n_threads"], arguments["n_threads_batch"]) == (2, 3)
    assert arguments["flash_attn"] is False
    assert arguments["yarn_beta_fast"] == -1.0


@pytest.mark.parametrize(
    ("flash", "cache_type_v", "written"),
    [("on", "f16", True), ("off", "f16", False), ("auto", "f16", False), ("auto", "q8_0", True), ("on", "q8_0", True)],
)
def test_flash_attention_is_on_or_off(flash: str, cache_type_v: str, written: bool) -> None:
    """A quantised V cache makes auto on, as in llama.cpp: with off the file would not load; the comment says what is written."""
    tuned = report(best=TUNED.replace(flash_attn=flash, cache_type_v=cache_type_v))
    assert build_arguments(tuned)["flash_attn"] is written
    said = [each for each in LlamaCppPython().dropped(tuned) if "flash_attn auto" in each]
    assert [f"{'on' if written else 'off'} is written" in each for each in said] == [True] * (flash == "auto")


@pytest.mark.parametrize(
    ("mode", "mapped", "locked"),
    [("auto", True, False), ("none", False, False), ("mmap", True, False), ("mlock", False, True), ("mmap+mlock", True, True)],
)
def test_load_mode_becomes_two_flags(mode: str, mapped: bool, locked: bool) -> None:
    arguments = build_arguments(report(best=TUNED.replace(load_mode=mode)))
    assert (arguments["use_mmap"], arguments["use_mlock"]) == (mapped, locked)


def test_what_llama_cannot_reach_is_named_and_not_passed() -> None:
    """Llama() swallows unknown arguments, so passing them would look as if they worked."""
    hard = report(best=TUNED.replace(flash_attn="auto", parallel=2, n_cpu_moe=3, load_mode="dio"), rpc=("10.0.0.2:50052",))
    dropped = " ".join(LlamaCppPython().dropped(hard))
    assert all(name in dropped for name in ("flash_attn auto", "parallel 2", "n_cpu_moe 3", "load_mode dio", "rpc"))
    assert not {"parallel", "n_cpu_moe", "n_seq_max", "rpc_servers"} & set(build_arguments(hard))


@pytest.mark.parametrize(
    "path", ["/models/plain.gguf", '/models/it\'s "x" \\n {y}\n.gguf', "C:\\models\\x.gguf", "/modèles/é.gguf"]
)
def test_the_file_is_python_whatever_the_path(path: str) -> None:
    tree = ast.parse(LlamaCppPython().render(report(model=path)))
    settings = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(settings)["model_path"] == path


@pytest.mark.llama
def test_the_file_runs_and_answers(smollm2: Path, tmp_path: Path) -> None:
    config = TUNED.replace(
        ctx_size=256, batch_size=64, ubatch_size=32, threads=1, threads_batch=1, flash_attn="on", cache_type_v="q8_0"
    )
    path = tmp_path / "model.py"
    path.write_text(LlamaCppPython().render(report(best=config, model=str(smollm2))), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("The capital of France is")
    assert len(done.stdout.strip()) > len("The capital of France is")
