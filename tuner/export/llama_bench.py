"""llama-bench: the commands that reproduce the figures with llama.cpp's own benchmark."""

from __future__ import annotations

import shlex

from tuner.export.base import Export, describe_origin, write_comments
from tuner.report import Report
from tuner.runconfig import RunConfig
from tuner.units import format_rate


class LlamaBench(Export):
    """Two `llama-bench` command lines, one for each phase.

    The first reads the prompt at the workload's depth (`-p P -d D`), the second writes the answer after it (`-n N -d D+P`).
    They are two because llama-bench has one number of threads for both phases. A comment tells the figure to expect.
    """

    name = "llama-bench"
    title = "commands that reproduce the figures with llama.cpp's own benchmark"

    def render(self, report: Report) -> str:
        notes = [f"Not carried over: {each}" for each in self.dropped(report)]
        prefill = write_comments([f"Prefill: {_expect_prefill(report)}"]) + shlex.join(build_prefill_argv(report))
        decode = write_comments([f"Decode: {_expect_decode(report)}"]) + shlex.join(build_decode_argv(report))
        return f"#!/bin/sh\n{write_comments(describe_origin(report) + notes)}\n{prefill}\n\n{decode}\n"

    def dropped(self, report: Report) -> list[str]:
        config = report.best.config
        lost = [f"ctx_size {config.ctx_size}: llama-bench sizes the context itself, by prompt, answer and depth."]
        if config.parallel > 1:
            lost.append(f"parallel {config.parallel}: llama-bench runs one sequence; llama-batched-bench runs several.")
        if config.swa_full:
            lost.append("swa_full on: llama-bench always keeps sliding-window layers to their window.")
        return lost


def build_prefill_argv(report: Report, program: str = "llama-bench") -> list[str]:
    """The command that reads the prompt, one argument an item."""
    load, config = report.workload, report.best.config
    test = ["-p", str(load.prompt_tokens), "-n", "0", "-d", str(load.depth_tokens)]
    return [program, "-m", report.model.path, *test, "-t", str(config.threads_batch or config.threads), *_write_rest(report)]


def build_decode_argv(report: Report, program: str = "llama-bench") -> list[str]:
    """The command that writes the answer, one argument an item."""
    load, config = report.workload, report.best.config
    test = ["-p", "0", "-n", str(load.output_tokens), "-d", str(load.depth_tokens + load.prompt_tokens)]
    threads = config.threads if config.parallel == 1 else config.threads_batch or config.threads
    return [program, "-m", report.model.path, *test, "-t", str(threads), *_write_rest(report)]


def _write_rest(report: Report) -> list[str]:
    config = report.best.config
    return [
        *("-b", str(config.batch_size), "-ub", str(config.ubatch_size)),
        *("-ctk", config.cache_type_k, "-ctv", config.cache_type_v),
        *("-fa", config.flash_attn, "-lm", config.load_mode),
        *_write_devices(config),
        *(["-rpc", ",".join(report.rpc)] if report.rpc else []),
        *(["--numa", config.numa] if config.numa != "off" else []),
    ]


def _write_devices(config: RunConfig) -> list[str]:
    flags = ["-ngl", str(config.n_gpu_layers)]
    if config.n_gpu_layers == 0:
        return flags
    flags += ["-sm", config.split_mode, "-mg", str(config.main_gpu)]
    if config.tensor_split:
        flags += ["-ts", "/".join(f"{share:g}" for share in config.tensor_split)]
    if config.n_cpu_moe:
        flags += ["-ncmoe", str(config.n_cpu_moe)]
    return [*flags, "-nkvo", str(int(config.no_kv_offload)), "-nopo", str(int(not config.op_offload))]


def _expect_prefill(report: Report) -> str:
    ttft = report.best.ttft_ms
    if not ttft:
        return "not measured by this tune."
    slots = max(1, report.best.config.parallel)
    rate = report.workload.prompt_tokens * slots * 1000 / ttft
    return f"{format_rate(rate)} were {report.basis}{_over_slots(slots)}."


def _expect_decode(report: Report) -> str:
    tpot = report.best.tpot_ms
    if not tpot:
        return "not measured by this tune."
    slots = max(1, report.best.config.parallel)
    return f"{format_rate(1000 * slots / tpot)} were {report.basis}{_over_slots(slots)}."


def _over_slots(slots: int) -> str:
    return f" over {slots} slots together" if slots > 1 else ""
