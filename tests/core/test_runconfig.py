"""Points that llama.cpp would run alike are one point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.runconfig import CACHE_TYPES, EffectiveFacts, RunConfig, pad_context, resolve_effective

CPU = EffectiveFacts(n_layer=28, context_length=8192, has_device=False)
GPU = EffectiveFacts(n_layer=28, context_length=8192, has_device=True, n_devices=1)


def test_batches_above_the_context_are_the_clamped_twin() -> None:
    """n_batch is cut to the context, n_ubatch to n_batch."""
    wild = RunConfig(ctx_size=2048, batch_size=4096, ubatch_size=8192, threads=2)
    tame = RunConfig(ctx_size=2048, batch_size=2048, ubatch_size=2048, threads=2)
    assert resolve_effective(wild, CPU) == resolve_effective(tame, CPU)
    assert hash(resolve_effective(wild, CPU)) == hash(resolve_effective(tame, CPU))


def test_batch_is_cut_to_the_context_before_it_is_padded() -> None:
    """As llama.cpp does."""
    point = resolve_effective(RunConfig(ctx_size=1000, batch_size=2048, threads=1), CPU)
    assert (point.ctx_size, point.batch_size, point.ubatch_size) == (1024, 1000, 512)


@pytest.mark.parametrize(
    ("ctx", "slots", "cells"), [(1000, 3, 1536), (512, 4, 1024), (4096, 4, 4096), (3000, 3, 3072), (1024, 4, 1024)]
)
def test_context_is_padded_per_slot(ctx: int, slots: int, cells: int) -> None:
    """It can grow although llama.cpp's message says it is rounded down."""
    assert pad_context(ctx, slots) == cells


@pytest.mark.parametrize(("asked", "runs"), [(-1, 29), (0, 0), (1, 1), (29, 29), (30, 29), (99, 29)])
def test_layers_above_all_are_all(asked: int, runs: int) -> None:
    """28 blocks and the output layer make 29."""
    assert resolve_effective(RunConfig(n_gpu_layers=asked, threads=1), GPU).n_gpu_layers == runs


def test_without_a_device_the_device_settings_mean_nothing() -> None:
    """All of them collapse into one point."""
    odd = RunConfig(
        n_gpu_layers=12, split_mode="row", tensor_split=(1.0, 2.0), main_gpu=3, no_kv_offload=True, op_offload=False, threads=1
    )
    assert resolve_effective(odd, CPU) == resolve_effective(RunConfig(threads=1), CPU)


def test_a_quantised_v_cache_forces_flash_attention() -> None:
    """flash_attn auto becomes on, without a check."""
    facts = EffectiveFacts(n_layer=2, context_length=512, has_device=True, flash_attn_auto="auto")
    assert resolve_effective(RunConfig(cache_type_v="q8_0", threads=1), facts).flash_attn == "on"
    assert resolve_effective(RunConfig(threads=1), facts).flash_attn == "auto"


def test_threads_for_batches_follow_threads() -> None:
    """0 means the same."""
    assert resolve_effective(RunConfig(threads=3), CPU).threads_batch == 3


@given(
    ctx=st.integers(0, 40_000),
    batch=st.integers(1, 10_000),
    ubatch=st.integers(0, 10_000),
    slots=st.integers(1, 16),
    layers=st.integers(-1, 99),
    kind=st.sampled_from(CACHE_TYPES),
    facts=st.sampled_from([CPU, GPU]),
)
def test_settling_twice_changes_nothing(
    ctx: int, batch: int, ubatch: int, slots: int, layers: int, kind: str, facts: EffectiveFacts
) -> None:
    """What is effective stays as it is, so that it can serve as an identity."""
    config = RunConfig(
        ctx_size=ctx, batch_size=batch, ubatch_size=ubatch, parallel=slots, n_gpu_layers=layers, cache_type_v=kind, threads=2
    )
    once = resolve_effective(config, facts)
    assert resolve_effective(once, facts) == once
    assert once.ubatch_size <= once.batch_size
