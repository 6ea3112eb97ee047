"""A request and the command line that asks for the same."""

from __future__ import annotations

import shlex

import pytest

from tuner.session.request import TuneRequest, build_tune_command

COMMANDS = {
    "rooftune tune --demo": TuneRequest(demo=True),
    "rooftune tune '/a b.gguf' /c.gguf --objective ttft,tpot --limit 'tpot<=50ms'": TuneRequest(
        models=("/a b.gguf", "/c.gguf"), objective="ttft,tpot", limits=("tpot<=50ms",)
    ),
    "rooftune tune --demo --budget 1h --trials 7 --seed 3 --resume mine --strategy tpe": TuneRequest(
        demo=True, budget="1h", trials=7, seed=3, resume="mine", strategy="tpe"
    ),
    "rooftune tune --demo --reserve 2GiB --no-memory-check": TuneRequest(demo=True, reserve="2GiB", no_memory_check=True),
    "rooftune tune --demo --set threads=2 --set 'flash_attn=on' --rpc a:1,b:2 --allow-quality-loss -o best.yaml": TuneRequest(
        demo=True,
        settings=("threads=2", "flash_attn=on"),
        rpc=("a:1", "b:2"),
        allow_quality_loss=True,
        output="best.yaml",
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_request_is_told_as_a_command(command: str) -> None:
    assert shlex.split(build_tune_command(COMMANDS[command])) == shlex.split(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_reads_it_back(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed for going on is what the command line takes."""
    import tuner.session
    from tuner.cli.main import run

    seen: list[TuneRequest] = []

    def remember(request: TuneRequest, **_: object) -> None:
        seen.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner.session, "tune", remember)
    assert run(shlex.split(command)[1:]) == 130
    assert seen == [COMMANDS[command]]
