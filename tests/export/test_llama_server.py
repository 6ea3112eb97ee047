"""The llama-server command line: what it says, and that the server takes it and does it."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.builders.reports import TUNED, report
from tuner.engines.base import RuntimeFacts
from tuner.export.llama_server import LlamaServer, build_argv
from tuner.runconfig import RunConfig


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def built(build: str, **changes: Any) -> list[str]:
    runtime = RuntimeFacts(engine="llama-server", version="", llama_cpp=build)
    return build_argv(report(best=TUNED.replace(**changes), runtime=runtime))


@pytest.mark.parametrize("value", ["on", "off", "auto"])
def test_flash_attention_always_carries_its_value(value: str) -> None:
    """Off is written as off, not left out."""
    assert value_of(built("b6325", flash_attn=value), "--flash-attn") == value
    assert value_of(built("", flash_attn=value), "--flash-attn") == value


def test_an_older_build_takes_the_bare_flag() -> None:
    argv = built("b6324", flash_attn="on")
    assert argv[argv.index("--flash-attn") + 1].startswith("--")
    assert "--flash-attn" not in built("b6324", flash_attn="off")


def test_an_older_build_cannot_choose_for_itself() -> None:
    runtime = RuntimeFacts(engine="llama-server", version="", llama_cpp="b6000")
    assert any(
        "flash_attn auto" in each
        for each in LlamaServer().dropped(report(best=TUNED.replace(flash_attn="auto"), runtime=runtime))
    )


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("none", ["--no-mmap"]),
        ("mlock", ["--no-mmap", "--mlock"]),
        ("mmap+mlock", ["--mlock"]),
        ("dio", ["--direct-io"]),
        ("mmap", []),
    ],
)
def test_load_mode_follows_the_build(mode: str, flags: list[str]) -> None:
    old = {"--no-mmap", "--mlock", "--direct-io"}
    assert [flag for flag in built("b7000", load_mode=mode) if flag in old] == flags
    assert value_of(built("", load_mode=mode), "--load-mode") == mode
    assert not old & set(built("", load_mode=mode))


@pytest.mark.parametrize(("ctx", "slots", "each"), [(8192, 2, 4096), (16384, 2, 8192), (1024, 4, 256)])
def test_slots_divide_the_context_and_the_comment_says_so(ctx: int, slots: int, each: int) -> None:
    tuned = report(best=TUNED.replace(ctx_size=ctx, parallel=slots))
    assert value_of(build_argv(tuned), "--ctx-size") == str(ctx)
    assert f"{each} per slot" in LlamaServer().render(tuned)


def test_the_effective_values_are_written() -> None:
    """What was clamped is written as it was run."""
    from tuner.runconfig import EffectiveFacts, resolve_effective

    facts = EffectiveFacts(n_layer=30, context_length=8192, has_device=False)
    asked = RunConfig(ctx_size=2048, batch_size=4096, ubatch_size=8192, threads=2)
    argv = build_argv(report(best=resolve_effective(asked, facts)))
    assert [value_of(argv, flag) for flag in ("--ctx-size", "--batch-size", "--ubatch-size")] == ["2048"] * 3


def test_device_settings_appear_only_with_a_device() -> None:
    everything = {"n_gpu_layers": 31, "tensor_split": (3.0, 1.5), "n_cpu_moe": 4, "no_kv_offload": True, "op_offload": False}
    argv = built("", **everything)
    assert value_of(argv, "--tensor-split") == "3,1.5"
    assert value_of(argv, "--n-cpu-moe") == "4"
    assert {"--no-kv-offload", "--no-op-offload", "--split-mode"} <= set(argv)
    assert not {"--no-kv-offload", "--split-mode", "--tensor-split"} & set(built("", n_gpu_layers=0))


def test_the_shell_reads_the_arguments_back() -> None:
    tuned = report(model="/models/it's $HOME; `x`.gguf")
    code = [line for line in LlamaServer().render(tuned).splitlines() if not line.startswith("#")]
    words = shlex.split("\n".join(code).replace("\\\n", " "))
    assert words == ["exec", *build_argv(tuned), "$@"]


@pytest.mark.llama
@pytest.mark.tool("llama-server")
def test_the_server_runs_with_these_settings(smollm2: Path, llama_tool: Any, tmp_path: Path) -> None:
    """The script starts, serves both slots with their share of the context, and answers."""
    tool = Path(llama_tool("llama-server"))
    config = TUNED.replace(
        ctx_size=1024, parallel=2, batch_size=256, ubatch_size=64, threads=1, threads_batch=1, flash_attn="on"
    )
    script = tmp_path / "serve.sh"
    script.write_text(LlamaServer().render(report(best=config, model=str(smollm2))))
    port = find_free_port()
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "LLAMA_ARG_PORT": str(port),
        "LLAMA_ARG_HOST": "127.0.0.1",
    }
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(["sh", str(script)], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until_healthy(server, port, tmp_path / "log")
        slots = ask(port, "/slots")
        assert [slot["n_ctx"] for slot in slots] == [512, 512]
        answer = ask(port, "/completion", {"prompt": "The capital of France is", "n_predict": 4, "temperature": 0})
        assert answer["tokens_predicted"] == 4
    finally:
        server.terminate()
        server.wait(timeout=30)
    said = (tmp_path / "log").read_text(errors="replace")
    assert "invalid argument" not in said


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_healthy(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            if ask(port, "/health")["status"] == "ok":
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"not healthy: {log.read_text(errors='replace')[-2000:]}")


def ask(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
