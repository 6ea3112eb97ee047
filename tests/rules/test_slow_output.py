"""The rules about slow writing, each on cases made for it."""

from __future__ import annotations

import msgspec
import pytest

from tests.builders.measurements import measured
from tests.rules.builders import GIB, make_case, make_gpu, make_host, make_model
from tests.rules.builders import check_rule as check
from tests.rules.golden import Golden, check_golden_case
from tests.rules.pretended import Pretended
from tuner.hardware.record import DeviceFacts
from tuner.rules.base import Situation
from tuner.rules.slow_output.partial_offload import find_break_even
from tuner.workload import PRESETS, Workload

EIGHT = make_model(parameters=8_000_000_000, n_layer=32, heads=32, kv_heads=8, head=128)
EXPERTS = make_model(parameters=12_000_000_000, n_layer=32, experts=8)
Q8 = make_model(quant="Q8_0", bits=8.5)
F16 = make_model(quant="F16", bits=16.0)
DEEP = Workload(name="deep", prompt_tokens=256, output_tokens=256, depth_tokens=16_000)
GPU = make_host(devices=(make_gpu(),))
SMALL_GPU = make_host(devices=(make_gpu(free_bytes=4 * GIB),))
FAR = make_host(devices=(DeviceFacts(name="RPC0", backend="RPC", free_bytes=24 * GIB, total_bytes=24 * GIB),))
SLOW_LINK = Pretended(link_s=0.05, device_bandwidth=200e9)
CLUMSY_FLASH = Pretended(op_s=2e-10, flash_decode_cost=2.5)
QUOTA = make_host(cores=8, logical=8, usable=4, limits={"cpu_quota": 4.0, "usable_physical": 4})
TWO_FORMATS = (make_model(), make_model(quant="Q2_K", bits=2.6))


def _measured(factor: float) -> Situation:
    """Measured tokens this many times slower than predicted."""
    case = make_case()
    prediction = case.predict(case.model, case.config, case.workload)
    assert prediction is not None
    figures = measured(
        ttft_ms=prediction.ttft.value, tpot_ms=prediction.tpot.value * factor, config=case.config, workload=case.workload
    )
    return msgspec.structs.replace(case, measurement=figures)


SPEAKS = {
    "DEC01 when slow output is felt": Golden(
        code="DEC01",
        situation=make_case(symptom="slow-output"),
        severity="hint",
        says=("more threads hardly",),
        evidence={"fetched for each token": 562_500_000, "share of the memory speed reached": 0.8},
    ),
    "DEC01 slower than people read": Golden(
        code="DEC01", situation=make_case(model=EIGHT, speed=Pretended(bandwidth=20e9)), severity="hint"
    ),
    "DEC02 twice as slow as it can be": Golden(
        code="DEC02",
        situation=_measured(2.0),
        severity="slows",
        says=("2.00× as long", "rooftune calibrate"),
        evidence={"time per further token": 28.68, "time per further token expected": 14.34},
    ),
    "DEC03 a smaller file beside it": Golden(
        code="DEC03",
        situation=make_case(model=Q8, siblings=TWO_FORMATS),
        severity="hint",
        change={"model": "/models/one-q4_k.gguf"},
        says=("Precision: 4.5 bits per weight in place of 8.5",),
        gain=("tpot", 1.87),
    ),
    "DEC03 none at hand, and slow": Golden(
        code="DEC03", situation=make_case(model=F16, symptom="slow-output"), severity="slows", says=("Q4_K_M",),
        gain=("tpot", 3.5),
    ),
    "DEC04 logical CPUs twice the cores (case 51)": Golden(
        code="DEC04",
        situation=make_case(config={"threads": 16, "threads_batch": 16}),
        severity="slows",
        change={"threads": 8},
        says=("physical cores",),
        gain=("tpot", 2.0),
    ),
    "DEC04 more than a container's quota (case 48)": Golden(
        code="DEC04",
        situation=make_case(machine=QUOTA, config={"threads": 8, "threads_batch": 8}),
        severity="slows",
        change={"threads": 4, "threads_batch": 4},
        says=("processor time",),
        evidence={"processor time granted": 4.0, "threads that may run at once": 4},
    ),
    "DEC05 half of the cores": Golden(
        code="DEC05", situation=make_case(config={"threads": 2, "threads_batch": 8}), severity="slows", change={"threads": 8},
        says=("Too few",), gain=("tpot", 2.0),
    ),
    "DEC05 one thread, never calibrated": Golden(
        code="DEC05", situation=make_case(config={"threads": 1, "threads_batch": 8}, speed=None), severity="slows",
        change={"threads": 8}, gain=("tpot", 8**0.5),
    ),
    "DEC06 a few layers behind a slow link": Golden(
        code="DEC06",
        situation=make_case(machine=FAR, model=EIGHT, config={"n_gpu_layers": 3}, speed=Pretended(link_s=0.2)),
        severity="slows",
        change={"n_gpu_layers": 0},
        says=("slower than none",),
    ),
    "DEC06 all layers would pay": Golden(
        code="DEC06",
        situation=make_case(machine=FAR, model=EIGHT, config={"n_gpu_layers": 8}, speed=SLOW_LINK),
        severity="slows",
        change={"n_gpu_layers": 33},
        says=("all of them",),
        evidence={"layers on the device": 8, "layers from which the device pays": 19},
    ),
    "DEC06 half on a local card, never calibrated": Golden(
        code="DEC06", situation=make_case(machine=GPU, model=EIGHT, config={"n_gpu_layers": 8}, speed=None), severity="slows",
        change={"n_gpu_layers": 33},
    ),
    "DEC06 a part on a remote device, never calibrated: a trial": Golden(
        code="DEC06", situation=make_case(machine=FAR, model=EIGHT, config={"n_gpu_layers": 8}, speed=None), severity="hint",
        change={"n_gpu_layers": 0}, says=("only a trial tells",), evidence={"layers on the device": 8},
    ),
    "DEC07 experts stay outside (case 93)": Golden(
        code="DEC07",
        situation=make_case(machine=SMALL_GPU, model=EXPERTS, config={"n_gpu_layers": 16}, speed=None),
        severity="slows",
        change={"n_gpu_layers": 33, "n_cpu_moe": 14},
        says=("compare it with plain n_gpu_layers",),
        evidence={"experts": 8, "experts a token uses": 2},
    ),
    "DEC08 larger than memory, with a file that fits": Golden(
        code="DEC08",
        situation=make_case(machine=make_host(available_bytes=GIB), model=F16, siblings=(make_model(),)),
        severity="stops",
        change={"model": "/models/one-q4_k.gguf"},
        says=("which fits",),
    ),
    "DEC08 larger than memory, alone": Golden(
        code="DEC08", situation=make_case(machine=make_host(available_bytes=GIB), model=F16), severity="stops",
        says=("free memory",),
    ),
    "DEC09 a history that takes half of each token": Golden(
        code="DEC09", situation=make_case(workload=DEEP, speed=Pretended(op_s=2e-10)), severity="hint",
        says=("new chat",), evidence={"history": 16_000},
    ),
    "DEC10 flash attention hurts decode here": Golden(
        code="DEC10", situation=make_case(workload=DEEP, speed=CLUMSY_FLASH), severity="slows", change={"flash_attn": "off"},
        says=("With flash attention off", "more memory"),
    ),
    "DEC10 flash attention was switched off": Golden(
        code="DEC10",
        situation=make_case(
            workload=Workload(name="long", prompt_tokens=8192, output_tokens=32),
            config={"flash_attn": "off"},
            speed=Pretended(op_s=1e-10, plain_prefill_cost=2.0),
        ),
        severity="slows",
        change={"flash_attn": "on"},
    ),
    "DEC11 idle arithmetic for one user": Golden(
        code="DEC11", situation=make_case(symptom="slow-output"), severity="hint",
        says=("three kinds", "--spec-type ngram-mod"), evidence={"speed of 4 tokens together against one": 3.938},
    ),
    "DEC12 slower than reading": Golden(
        code="DEC12", situation=make_case(model=EIGHT, speed=Pretended(bandwidth=10e9)), severity="hint",
        says=("2.66B parameters",), evidence={"a quick reader's time per token": 150.0},
    ),
    "DEC12 fast enough to read along, and complained of": Golden(
        code="DEC12", situation=make_case(symptom="slow-output"), severity="hint",
        says=("must be faster still", "500M parameters"), evidence={"half of that": 7.17, "parameters that this allows": 5e8},
    ),
}  # fmt: skip

SILENT = {
    "DEC01 fast enough": ("DEC01", make_case()),
    "DEC02 as predicted": ("DEC02", _measured(1.2)),
    "DEC02 not measured": ("DEC02", make_case()),
    "DEC03 only a two-bit file beside it": ("DEC03", make_case(model=make_model(), siblings=TWO_FORMATS[1:])),
    "DEC03 a smaller file that this processor unpacks slowly": (
        "DEC03",
        make_case(model=Q8, siblings=TWO_FORMATS[:1], speed=Pretended(format_cost={"Q4_K": 2.0})),
    ),
    "DEC03 small already": ("DEC03", make_case(symptom="slow-output")),
    "DEC04 one thread a core": ("DEC04", make_case()),
    "DEC04 a thread a hardware thread for prompts": ("DEC04", make_case(config={"threads_batch": 16})),
    "DEC05 memory saturated by half of the cores": ("DEC05", make_case(config={"threads": 4, "threads_batch": 8})),
    "DEC05 several users": ("DEC05", make_case(workload=PRESETS["batch"], config={"threads": 1, "threads_batch": 8})),
    "DEC06 no device": ("DEC06", make_case(model=EIGHT)),
    "DEC06 all on a fast device": ("DEC06", make_case(machine=GPU, model=EIGHT)),
    "DEC06 all on a remote device, never calibrated": ("DEC06", make_case(machine=FAR, model=EIGHT, speed=None)),
    "DEC07 a dense model": ("DEC07", make_case(machine=SMALL_GPU, model=EIGHT, config={"n_gpu_layers": 16})),
    "DEC07 all fits": ("DEC07", make_case(machine=GPU, model=EXPERTS)),
    "DEC08 fits": ("DEC08", make_case(model=F16)),
    "DEC08 loaded whole, which fails by itself": (
        "DEC08",
        make_case(machine=make_host(available_bytes=GIB), model=F16, config={"load_mode": "none"}),
    ),
    "DEC09 a short history": ("DEC09", make_case(workload=PRESETS["chat"])),
    "DEC09 a new prompt is no history": ("DEC09", make_case(workload=PRESETS["code"], speed=Pretended(op_s=2e-10))),
    "DEC10 no difference": ("DEC10", make_case(workload=DEEP)),
    "DEC10 an architecture without it (case 43)": (
        "DEC10",
        make_case(workload=DEEP, speed=CLUMSY_FLASH, model=make_model(flash_attn_forced_off=True)),
    ),
    "DEC10 a quantised V cache needs it (case 39)": (
        "DEC10",
        make_case(workload=DEEP, speed=CLUMSY_FLASH, config={"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
    ),
    "DEC11 several users (case 90)": ("DEC11", make_case(workload=PRESETS["batch"], symptom="slow-output")),
    "DEC11 fast enough": ("DEC11", make_case()),
    "DEC12 reading speed": ("DEC12", make_case()),
    "DEC11 a draft model guesses already": ("DEC11", make_case(symptom="slow-output", draft=make_model())),
}


@pytest.mark.parametrize("name", SPEAKS)
def test_it_says(name: str) -> None:
    check_golden_case(SPEAKS[name])


@pytest.mark.parametrize("name", SILENT)
def test_it_stays_silent(name: str) -> None:
    code, situation = SILENT[name]
    assert check(code, situation) == ()


def test_break_even_is_where_layers_begin_to_pay() -> None:
    """One layer less is slower than none, that many are not."""
    case = make_case(machine=FAR, model=EIGHT, config={"n_gpu_layers": 8}, speed=SLOW_LINK)
    pays_from = find_break_even(case, 33)
    assert pays_from is not None
    times = {}
    for layers in (0, pays_from - 1, pays_from):
        prediction = case.predict(case.model, case.config.replace(n_gpu_layers=layers), case.workload)
        assert prediction is not None
        times[layers] = prediction.tpot.value
    assert times[pays_from] <= times[0] < times[pays_from - 1]


def test_without_a_break_even_none_is_told() -> None:
    case = make_case(machine=FAR, model=EIGHT, config={"n_gpu_layers": 8}, speed=Pretended(link_s=2.0))
    assert find_break_even(case, 33) is None


def test_flash_attention_off_costs_at_least_the_scores() -> None:
    """Context × micro-batch × heads × 4 bytes (case 30)."""
    case = make_case(workload=DEEP, speed=CLUMSY_FLASH, config={"ctx_size": 32768})
    (finding,) = check("DEC10", case)
    assert f"{32768 * 512 * 16 * 4 / 2**30:g} GiB" in finding.costs
