"""Compares this engine with llama-bench of the same build: same file, same settings, interleaved rounds, ratios of medians.

A script, not a test: speeds hold only on a quiet machine. Example:

    python -m tests.bench.llama_bench_agreement model.gguf --threads 2 --prompt 512 --output 64 --depth 0 --rounds 5
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

TARGET = 0.03


def main() -> int:
    options = read_options()
    tool = find_llama_bench(options.llama_bench)
    mine, theirs = [], []
    for number in range(1, options.rounds + 1):
        # who goes first alternates, so that a drift of the machine falls on both
        for who in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            if who == "ours":
                mine.append(run_engine(options))
            else:
                theirs.append(run_llama_bench(tool, options))
        print(f"round {number}: ours {mine[-1]}, llama-bench {theirs[-1]}", file=sys.stderr)
    return print_table(mine, theirs)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--ubatch-size", type=int, default=512)
    parser.add_argument("--cache-type-k", default="f16")
    parser.add_argument("--cache-type-v", default="f16")
    parser.add_argument("--flash-attn", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=3, help="of both, within a round")
    parser.add_argument("--no-repack", action="store_true", help="leave weights as they are in the file, on both sides")
    parser.add_argument("--llama-bench", help="path of llama-bench, where it is not beside the package")
    return parser.parse_args()


def find_llama_bench(given: str | None) -> str:
    package = importlib.util.find_spec("llama_cpp")
    beside = Path(package.origin).parents[1] / "bin" if package and package.origin else Path(sys.prefix) / "bin"
    found = given or shutil.which("llama-bench", path=f"{beside}:{Path(sys.prefix) / 'bin'}")
    if not found:
        sys.exit("this llama.cpp build brought no llama-bench; give its path with --llama-bench")
    return found


def run_llama_bench(tool: str, options: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of both phases: pp at the depth, tg at depth and prompt, as a turn has them."""
    flash = {"auto": "auto", "on": "on", "off": "off"}[options.flash_attn]
    shared = [
        tool, "-m", str(options.model), "-t", str(options.threads), "-r", str(options.repetitions), "-o", "json",
        "-b", str(options.batch_size), "-ub", str(options.ubatch_size), "-fa", flash,
        "--repack", "0" if options.no_repack else "1",
        "-ctk", options.cache_type_k, "-ctv", options.cache_type_v,
    ]  # fmt: skip
    prefill = [*shared, "-p", str(options.prompt), "-n", "0", "-d", str(options.depth)]
    decode = [*shared, "-p", "0", "-n", str(options.output), "-d", str(options.depth + options.prompt)]
    return {"pp": take_rate(prefill), "tg": take_rate(decode)}


def take_rate(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"llama-bench ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(statistics.median(json.loads(done.stdout)[0]["samples_ts"]))


ENGINE = """
import json, os, statistics, sys
answer = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
from tuner.engines import find_engine
from tuner.engines.base import PrepareRequest, TurnRequest
from tuner.runconfig import RunConfig, pad256
from tuner.workload import Workload
o = json.loads(sys.argv[1])
engine = find_engine("llama-cpp-python")()
config = RunConfig(model=o["model"], ctx_size=pad256(o["prompt"] + o["output"] + o["depth"]), threads=o["threads"],
    threads_batch=o["threads"], batch_size=o["batch_size"], ubatch_size=o["ubatch_size"], flash_attn=o["flash_attn"],
    cache_type_k=o["cache_type_k"], cache_type_v=o["cache_type_v"])
load = Workload(name="bench", prompt_tokens=o["prompt"], output_tokens=o["output"], depth_tokens=o["depth"])
def phase(turn, **phases):
    engine.prepare(PrepareRequest(config=config, workload=load, fresh=True, **phases))
    return statistics.median(turn() for _ in range(o["repetitions"]))
def read():
    return o["prompt"] / engine.run_turn(TurnRequest(prefill=True)).ttft_ms * 1e3
def write():
    t = engine.run_turn(TurnRequest(prefill=False, decode_tokens=o["output"] + 1))
    return t.decode_steps / t.decode_ms * 1e3
print(json.dumps({"pp": phase(read, decode=False), "tg": phase(write, prefill=False)}), file=answer, flush=True)
"""


def run_engine(options: argparse.Namespace) -> dict[str, float]:
    """The same of this engine, in a process of its own for each round, as llama-bench is."""
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, json.dumps(settings)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
        env={**os.environ, "ROOFTUNE_REPACK": "off" if options.no_repack else "on"},
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"the engine's process ended with {done.returncode}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def print_table(mine: list[dict[str, float]], theirs: list[dict[str, float]]) -> int:
    """Exit code 0 when both ratios are within the target."""
    worst = 0.0
    print(f"{'phase':<6}{'ours tok/s':>12}{'llama-bench':>13}{'ratio':>8}")
    for phase in ("pp", "tg"):
        a, b = (statistics.median(r[phase] for r in rounds) for rounds in (mine, theirs))
        worst = max(worst, abs(a / b - 1))
        print(f"{phase:<6}{a:>12.1f}{b:>13.1f}{a / b:>8.3f}")
    print("within 3 %" if worst <= TARGET else f"off by {worst:.1%}")
    return 0 if worst <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
