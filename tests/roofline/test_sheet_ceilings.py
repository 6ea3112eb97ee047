"""Ceilings made of a data sheet, and whether predictions with them agree with what people published."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.gguf_files import Q4_0, Q4_K, Q8_0, write_llama
from tuner.model import ModelSpec, read_model
from tuner.roofline.coefficients import (
    SPREADS,
    Coefficients,
    attend_seconds,
    load_coefficients,
    multiply_seconds,
    padded_tokens,
    read_seconds,
    spread_name,
)
from tuner.roofline.figures import Figures
from tuner.roofline.prediction import predict
from tuner.roofline.sheet import list_sheets, load_sheet
from tuner.roofline.sheet_ceilings import TOKENS, device_name, link_seconds, sheet_ceilings
from tuner.runconfig import RunConfig
from tuner.workload import Workload

LLAMA_2_7B = {"n_layer": 32, "n_head": 32, "n_embd": 4096, "n_ff": 11008, "n_vocab": 32000}
LLAMA_3_8B = {"n_layer": 32, "n_head": 32, "n_head_kv": 8, "n_embd": 4096, "n_ff": 14336, "n_vocab": 128256}

BENCH = Workload(name="llama-bench", prompt_tokens=512, output_tokens=128)

DECODE_FACTOR = 1.5
PREFILL_FACTOR = 2.0
"""How far a prediction from a data sheet may be from a published result: about the interval that it states."""


SPREAD = dict.fromkeys(SPREADS, 0.2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    folder = tmp_path_factory.mktemp("models")
    shapes = {"llama-2-7b": LLAMA_2_7B, "llama-3-8b": LLAMA_3_8B}
    kinds = {"Q4_0": Q4_0, "Q4_K": Q4_K, "Q8_0": Q8_0}
    return {
        f"{name} {label}": read_model(write_llama(folder / f"{name}-{label}.gguf", **shape, kind=kind))
        for name, shape in shapes.items()
        for label, kind in kinds.items()
    }


# published results of llama-bench: pp512 (None: not published), tg128
PUBLISHED = [
    ("rx-7900-xtx", "llama-2-7b Q4_0", 2507, 129),  # Vulkan, with flash attention
    ("strix-halo", "llama-2-7b Q4_0", 1338, 55.7),  # Vulkan (RADV)
    ("apple-m4", "llama-3-8b Q4_K", 225, 20.9),
    ("apple-m2-max-30", "llama-3-8b Q4_K", 428, 37.5),
    ("dgx-spark", "llama-3-8b Q4_K", 3168, 43.9),  # Qwen 3 8B, of the same size
    ("rtx-4090", "llama-3-8b Q4_0", 10359, None),
    ("ryzen-9-7950x", "llama-3-8b Q8_0", 148, None),
    ("graviton3-64", "llama-2-7b Q4_0", None, 31.6),
]


@pytest.mark.parametrize(("machine", "model", "prefill", "decode"), PUBLISHED, ids=str)
def test_predictions_agree_with_published_results(
    models: dict[str, ModelSpec], machine: str, model: str, prefill: float | None, decode: float | None
) -> None:
    """Within a factor of 1.5 for decode and 2 for prefill."""
    sheet = load_sheet(machine)
    config = RunConfig(flash_attn="on", ctx_size=1024)
    found = predict(models[model], config, BENCH, sheet_ceilings(sheet))
    if prefill is not None:
        rate = 512 / found.prefill.seconds
        assert prefill / PREFILL_FACTOR < rate < prefill * PREFILL_FACTOR
    if decode is not None:
        rate = 1e3 / found.tpot.value
        assert decode / DECODE_FACTOR < rate < decode * DECODE_FACTOR


def test_a_prediction_from_a_data_sheet_is_marked_as_assumed(models: dict[str, ModelSpec]) -> None:
    """Its interval is the error on devices that the fit never saw."""
    found = predict(models["llama-3-8b Q4_K"], RunConfig(ctx_size=1024), BENCH, sheet_ceilings(load_sheet("rtx-3090")))
    spread = load_coefficients().spread
    assert (found.source, found.tpot.basis) == ("data sheet", "assumed")
    assert found.tpot.high / found.tpot.value == pytest.approx(2.71828 ** (1.2816 * spread["decode gpu"]), rel=0.02)
    assert found.ttft.high / found.ttft.value == pytest.approx(2.71828 ** (1.2816 * spread["prefill gpu"]), rel=0.02)


@pytest.mark.parametrize("machine", list_sheets())
def test_every_shipped_machine_predicts_within_its_own_roofs(models: dict[str, ModelSpec], machine: str) -> None:
    """Decode no faster than the memory, prefill no faster than twice the stated rate (integer kernels may exceed it)."""
    sheet = load_sheet(machine)
    model = models["llama-3-8b Q4_K"]
    found = predict(model, RunConfig(ctx_size=1024), BENCH, sheet_ceilings(sheet))
    read = model.weights_bytes - model.token_embd_bytes
    assert found.tpot.value / 1e3 > read / (sheet.bandwidth_gbs.value * 1e9)
    assert found.ttft.value / 1e3 > 0.5 * 2 * 7e9 * 512 / (sheet.tflops * 1e12)


def test_more_bandwidth_decodes_faster_and_more_compute_prefills_faster(models: dict[str, ModelSpec]) -> None:
    """Each roof has its phase."""
    sheet, model = load_sheet("rtx-3090"), models["llama-3-8b Q4_K"]

    def times(bandwidth: float, rate: float) -> tuple[float, float]:
        assert sheet.fp16_tflops is not None
        assert sheet.int8_tops is not None
        changed = replace(
            sheet,
            bandwidth_gbs=replace(sheet.bandwidth_gbs, value=bandwidth),
            fp16_tflops=replace(sheet.fp16_tflops, value=rate),
            int8_tops=replace(sheet.int8_tops, value=4 * rate),
        )
        found = predict(model, RunConfig(ctx_size=1024), BENCH, sheet_ceilings(changed))
        return found.tpot.value, found.ttft.value

    usual, faster_memory, faster_compute = times(936, 71), times(1872, 71), times(936, 142)
    assert faster_memory[0] < 0.75 * usual[0]
    assert faster_compute[1] < 0.75 * usual[1]


def test_more_threads_make_a_cpu_prefill_faster(models: dict[str, ModelSpec]) -> None:
    """Its compute rate goes with the cores at work."""
    ceilings = sheet_ceilings(load_sheet("ryzen-9-7950x"))
    four, sixteen = (
        predict(models["llama-3-8b Q8_0"], RunConfig(ctx_size=1024, threads=n, threads_batch=n), BENCH, ceilings).ttft.value
        for n in (4, 16)
    )
    assert sixteen < 0.5 * four


def test_layers_that_stay_in_main_memory_need_a_host(models: dict[str, ModelSpec]) -> None:
    """With a CPU's sheet beside it, decode with half of the layers offloaded is slower than with all, faster than with none."""
    ceilings = sheet_ceilings(load_sheet("rtx-4070"), host=load_sheet("ryzen-9-7950x"))
    assert [device.device for device in ceilings.devices] == ["CPU", "CUDA0"]
    none, half, whole = (
        predict(models["llama-3-8b Q4_K"], RunConfig(ctx_size=1024, n_gpu_layers=n), BENCH, ceilings).tpot.value
        for n in (0, 16, 33)
    )
    assert none > half > whole


def test_ceilings_are_the_coefficients_formula() -> None:
    """At one token a byte costs the reading and two operations an element; tokens add operations only."""
    sheet, fitted = (
        load_sheet("rtx-4090"),
        Coefficients(provenance="", logarithms={"read gpu": 0.5, "multiply": 1.0}, spread=SPREAD),
    )
    formats = sheet_ceilings(sheet, fitted=fitted).formats
    found = {f.tokens: f.seconds_per_byte.value for f in formats if f.format == "F16" and not f.routed}
    operation = 2.71828 / 165.2e12
    assert found[1] == pytest.approx(1.64872 / 1008e9 + operation, rel=1e-3)
    assert found[512] - found[256] == pytest.approx(256 * operation, rel=1e-3)
    assert set(found) == set(TOKENS)


def test_cuda_multiplies_quantised_weights_at_the_rate_of_its_integer_units() -> None:
    """And float16 at that of the floating-point ones; other backends know no such difference."""
    fitted = Coefficients(provenance="", logarithms={}, spread=SPREAD)
    cuda, metal = load_sheet("rtx-4090"), load_sheet("apple-m4")
    assert multiply_seconds(cuda, "F16", fitted) / multiply_seconds(cuda, "Q4_K", fitted) == pytest.approx(660.6 / 165.2)
    assert multiply_seconds(metal, "F16", fitted) == multiply_seconds(metal, "Q4_K", fitted)


@pytest.mark.parametrize(("machine", "tokens", "rows"), [("rtx-4090", 32, 64), ("rtx-4090", 8, 8), ("epyc-9554", 32, 32)])
def test_an_expert_of_a_gpu_computes_half_a_tile_too_much(machine: str, tokens: int, rows: int) -> None:
    """From more than eight tokens on; a CPU has no tiles."""
    assert padded_tokens(load_sheet(machine), tokens) == rows


def test_chosen_experts_have_figures_of_their_own_on_a_gpu() -> None:
    """Dearer than other matrices with the same tokens, and alike for one token."""
    figures = Figures(sheet_ceilings(load_sheet("rtx-4090")))
    expert, usual = (figures.weight("CUDA0", "Q4_K", 0, 32, routed=routed).value for routed in (True, False))
    assert expert > 1.3 * usual
    on_cpu = Figures(sheet_ceilings(load_sheet("epyc-9554")))
    assert on_cpu.weight("CPU", "Q4_K", 64, 32, routed=True) == on_cpu.weight("CPU", "Q4_K", 64, 32)


def test_history_without_flash_attention_costs_more_where_heads_are_short() -> None:
    """A score stands for fewer operations there, and each goes through memory."""
    sheet, fitted = load_sheet("rtx-4090"), load_coefficients()
    short, long, flash = (
        attend_seconds(sheet, fitted, flash_attn=flash, head_size=head)
        for head, flash in ((64, False), (256, False), (64, True))
    )
    assert short > long > 0
    assert flash == attend_seconds(sheet, fitted, flash_attn=True, head_size=256)


def test_mapped_weights_cross_a_link_in_two_overlapping_copies() -> None:
    """So that a fast link helps less than its rate says, and a slow one loses no more than its packets' headers."""
    assert 1e-9 / link_seconds(31.5) == 1e-9 / link_seconds(63) == pytest.approx(9.6)
    assert 1e-9 / link_seconds(3.94) == pytest.approx(3.152)


@pytest.mark.parametrize(
    ("machine", "phase", "name"),
    [
        ("rtx-4090", "prefill", "prefill gpu"),
        ("apple-m4", "prefill", "prefill gpu"),
        ("strix-halo", "prefill", "prefill varied"),
        ("strix-halo", "decode", "decode gpu"),
        ("epyc-9554", "prefill", "prefill cpu"),
    ],
)
def test_doubt_is_told_apart_by_phase_and_kind(machine: str, phase: str, name: str) -> None:
    """Prefill by ROCm, Vulkan and SYCL hangs on build and driver."""
    assert spread_name(phase, load_sheet(machine)) == name


def test_the_shipped_coefficients_say_what_they_were_fitted_to() -> None:
    """And hold a spread for every phase and kind."""
    found = load_coefficients()
    assert "devices" in found.provenance
    assert set(found.spread) == set(SPREAD)
    assert all(0.05 < value < 1.5 for value in found.spread.values())
    assert all(abs(value) < 4 for value in found.logarithms.values())


def test_a_format_that_was_never_fitted_costs_what_its_family_does() -> None:
    """Nothing is refused for its format."""
    sheet, fitted = load_sheet("rtx-4090"), load_coefficients()
    assert read_seconds(sheet, "IQ1_M", fitted) == read_seconds(sheet, "IQ2_XS", fitted)
    assert device_name(load_sheet("epyc-9554")) == "CPU"


def test_figures_that_nothing_confirms_are_named_beside_a_prediction() -> None:
    """After what the sheet itself has to say."""
    doubts = sheet_ceilings(load_sheet("strix-halo-cpu")).doubts
    assert [text.partition(" ")[0] for text in doubts] == ["The", "No"]
    assert "fp32_tflops" in doubts[-1]
    assert sheet_ceilings(load_sheet("rtx-4090")).doubts == ()
