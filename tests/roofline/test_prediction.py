"""TTFT, TPOT and what binds them, on a machine of round numbers: cases worked out by hand, and what must hold for every model."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.ceilings import BYTE_S, LAYER_S, OP_S, STEP_S, TOKEN_BYTE_S, make_ceilings
from tests.roofline import models
from tests.roofline.models import ARCHITECTURES, MIB
from tuner.errors import BadInputError
from tuner.roofline.prediction import DECODE_ERROR, PREFILL_ERROR, Z80, predict
from tuner.runconfig import RunConfig
from tuner.workload import Workload

ONE = RunConfig(ctx_size=8192, threads=1, threads_batch=1)
TURN = Workload(name="turn", prompt_tokens=512, output_tokens=2)
LAYER_OPS = 2 * 8 * 128
"""Operations of one query token for one position in one plain layer."""

config_strategy = st.builds(
    RunConfig,
    ctx_size=st.just(8192),
    threads=st.integers(1, 6),
    threads_batch=st.integers(1, 6),
    ubatch_size=st.sampled_from([16, 100, 512]),
    parallel=st.integers(1, 4),
    flash_attn=st.sampled_from(["auto", "on", "off"]),
)


def test_a_step_costs_weights_history_layers_and_the_step_itself() -> None:
    """3 MiB of weights, 768 positions in two layers, two layers, one step, one thread."""
    found = predict(models.model(), ONE, TURN, make_ceilings())
    seconds = 3 * MIB * BYTE_S + 768 * 2 * LAYER_OPS * OP_S + 2 * LAYER_S + STEP_S
    assert found.tpot.value == pytest.approx(seconds * 1e3)
    assert found.decode.seconds == pytest.approx(seconds)
    assert found.decode.attention_share == pytest.approx(768 * 2 * LAYER_OPS * OP_S / seconds)


def test_a_prompt_costs_its_micro_batch_and_reads_the_output_matrix_for_its_last_token() -> None:
    """512 tokens at once: each byte of the two layers costs 1e-10 + 511 × 2e-11 s, one of the output matrix 1e-10 s.

    The processor's flash attention looks at what each token may see, in tiles of 64: 64 × (64 + 128 + … + 512) positions.
    """
    found = predict(models.model(), ONE, TURN, make_ceilings())
    weights = 2 * MIB * (BYTE_S + 511 * TOKEN_BYTE_S) + MIB * BYTE_S
    seconds = weights + 64 * 64 * (8 * 9 / 2) * 2 * LAYER_OPS * OP_S + 2 * LAYER_S + STEP_S
    assert found.ttft.value == pytest.approx(seconds * 1e3)


def test_latency_and_throughput_follow_from_the_two() -> None:
    """TTFT + (n_out − 1) × TPOT; all slots' tokens a second, with and without prefill."""
    workload = msgspec.structs.replace(TURN, output_tokens=101)
    found = predict(models.model(), ONE.replace(parallel=2), workload, make_ceilings())
    assert found.latency.value == pytest.approx(found.ttft.value + 100 * found.tpot.value)
    assert found.throughput.value == pytest.approx(2e3 / found.tpot.value)
    assert found.throughput_total.value == pytest.approx(2 * 101 * 1e3 / found.latency.value)


def test_tpot_is_the_mean_over_the_growing_history() -> None:
    """512 tokens of prompt and 513 of answer: 256 steps at 768 positions, 256 at 1024."""
    found = predict(models.model(), ONE, msgspec.structs.replace(TURN, output_tokens=513), make_ceilings())
    bare = 3 * MIB * BYTE_S + 2 * LAYER_S + STEP_S
    assert found.tpot.value == pytest.approx((bare + 896 * 2 * LAYER_OPS * OP_S) * 1e3)


def test_several_slots_look_at_what_they_hold_and_not_at_padded_cells() -> None:
    """Histories of 64 to 79: on average 72 positions and itself for each of 2 slots, of 256 cells."""
    workload = Workload(name="short", prompt_tokens=64, output_tokens=17)
    ceilings = make_ceilings()
    found, slots = predict(models.model(), ONE.replace(parallel=2), workload, ceilings), 2
    bare = 3 * MIB * (BYTE_S + (slots - 1) * TOKEN_BYTE_S) + 2 * LAYER_S + STEP_S
    assert found.tpot.value == pytest.approx((bare + slots * 73 * 2 * LAYER_OPS * OP_S) * 1e3)


def test_one_slot_decodes_with_threads_and_several_with_threads_batch() -> None:
    config = ONE.replace(threads=1, threads_batch=4)
    one = predict(models.model(), config, TURN, make_ceilings())
    two = predict(models.model(), config.replace(parallel=2), TURN, make_ceilings())
    assert one.decode.seconds > two.decode.seconds


def test_all_slots_prompts_are_read() -> None:
    """Four prompts take four times the micro-batches."""
    one = predict(models.model(), ONE, TURN, make_ceilings())
    four = predict(models.model(), ONE.replace(parallel=4), TURN, make_ceilings())
    assert four.prefill.operations == pytest.approx(4 * one.prefill.operations)


def test_a_prompt_is_bound_by_computing_and_a_step_by_reading() -> None:
    """Ridge 1e11 / 1e10 = 10 operations a byte: below it memory binds, above it computing."""
    found = predict(models.model(), ONE, TURN, make_ceilings())
    assert found.prefill.bound == "compute"
    assert found.prefill.ridge == found.decode.ridge == 10
    assert found.prefill.intensity > 10 > found.decode.intensity
    assert found.decode.shares["memory bandwidth"] > found.decode.shares["compute"]


def test_a_tiny_model_is_bound_by_what_each_step_costs_anyway() -> None:
    tiny = models.model(models.layer(matrices=(("Q8_0", 1000),)), output_bytes=1000)
    assert predict(tiny, ONE, TURN, make_ceilings(op_s=0.0)).decode.bound == "fixed overhead"


def test_a_slow_link_binds_where_the_device_is_fast() -> None:
    """A hidden state of 256 × 4 bytes to the device and 1000 logits back, at 1 GB/s and 10 µs a crossing."""
    ceilings = make_ceilings(devices=("CPU", "CUDA0"))
    slow = msgspec.structs.replace(ceilings.links[0], latency_s=msgspec.structs.replace(ceilings.links[0].latency_s, value=1.0))
    found = predict(models.model(), ONE, TURN, msgspec.structs.replace(ceilings, links=(slow,)))
    assert found.decode.bound == "link"
    assert found.decode.seconds > 2.0


def test_half_the_layers_on_each_side_cost_both_sides_and_the_link() -> None:
    """n_gpu_layers 2: one layer on the CPU, one and the output on a device ten times as fast."""
    found = predict(models.model(), ONE.replace(n_gpu_layers=2), TURN, make_ceilings(devices=("CPU", "CUDA0")))
    attention = 768 * LAYER_OPS * OP_S
    cpu = MIB * BYTE_S + attention + LAYER_S + STEP_S
    gpu = 2 * MIB * BYTE_S / 10 + attention / 10 + LAYER_S + STEP_S
    link = 2 * 1e-5 + (256 * 4 + 1000 * 4) / 1e9
    assert found.decode.seconds == pytest.approx(cpu + gpu + link)


def test_without_errors_of_figures_the_interval_is_the_model_s_own() -> None:
    """Log-normal: 80 % of cases between value / e^(1.28 s) and value × e^(1.28 s)."""
    found = predict(models.model(), ONE, TURN, make_ceilings())
    assert found.tpot.high / found.tpot.value == pytest.approx(math.exp(Z80 * DECODE_ERROR))
    assert found.ttft.value / found.ttft.low == pytest.approx(math.exp(Z80 * PREFILL_ERROR))


def test_a_data_sheet_s_figures_err_together_and_are_called_assumed() -> None:
    """All spreads 0.2: the whole errs by 0.2, and nothing is added."""
    found = predict(models.model(), ONE, TURN, make_ceilings(source="data sheet", spread=0.2))
    assert found.ttft.basis == "assumed"
    assert found.tpot.high / found.tpot.value == pytest.approx(math.exp(Z80 * 0.2))


def test_calibrated_figures_err_each_by_itself() -> None:
    found = predict(models.model(), ONE, TURN, make_ceilings(spread=0.2))
    assert found.tpot.basis == "predicted"
    assert DECODE_ERROR < math.log(found.tpot.high / found.tpot.value) / Z80 < math.hypot(DECODE_ERROR, 0.2)


def test_what_stands_in_for_a_missing_figure_is_noted_and_widens_the_interval() -> None:
    known = predict(models.model(), ONE, TURN, make_ceilings())
    guessed = predict(models.model(), ONE, TURN, make_ceilings(formats=("Q4_0",)))
    assert guessed.notes == ("Q8_0 was not calibrated: Q4_0 stands in for it.",)
    assert guessed.tpot.high / guessed.tpot.low > known.tpot.high / known.tpot.low


def test_doubts_about_the_whole_calibration_are_repeated() -> None:
    assert predict(models.model(), ONE, TURN, make_ceilings(doubts=("It was busy.",))).notes == ("It was busy.",)


def test_a_recurrent_layer_s_own_work_is_said_to_be_a_guess() -> None:
    heavy = models.model(models.layer(), models.layer(kind="recurrent", n_head_kv=0, recurrent_s=10**6))
    assert "recurrent layers' own work is not calibrated" in " ".join(predict(heavy, ONE, TURN, make_ceilings()).notes)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(BadInputError, match="decodes nothing"):
        predict(models.model(is_encoder_only=True), ONE, TURN, make_ceilings())


def test_flash_attention_auto_is_on_and_forced_off_is_off() -> None:
    """A model for which llama.cpp switches it off takes the figures without it."""
    ceilings = make_ceilings(caches=(("f16", "f16", True),))
    assert predict(models.model(), ONE, TURN, ceilings).notes == ()
    forced = predict(models.model(flash_attn_forced_off=True), ONE, TURN, ceilings)
    assert "without flash attention was not calibrated" in forced.notes[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_has_a_whole_prediction(name: str) -> None:
    """Shares add up, intervals hold the value, operations and bytes are counted."""
    found = predict(ARCHITECTURES[name], ONE, TURN, make_ceilings(spread=0.05))
    for each in (found.ttft, found.tpot, found.latency, found.throughput, found.throughput_total):
        assert 0 < each.low < each.value < each.high < math.inf
    for phase in (found.prefill, found.decode):
        assert sum(phase.shares.values()) == pytest.approx(1)
        assert phase.bound == max(phase.shares, key=lambda each: phase.shares[each])
        assert 0 < phase.reached <= 1
        assert phase.intensity == pytest.approx(phase.operations / phase.bytes_read)


@settings(deadline=None)
@given(st.sampled_from(sorted(ARCHITECTURES)), config_strategy, st.integers(0, 3000), st.integers(0, 3000))
def test_more_history_is_never_faster(name: str, config: RunConfig, a: int, b: int) -> None:
    less, more = (msgspec.structs.replace(TURN, depth_tokens=each) for each in sorted((a, b)))
    short, long = (predict(ARCHITECTURES[name], config, each, make_ceilings()) for each in (less, more))
    assert short.tpot.value <= long.tpot.value * (1 + 1e-9)
    assert short.ttft.value <= long.ttft.value * (1 + 1e-9)


@settings(deadline=None)
@given(st.sampled_from(sorted(ARCHITECTURES)), config_strategy, st.floats(1e-12, 1e-9), st.floats(1e-12, 1e-9))
def test_more_bandwidth_is_never_slower(name: str, config: RunConfig, a: float, b: float) -> None:
    fast, slow = (
        predict(ARCHITECTURES[name], config, TURN, make_ceilings(byte_s=each, token_byte_s=each / 5)) for each in sorted((a, b))
    )
    assert fast.tpot.value <= slow.tpot.value * (1 + 1e-9)
    assert fast.ttft.value <= slow.ttft.value * (1 + 1e-9)


@settings(deadline=None)
@given(st.sampled_from(sorted(ARCHITECTURES)), st.integers(1, 2000), st.integers(1, 2000))
def test_a_longer_prompt_never_comes_sooner(name: str, a: int, b: int) -> None:
    short, long = (
        predict(ARCHITECTURES[name], ONE, msgspec.structs.replace(TURN, prompt_tokens=each), make_ceilings())
        for each in sorted((a, b))
    )
    assert short.ttft.value <= long.ttft.value * (1 + 1e-9)


@settings(deadline=None)
@given(st.sampled_from(sorted(ARCHITECTURES)), st.integers(1, 31))
def test_one_more_slot_never_makes_a_user_s_token_faster(name: str, slots: int) -> None:
    few, many = (
        predict(ARCHITECTURES[name], ONE.replace(parallel=each, ctx_size=8192 * each), TURN, make_ceilings())
        for each in (slots, slots + 1)
    )
    assert few.tpot.value <= many.tpot.value * (1 + 1e-9)
