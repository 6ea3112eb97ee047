"""Ceilings of round numbers, so that a case can be worked out by hand. Never part of rooftune."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.roofline.ceilings import (
    AttentionCeiling,
    Ceilings,
    DeviceCeiling,
    Figure,
    FixedCeiling,
    FormatCeiling,
    LinkCeiling,
    Source,
)

FORMATS = ("F16", "F32", "Q8_0", "Q4_0", "Q4_K", "Q6_K")
BANDWIDTH = 1e10
COMPUTE = 1e11
BYTE_S = 1e-10
"""Reading a byte of weights, s."""
TOKEN_BYTE_S = 2e-11
"""What each further token adds to a byte, s."""
OP_S = 1e-11
STEP_S = 1e-3
LAYER_S = 1e-4
WIDTH = 256


def figure(value: float, spread: float = 0.0) -> Figure:
    return Figure(value=value, spread=spread)


def make_ceilings(
    *,
    devices: Sequence[str] = ("CPU",),
    formats: Sequence[str] = FORMATS,
    threads: Sequence[int] = (1, 2, 4),
    tokens: Sequence[int] = (1, 2, 512),
    caches: Sequence[tuple[str, str, bool]] = (("f16", "f16", True), ("f16", "f16", False), ("q8_0", "q8_0", True)),
    byte_s: float = BYTE_S,
    token_byte_s: float = TOKEN_BYTE_S,
    op_s: float = OP_S,
    spread: float = 0.0,
    source: Source = "calibrated",
    doubts: tuple[str, ...] = (),
) -> Ceilings:
    """Each further device is ten times as fast as the one before; threads share the work evenly."""
    speeds = {device: 10.0**number for number, device in enumerate(devices)}
    counts = {device: threads if device == "CPU" else (0,) for device in devices}
    faster = [(device, speeds[device], count, speeds[device] * max(1, count)) for device in devices for count in counts[device]]
    return Ceilings(
        source=source,
        machine="f" * 12,
        summary="a machine of round numbers",
        llama_cpp="0.5.0",
        made="2026-01-01T00:00:00Z",
        doubts=doubts,
        devices=tuple(
            DeviceCeiling(device=device, bandwidth=figure(BANDWIDTH * speed), compute=figure(COMPUTE * speed))
            for device, speed in speeds.items()
        ),
        formats=tuple(
            FormatCeiling(
                device=device, format=form, threads=count, tokens=n,
                seconds_per_byte=figure((byte_s + (n - 1) * token_byte_s) / fast, spread),
            )
            for device, _, count, fast in faster for form in formats for n in tokens
        ),
        attention=tuple(
            AttentionCeiling(
                device=device, cache_type_k=k, cache_type_v=v, flash_attn=flash, threads=count, tokens=n,
                seconds_per_op=figure(op_s / fast, spread),
            )
            for device, _, count, fast in faster for k, v, flash in caches for n in (1, 512)
        ),
        fixed=tuple(
            FixedCeiling(
                device=device, threads=count, tokens=n, step_s=figure(STEP_S, spread), layer_s=figure(LAYER_S, spread), width=WIDTH
            )
            for device, _, count, _ in faster for n in (1, 512)
        ),
        links=tuple(
            LinkCeiling(device=device, bytes_per_s=figure(1e9, spread), latency_s=figure(1e-5, spread))
            for device in devices if device != "CPU"
        ),
    )  # fmt: skip
