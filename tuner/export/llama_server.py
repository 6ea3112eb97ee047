"""llama-server: the command line that serves the model with the tuned settings."""

from __future__ import annotations

import shlex
from typing import Final

from tuner.export.base import Export, describe_origin, read_build_number, write_comments
from tuner.report import Report
from tuner.runconfig import RunConfig

FLASH_ATTN_TAKES_VALUE: Final = 6325
"""First build whose --flash-attn is on, off or auto; before it, the bare flag meant on."""
LOAD_MODE_KNOWN: Final = 10297
"""A build known to have --load-mode; before it, --no-mmap, --mlock and --direct-io say the same."""
_OLD_LOAD_FLAGS: Final = {
    "none": ["--no-mmap"],
    "mmap": [],
    "auto": [],
    "mlock": ["--no-mmap", "--mlock"],
    "mmap+mlock": ["--mlock"],
    "dio": ["--direct-io"],
}


class LlamaServer(Export):
    """A shell-quoted `llama-server` command line.

    Every setting that was measured is written out, so that a later change of llama.cpp's defaults changes nothing. The
    context (`--ctx-size`) is the total over all slots; a comment says how much each slot gets. The flags follow the llama.cpp
    build that the result was measured with. Add `--host` and `--port` to taste.
    """

    name = "llama-server"
    title = "command line of llama.cpp's HTTP server"

    def render(self, report: Report) -> str:
        notes = [f"Not carried over: {each}" for each in self.dropped(report)]
        command = " \\\n  ".join(_pair_up(build_argv(report)))
        return f'#!/bin/sh\n{write_comments(describe_origin(report) + notes)}exec {command} \\\n  "$@"\n'

    def dropped(self, report: Report) -> list[str]:
        build = read_build_number(report.runtime.llama_cpp)
        config = report.best.config
        lost = []
        if build is not None and build < FLASH_ATTN_TAKES_VALUE and config.flash_attn == "auto":
            lost.append("flash_attn auto: this llama.cpp build only knows on and off, and off is what it does.")
        return lost


def build_argv(report: Report, program: str = "llama-server") -> list[str]:
    """The command, one argument an item."""
    config = report.best.config
    build = read_build_number(report.runtime.llama_cpp)
    return [
        program,
        *("--model", report.model.path),
        *("--ctx-size", str(config.ctx_size)),
        *("--parallel", str(config.parallel)),
        *("--batch-size", str(config.batch_size)),
        *("--ubatch-size", str(config.ubatch_size)),
        *("--threads", str(config.threads)),
        *("--threads-batch", str(config.threads_batch or config.threads)),
        *_write_flash_attn(config, build),
        *("--cache-type-k", config.cache_type_k),
        *("--cache-type-v", config.cache_type_v),
        *_write_load_mode(config, build),
        *_write_devices(report),
        *(["--swa-full"] if config.swa_full else []),
        *(["--numa", config.numa] if config.numa != "off" else []),
    ]


def _write_flash_attn(config: RunConfig, build: int | None) -> list[str]:
    if build is None or build >= FLASH_ATTN_TAKES_VALUE:
        return ["--flash-attn", config.flash_attn]
    return ["--flash-attn"] if config.flash_attn == "on" else []


def _write_load_mode(config: RunConfig, build: int | None) -> list[str]:
    if build is None or build >= LOAD_MODE_KNOWN:
        return ["--load-mode", config.load_mode]
    return list(_OLD_LOAD_FLAGS[config.load_mode])


def _write_devices(report: Report) -> list[str]:
    config = report.best.config
    flags = [*(["--rpc", ",".join(report.rpc)] if report.rpc else []), "--n-gpu-layers", str(config.n_gpu_layers)]
    if config.n_gpu_layers == 0:
        return flags
    flags += ["--split-mode", config.split_mode, "--main-gpu", str(config.main_gpu)]
    if config.tensor_split:
        flags += ["--tensor-split", ",".join(f"{share:g}" for share in config.tensor_split)]
    if config.n_cpu_moe:
        flags += ["--n-cpu-moe", str(config.n_cpu_moe)]
    flags += ["--no-kv-offload"] if config.no_kv_offload else []
    return flags + ([] if config.op_offload else ["--no-op-offload"])


def _pair_up(argv: list[str]) -> list[str]:
    """Flags with their values, one flag a line, quoted for a shell."""
    lines = [shlex.quote(argv[0])]
    for argument in argv[1:]:
        if argument.startswith("--"):
            lines.append(argument)
        else:
            lines[-1] += f" {shlex.quote(argument)}"
    return lines
