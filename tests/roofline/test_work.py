"""How much work a batch is: cases counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.ceilings import make_ceilings
from tests.roofline import models
from tests.roofline.models import MIB
from tuner.errors import BadInputError
from tuner.roofline.layout import Layout, lay_out
from tuner.roofline.work import (
    Batch,
    Segment,
    count_history,
    count_states,
    count_waste,
    count_weights,
    cut_prompts,
    experts_touched,
    step_batch,
)
from tuner.runconfig import RunConfig

PLAIN = RunConfig(ctx_size=8192)
GPU = make_ceilings(devices=("CPU", "CUDA0"))


def layout(spec: models.ModelSpec, config: RunConfig = PLAIN, ceilings: object = None) -> Layout:
    return lay_out(spec, config, ceilings or make_ceilings())


def test_every_token_meets_each_dense_matrix_once_and_only_outputs_meet_the_output_matrix() -> None:
    """Two layers of 1 MiB with 8 tokens, an output of 1 MiB with one: 2 operations per element and token."""
    dense, output = count_weights(layout(models.model()), tokens=8, outputs=1)
    assert (dense.format, dense.n_bytes, dense.tokens) == ("Q8_0", 2 * MIB, 8)
    assert dense.operations == pytest.approx(2 * (2 * MIB * 32 / 34) * 8)
    assert (output.n_bytes, output.tokens) == (MIB, 1)


def test_only_wanted_tokens_go_on_behind_the_last_layer_s_attention() -> None:
    """Of two layers of 1 MiB, half of each behind the attention: 1.5 MiB meet all 8 tokens, the last half and the output one."""
    half = models.layer(feed_forward=(("Q8_0", MIB // 2),))
    works = count_weights(layout(models.model(half, half)), tokens=8, outputs=1)
    assert [(work.n_bytes, work.tokens) for work in works] == [(1.5 * MIB, 8), (MIB / 2, 1), (MIB, 1)]
    assert [work.n_bytes for work in count_weights(layout(models.model(half, half)), tokens=8, outputs=0)] == [1.5 * MIB]


def test_while_decoding_every_token_goes_through_the_whole_last_layer() -> None:
    half = models.layer(feed_forward=(("Q8_0", MIB // 2),))
    works = count_weights(layout(models.model(half, half)), tokens=4, outputs=4)
    assert sum(work.n_bytes * work.tokens for work in works) == 3 * MIB * 4


def test_a_last_layer_of_experts_touches_those_of_the_wanted_token() -> None:
    """The only layer is the last: its experts meet one token, which passes 2 of 8."""
    works = count_weights(layout(models.mixture()), tokens=8, outputs=1)
    assert [(work.format, work.n_bytes, work.tokens) for work in works if work.format == "Q4_0"] == [("Q4_0", 2 * MIB, 1)]


def test_a_batch_without_logits_does_not_touch_the_output_matrix() -> None:
    assert [work.n_bytes for work in count_weights(layout(models.model()), tokens=8, outputs=0)] == [2 * MIB]


def test_a_tied_embedding_is_the_output_matrix_in_its_own_format() -> None:
    """The same matrix as input is only looked up."""
    works = count_weights(layout(models.tied()), tokens=1, outputs=1)
    assert [(work.format, work.n_bytes) for work in works] == [("Q8_0", 2 * MIB), ("Q6_K", MIB)]


@pytest.mark.parametrize(("tokens", "touched"), [(1, 2.0), (2, 8 * (1 - 0.75**2)), (4, 8 * (1 - 0.75**4)), (512, 8.0)], ids=str)
def test_the_experts_touched_grow_with_the_batch(tokens: int, touched: float) -> None:
    """E × (1 − (1 − k/E)^n): 2 of 8 for one token, nearly all for many; each meets its share of the tokens."""
    assert experts_touched(8, 2, tokens) == pytest.approx(touched)
    experts = next(work for work in count_weights(layout(models.mixture()), tokens, tokens) if work.format == "Q4_0")
    assert experts.n_bytes == pytest.approx(touched * MIB)
    assert experts.tokens * touched == pytest.approx(2 * tokens)


@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 4096))
def test_experts_touched_lie_between_those_of_one_token_and_all(n_expert: int, used: int, tokens: int) -> None:
    used = min(used, n_expert)
    assert used * (1 - 1e-9) <= experts_touched(n_expert, used, tokens) <= n_expert


def test_attention_counts_query_heads_while_the_cache_holds_kv_heads() -> None:
    """Two layers of 8 heads with 64 + 64: 4096 operations a position; 2 × 2 heads × 64 × (K and V) × 2 bytes = 1024."""
    (history,) = count_history(layout(models.model()), step_batch(1023, 1))
    assert history.operations == 1024 * 2 * 2 * 8 * 128
    assert history.n_bytes == 1024 * 2 * (2 * 64 * 2 * 2)


@pytest.mark.parametrize(("history", "positions"), [(0, 256), (255, 256), (256, 512), (1000, 1024)])
def test_positions_are_padded_to_256(history: int, positions: int) -> None:
    (found,) = count_history(layout(models.model(), PLAIN.replace(flash_attn="off")), step_batch(history, 1))
    assert found.operations == positions * 2 * 2 * 8 * 128


@pytest.mark.parametrize(("history", "positions"), [(0, 1), (99, 100), (255, 256), (256, 512), (1000, 1024)])
def test_flash_attention_on_the_processor_skips_what_is_hidden(history: int, positions: int) -> None:
    """From 512 cells on, padded ones are shared out to the threads as well."""
    (found,) = count_history(layout(models.model()), step_batch(history, 1))
    assert found.operations == positions * 2 * 2 * 8 * 128


def test_flash_attention_on_the_processor_is_causal_within_a_batch() -> None:
    """Tokens at positions 101 to 104 see 101 + 102 + 103 + 104."""
    batch = Batch(segments=(Segment(tokens=4, end=104),), outputs=1)
    (found,) = count_history(layout(models.model()), batch)
    assert found.operations == 410 * 2 * 2 * 8 * 128


def test_large_batches_of_flash_attention_are_computed_in_whole_tiles() -> None:
    """256 tokens in four rows of tiles: 64 × (64 + 128 + 192 + 256); a quantised cache has no tiles: 1 + 2 + … + 256."""
    batch = Batch(segments=(Segment(tokens=256, end=256),), outputs=1)
    for cache, looks in (("f16", 64 * 640), ("q8_0", 256 * 257 / 2)):
        config = PLAIN.replace(cache_type_k=cache, cache_type_v=cache)
        (found,) = count_history(layout(models.model(), config), batch)
        assert found.operations == looks * 2 * 2 * 8 * 128
        assert found.heads == (8 if cache == "f16" else 0)


@pytest.mark.parametrize(
    ("tokens", "heads", "threads", "waste"),
    [
        (32, 9, 2, 1.0),
        (256, 9, 1, 1.0),
        (256, 8, 2, 1.0),
        (64, 2, 2, 4.0),
        (256, 9, 2, 40 / 36),
        (65, 1, 1, 128 / 65),
    ],
    ids=[
        "no tiles",
        "one part",
        "parts of whole tiles",
        "parts of a quarter tile",
        "four cuts within tiles",
        "a tile for one row",
    ],
)
def test_tiles_that_are_cut_are_computed_twice(tokens: int, heads: int, threads: int, waste: float) -> None:
    """Eight parts for two threads: 9 × 256 rows in parts of 288, four of whose seven ends are within a tile."""
    assert count_waste(tokens, heads, threads) == pytest.approx(waste)


def test_each_slot_looks_back_by_itself() -> None:
    """32 slots are one token for each cache: nothing that flash attention could tile."""
    (found,) = count_history(layout(models.model()), step_batch(1023, 32))
    assert (found.tokens, found.heads) == (1, 0)


def test_kv_heads_may_differ_layer_by_layer() -> None:
    """1 and 4 KV heads of 64, f16: 256 and 1024 bytes a position."""
    spec = models.model(models.layer(n_head_kv=1), models.layer(n_head_kv=4))
    assert sum(each.n_bytes for each in layout(spec).histories) == 256 + 1024


def test_a_smaller_cache_type_has_fewer_bytes_and_as_many_operations() -> None:
    """34 bytes for 32 elements."""
    small = layout(models.model(), PLAIN.replace(cache_type_k="q8_0", cache_type_v="q8_0")).histories[0]
    large = layout(models.model()).histories[0]
    assert small.n_bytes == large.n_bytes * 34 / 64
    assert small.operations == large.operations


def test_a_sliding_window_caps_the_positions() -> None:
    """At 4096 tokens: one layer sees 4096 positions, the other the 1024 cells of its cache (512 and a micro-batch of 512)."""
    full, window = count_history(layout(models.windowed()), step_batch(4095, 1))
    assert full.operations == 4096 * 2 * 8 * 128
    assert window.operations == 1024 * 2 * 8 * 128


def test_a_batch_skips_what_lies_behind_the_window() -> None:
    """Of 1024 cells each token may see 512, and tiles reach up to 64 further; without flash attention all cells are computed."""
    batch = Batch(segments=(Segment(tokens=256, end=4096),), outputs=1)
    for config, positions in ((PLAIN, 576), (PLAIN.replace(cache_type_k="q8_0", cache_type_v="q8_0"), 512)):
        _, window = count_history(layout(models.windowed(), config), batch)
        assert window.operations == 256 * positions * 2 * 8 * 128
    _, window = count_history(layout(models.windowed(), PLAIN.replace(flash_attn="off")), batch)
    assert window.operations == 256 * 1024 * 2 * 8 * 128


def test_swa_full_lifts_the_cap_of_the_window() -> None:
    histories = count_history(layout(models.windowed(), PLAIN.replace(swa_full=True)), step_batch(4095, 1))
    assert sum(each.operations for each in histories) == 2 * 4096 * 2 * 8 * 128


def test_a_recurrent_layer_has_a_state_instead_of_a_history() -> None:
    """1000 f32 elements read and written once for each of 3 sequences; 5 operations an element and token."""
    plan = layout(models.hybrid())
    (state,) = count_states(plan, step_batch(5000, 3))
    assert (state.n_bytes, state.operations) == (3 * 8000, 3 * 5000)
    assert plan.histories[0].operations == 2 * 8 * 128


def test_latent_attention_reads_keys_only_and_computes_with_both() -> None:
    (history,) = layout(models.latent()).histories
    assert history.n_bytes == 576 * 2
    assert history.operations == 2 * 16 * (576 + 512)


def test_layers_that_share_a_cache_look_back_as_the_others_do() -> None:
    plan = layout(models.model(models.layer(), models.layer(kind="shared", n_head_kv=0)))
    assert plan.histories[0].operations == 2 * (2 * 8 * 128)
    assert plan.histories[0].n_bytes == 2 * (2 * 64 * 2 * 2)


def test_layers_go_to_the_device_from_the_end_and_the_output_first() -> None:
    """n_gpu_layers 2 of 2 layers: the output and the last layer."""
    works = count_weights(layout(models.model(), PLAIN.replace(n_gpu_layers=2), GPU), tokens=1, outputs=1)
    assert [(work.device, work.n_bytes) for work in works] == [("CPU", MIB), ("CUDA0", MIB), ("CUDA0", MIB)]


def test_big_batches_of_weights_in_main_memory_are_fetched_by_the_device() -> None:
    """From 32 tokens on, unless op_offload is off; the device then reads them through the link."""
    config = PLAIN.replace(n_gpu_layers=2)
    few = count_weights(layout(models.model(), config, GPU), tokens=31, outputs=1)
    many = count_weights(layout(models.model(), config, GPU), tokens=32, outputs=1)
    off = count_weights(layout(models.model(), config.replace(op_offload=False), GPU), tokens=32, outputs=1)
    assert [work.fetched for work in few] == [0, 0, 0]
    assert (many[0].device, many[0].fetched) == ("CUDA0", MIB)
    assert off[0].device == "CPU"


def test_experts_and_cache_may_stay_in_main_memory() -> None:
    config = PLAIN.replace(n_cpu_moe=1, no_kv_offload=True)
    plan = layout(models.mixture(), config, GPU)
    assert {device for device, _ in (*plan.experts, *plan.late_experts)} == {"CPU"}
    assert plan.histories[0].device == "CPU"
    assert (plan.expert_trips, plan.cache_trips) == ({"CUDA0": 2}, {"CUDA0": 2})


def test_a_remote_device_computes_only_its_own_weights() -> None:
    remote = make_ceilings(devices=("CPU", "RPC0"))
    works = count_weights(layout(models.model(), PLAIN.replace(n_gpu_layers=1), remote), tokens=512, outputs=1)
    assert works[0].device == "CPU"


def test_prompts_are_cut_into_batches_and_these_into_micro_batches() -> None:
    """1100 tokens in batches of 1000 cut at 512: 512, 488, 100; the logits belong to the last one."""
    batches = cut_prompts(1100, 2000, 1, batch=1000, ubatch=512)
    assert [batch.tokens for batch in batches] == [512, 488, 100]
    assert [batch.segments[0].end for batch in batches] == [2512, 3000, 3100]
    assert [batch.outputs for batch in batches] == [0, 0, 1]


def test_several_slots_share_micro_batches_and_each_has_its_own_history() -> None:
    """Three prompts of 100 in micro-batches of 256: the second is cut in none, the third in two."""
    first, second = cut_prompts(100, 0, 3, batch=2048, ubatch=256)
    assert [(each.tokens, each.end) for each in first.segments] == [(100, 100), (100, 100), (56, 56)]
    assert [(each.tokens, each.end) for each in second.segments] == [(44, 100)]
    assert (first.outputs, second.outputs) == (2, 1)


@given(st.integers(1, 3000), st.integers(0, 5000), st.integers(1, 9), st.integers(1, 2048), st.integers(1, 2048))
def test_no_token_is_lost_in_cutting(prompt: int, depth: int, slots: int, batch: int, ubatch: int) -> None:
    batches = cut_prompts(prompt, depth, slots, batch=batch, ubatch=ubatch)
    assert sum(each.tokens for each in batches) == prompt * slots
    assert sum(each.outputs for each in batches) == slots
    assert max(each.tokens for each in batches) <= min(batch, ubatch)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (models.make_spec(layers=(), n_layer=None), "how many layers"),
        (models.model(models.layer(n_head=None)), "how wide its attention is"),
        (models.model(models.layer(n_head_kv=None)), "how large its KV cache is"),
    ],
)
def test_a_model_that_says_too_little_is_refused(spec: models.ModelSpec, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        layout(spec)


def test_where_nobody_told_formats_block_by_block_each_block_has_its_part_of_the_file() -> None:
    """4 MiB in all, less embedding and output: 2 MiB for the two blocks together."""
    bare = models.model(models.layer(weight_bytes=0, matrices=()), models.layer(weight_bytes=0, matrices=()))
    assert layout(bare).dense == {("CPU", "Q8_0"): 2 * MIB}
