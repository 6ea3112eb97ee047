"""Bad input of every kind ends with exit 2 or 3, one clear line, no traceback, little time and little memory.

2 is usage: what was typed cannot be meant. 3 is bad input: what was named is not there, or its content cannot be used.
Each case is a real process. Its processor time is bounded rather than its wall time, which a busy machine stretches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.raw_gguf import PAIRS, header, hostile_files, pair

MOST_CPU_SECONDS = 2.0
MOST_BYTES = 200 * 2**20

Arguments = list[str]


class Ended:
    """How a process ended, and what it took."""

    def __init__(self, arguments: Arguments, folder: Path) -> None:
        out, err = folder / "stdout.txt", folder / "stderr.txt"
        environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "NO_COLOR": "1"}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-c", "from tuner.cli.main import main; main()", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=environment,
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        self.code = child.returncode
        self.stdout = out.read_text(errors="replace")
        self.stderr = err.read_text(errors="replace")
        self.cpu_seconds = usage.ru_utime + usage.ru_stime
        self.peak_bytes = usage.ru_maxrss * 1024


USAGE, BAD_INPUT = 2, 3


def check_refusal(ended: Ended, code: int) -> None:
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    assert ended.code == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("rooftune: ")
    assert len(lines[0]) > len("rooftune: ") + 20, "a sentence, not a word"
    assert ended.stdout == ""
    assert ended.cpu_seconds < MOST_CPU_SECONDS
    assert ended.peak_bytes < MOST_BYTES


HOSTILE = hostile_files()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_model_files(name: str, tmp_path: Path) -> None:
    """Headers made by mutation never get further than the reader."""
    path = tmp_path / "model.gguf"
    path.write_bytes(HOSTILE[name])
    check_refusal(Ended(["inspect", str(path)], tmp_path), BAD_INPUT)


FLAGS: dict[str, Arguments] = {
    "unknown command": ["tuen", "--demo"],
    "unknown option": ["tune", "--demo", "--fast"],
    "tune without a model": ["tune"],
    "inspect without a model": ["inspect"],
    "measure without a model": ["measure"],
    "verify without a file": ["verify"],
    "export without a target": ["export", "x.yaml"],
    "reserve without a number": ["tune", "--demo", "--reserve", "plenty"],
    "reserve below nothing": ["measure", "--demo", "--reserve=-1GiB"],
    "reserve in no unit": ["inspect", "--demo", "--reserve", "2 buckets"],
    "a switch with a value": ["tune", "--demo", "--no-memory-check=yes"],
    "budget 0": ["tune", "--demo", "--budget", "0"],
    "budget that is no duration": ["tune", "--demo", "--budget", "soon"],
    "budget below nothing": ["tune", "--demo", "--budget=-5m"],
    "budget without a number": ["tune", "--demo", "--budget", "m"],
    "budget of not a number": ["tune", "--demo", "--budget", "nan"],
    "trials 0": ["tune", "--demo", "--trials", "0"],
    "trials below nothing": ["tune", "--demo", "--trials=-3"],
    "trials as a word": ["tune", "--demo", "--trials", "many"],
    "seed as a word": ["tune", "--demo", "--seed", "lucky"],
    "unknown objective": ["tune", "--demo", "--objective", "speed"],
    "objective twice": ["tune", "--demo", "--objective", "ttft,ttft"],
    "empty objective": ["tune", "--demo", "--objective", ""],
    "limit without a comparison": ["tune", "--demo", "--limit", "tpot"],
    "limit on an unknown metric": ["tune", "--demo", "--limit", "speed<=5"],
    "limit the wrong way": ["tune", "--demo", "--limit", "tpot>=50ms"],
    "limit without a unit that exists": ["tune", "--demo", "--limit", "tpot<=5parsecs"],
    "limit of memory in words": ["tune", "--demo", "--limit", "memory<=plenty"],
    "limit without a unit": ["tune", "--demo", "--limit", "tpot<=50"],
    "limit on a name in capitals": ["tune", "--demo", "--limit", "TPOT<=50ms"],
    "budget without a unit": ["tune", "--demo", "--budget", "60"],
    "verify with a budget of words": ["verify", "none.yaml", "--budget", "soon"],
    "diagnose with a promise of words": ["diagnose", "--demo", "--promise-ttft", "fast"],
    "predict for an unknown machine": ["predict", "--demo", "--machine", "rtx-9999"],
    "an export nobody wrote": ["export", "none.yaml", "--to", "lama-server"],
    "limit of half a token": ["tune", "--demo", "--limit", "ctx_size>=1.5"],
    "unknown workload": ["tune", "--demo", "--workload", "chatty"],
    "unknown space": ["tune", "--demo", "--space", "galaxy"],
    "unknown strategy": ["tune", "--demo", "--strategy", "luck"],
    "unknown engine": ["tune", "--demo", "--engine", "steam"],
    "unknown setting": ["tune", "--demo", "--set", "thread=2"],
    "setting without a value": ["tune", "--demo", "--set", "threads"],
    "setting with an empty value": ["tune", "--demo", "--set", "threads="],
    "threads as a word": ["tune", "--demo", "--set", "threads=many"],
    "threads 0": ["tune", "--demo", "--set", "threads=0"],
    "threads beyond reason": ["tune", "--demo", "--set", "threads=100000"],
    "unknown cache type": ["tune", "--demo", "--set", "cache_type_k=q9_9"],
    "cache type that crashes llama.cpp": ["tune", "--demo", "--set", "cache_type_k=q8_1"],
    "flash attention maybe": ["tune", "--demo", "--set", "flash_attn=maybe"],
    "context below nothing": ["tune", "--demo", "--set", "ctx_size=-5"],
    "context beyond counting": ["tune", "--demo", "--set", "ctx_size=99999999999999999999999"],
    "micro-batch 0": ["tune", "--demo", "--set", "ubatch_size=0"],
    "too many slots": ["tune", "--demo", "--set", "parallel=1000"],
    "unknown split mode": ["tune", "--demo", "--set", "split_mode=diagonal"],
    "storage that is no URL": ["tune", "--demo", "--storage", "nowhere"],
    "storage of an unknown kind": ["tune", "--demo", "--storage", "carrier-pigeon://coop"],
    "measure with an unknown setting": ["measure", "--demo", "--set", "ngl=3"],
    "measure with an unknown workload": ["measure", "--demo", "--workload", "x"],
    "inspect with a context of words": ["inspect", "--demo", "--ctx", "large"],
    "inspect with a context below nothing": ["inspect", "--demo", "--ctx=-1"],
    "inspect for an unknown front end": ["inspect", "--demo", "--front-end", "browser"],
    "explain an unknown thing": ["explain", "flux_capacitor"],
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str, tmp_path: Path) -> None:
    """What cannot be meant is refused before anything is measured."""
    check_refusal(Ended(FLAGS[name], tmp_path), USAGE)


NAMED: dict[str, Arguments] = {
    "missing workload file": ["tune", "--demo", "--workload", "none.yaml"],
    "missing space file": ["tune", "--demo", "--space", "none.yaml"],
    "resume of an unknown study": ["tune", "--demo", "--resume", "no-such-study"],
    "output in a folder that is none": ["tune", "--demo", "-o", "no/such/folder/best.yaml"],
    "output that is a folder": ["tune", "--demo", "-o", "."],
    "quantised V without flash attention": ["tune", "--demo", "--set", "cache_type_v=q8_0", "--set", "flash_attn=off"],
}


@pytest.mark.parametrize("name", NAMED)
def test_flags_that_name_what_cannot_be_used(name: str, tmp_path: Path) -> None:
    """The words are well chosen, but there is no such file, folder or study, or the model cannot run so."""
    check_refusal(Ended(NAMED[name], tmp_path), BAD_INPUT)


MISSING: dict[str, Callable[[Path], Arguments]] = {
    "a model that is not there": lambda here: ["inspect", str(here / "none.gguf")],
    "a model that is not there, tuned": lambda here: ["tune", str(here / "none.gguf")],
    "a model that is not there, measured": lambda here: ["measure", str(here / "none.gguf")],
    "a folder without models": lambda here: ["tune", str(_folder(here / "empty"))],
    "a folder to inspect": lambda here: ["inspect", str(_folder(here / "empty"))],
    "a device": lambda _: ["inspect", "/dev/null"],
    "an endless device": lambda _: ["inspect", "/dev/zero"],
    "a link to itself": lambda here: ["inspect", str(_loop(here / "loop.gguf"))],
    "a name with a line break": lambda here: ["inspect", str(here / "two\nlines.gguf")],
    "a name too long": lambda here: ["inspect", str(here / ("x" * 5000))],
    "one shard of three": lambda here: ["inspect", str(_file(here / "m-00002-of-00003.gguf", HOSTILE["text"]))],
    "an embedding model, tuned": lambda here: ["tune", str(_encoder(here / "bert.gguf"))],
    "an embedding model, measured": lambda here: ["measure", str(_encoder(here / "bert.gguf"))],
    "a projector, tuned": lambda here: ["tune", str(_file(here / "mmproj.gguf", HOSTILE["a projector"]))],
    "an incomplete model, tuned": lambda here: ["tune", str(_file(here / "m.gguf", HOSTILE["cut 1 bytes short"]))],
    "a folder with a damaged model only": lambda here: [
        "tune",
        str(_file(_folder(here / "f") / "m.gguf", header()[:50]).parent),
    ],
    "two different models": lambda here: ["tune", str(_file(here / "a.gguf", header())), str(_deeper(here / "b.gguf"))],
    "a model that is a pipe": lambda here: ["inspect", str(_pipe(here / "pipe.gguf"))],
    "a result that is a pipe": lambda here: ["verify", str(_pipe(here / "pipe.yaml"))],
    "a space that is a folder": lambda here: ["tune", "--demo", "--space", str(_folder(here / "space.yaml"))],
    "a workload that is a device": lambda _: ["tune", "--demo", "--workload", "/dev/zero"],
    "a safetensors file": lambda here: ["tune", str(_file(here / "model.safetensors", b"\x10\0\0\0\0\0\0\0{}"))],
    "verify a file that is not there": lambda here: ["verify", str(here / "none.yaml")],
    "export a file that is not there": lambda here: ["export", str(here / "none.yaml"), "--to", "llama-server"],
    "export of a folder": lambda here: ["export", str(here), "--to", "llama-server"],
}


NO_FILE_NAMES = {"a workload that is a device"}
"""A workload file is known by its ending; anything else is taken for the name of a preset."""


@pytest.mark.parametrize("name", MISSING)
def test_files_that_are_none(name: str, tmp_path: Path) -> None:
    """Missing, empty, endless or of another kind."""
    check_refusal(Ended(MISSING[name](tmp_path), tmp_path), USAGE if name in NO_FILE_NAMES else BAD_INPUT)


YAML: dict[str, str] = {
    "empty": "",
    "a list": "- 1\n- 2\n",
    "a number": "42\n",
    "unclosed": "{a: [1, 2\n",
    "a tab": "a:\n\t- b\n",
    "a Python object": "!!python/object/apply:os.system ['true']\n",
    "an alias bomb": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
    "deep": "[" * 3000,
    "binary": "\x00\x01\x02",
    "another schema": "schema: sausage/9\n",
    "no fields": "schema: rooftune/1\n",
    "unknown keys": "colour: red\n",
}


@pytest.mark.parametrize("name", YAML)
@pytest.mark.parametrize("use", ["space", "workload", "verify", "export"])
def test_yaml(use: str, name: str, tmp_path: Path) -> None:
    """Spaces, workloads and results of another shape."""
    path = tmp_path / "given.yaml"
    path.write_text(YAML[name])
    arguments = {
        "space": ["tune", "--demo", "--space", str(path)],
        "workload": ["tune", "--demo", "--workload", str(path)],
        "verify": ["verify", str(path)],
        "export": ["export", str(path), "--to", "llama-server"],
    }
    check_refusal(Ended(arguments[use], tmp_path), BAD_INPUT)


SPACES: dict[str, str] = {
    "unknown dimension": "dimensions:\n  warp: [1, 2]\n",
    "no values": "dimensions:\n  threads: []\n",
    "words for numbers": "dimensions:\n  threads: [one, two]\n",
    "range backwards": "dimensions:\n  threads: {min: 4, max: 1}\n",
    "step 0": "dimensions:\n  threads: {min: 1, max: 4, step: 0}\n",
    "range without end": "dimensions:\n  threads: {min: 1}\n",
    "unknown cache type": "dimensions:\n  cache_type_k: [f16, q7_7]\n",
    "a number below nothing": "dimensions:\n  ubatch_size: [-32]\n",
    "dimensions as a list": "dimensions: [threads]\n",
    "a value that is a map": "dimensions:\n  threads: [{a: 1}]\n",
    "a huge range": "dimensions:\n  ctx_size: {min: 1, max: 100000000000, step: 1}\n",
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_that_cannot_be_searched(name: str, tmp_path: Path) -> None:
    """The dimension and what it takes are named."""
    path = tmp_path / "space.yaml"
    path.write_text("name: mine\n" + SPACES[name])
    check_refusal(Ended(["tune", "--demo", "--space", str(path)], tmp_path), BAD_INPUT)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _encoder(path: Path) -> Path:
    return _file(path, header(pairs=(pair("general.architecture", "bert"), PAIRS[1])))


def _deeper(path: Path) -> Path:
    return _file(path, header(pairs=(*PAIRS[:2], pair("llama.block_count", 2), *PAIRS[3:])))


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _loop(path: Path) -> Path:
    path.symlink_to(path)
    return path
