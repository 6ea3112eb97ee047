"""The rules about a late first token, each on cases made for it."""

from __future__ import annotations

import pytest

from tests.builders.measurements import measured
from tests.rules.builders import SIMD, make_case, make_gpu, make_host, make_model
from tests.rules.builders import check_rule as check
from tests.rules.golden import Golden, check_golden_case
from tests.rules.pretended import Pretended
from tuner.hardware.record import GpuFacts
from tuner.rules.base import Situation
from tuner.rules.slow_start.prompt_promise import find_longest_prompt
from tuner.workload import Workload

RAG = Workload(name="rag", prompt_tokens=4096, output_tokens=256)
CARD = GpuFacts(index=0, name="RTX 4090", uuid="GPU-1", cuda_ordinal=0)
Q41 = make_model(quant="Q4_1", bits=5.0)
SLOW_Q41 = Pretended(format_cost={"Q4_1": 2.4})
SMALL_CACHE = Pretended(most_ubatch=256)
MIXED = {"cache_type_k": "q8_0", "cache_type_v": "f16"}
GPU = make_host(devices=(make_gpu(),))


def _mixed(ttft_factor: float | None) -> Situation:
    """A mixed pair of cache types on a CUDA card, with a first token this many times later than predicted."""
    case = make_case(machine=GPU, config=MIXED)
    if ttft_factor is None:
        return case
    prediction = case.predict(case.model, case.config, case.workload)
    assert prediction is not None
    figures = measured(ttft_ms=prediction.ttft.value * ttft_factor, config=case.config, workload=case.workload)
    return make_case(machine=GPU, config=MIXED, measurement=figures)


SPEAKS = {
    "PRE01 when a slow start is felt": Golden(
        code="PRE01",
        situation=make_case(symptom="slow-start"),
        severity="hint",
        says=("arithmetic", "smaller file helps the answer"),
        evidence={"prompt": 512, "from how many on arithmetic is the limit": 12.0},
    ),
    "PRE02 small pieces": Golden(
        code="PRE02",
        situation=make_case(workload=RAG, config={"ubatch_size": 16}),
        severity="slows",
        change={"ubatch_size": 1024},
        says=("too small",),
        evidence={"micro-batch": 16},
        gain=("ttft", 1.94),
    ),
    "PRE02 pieces that fall out of the cache": Golden(
        code="PRE02",
        situation=make_case(workload=RAG, speed=SMALL_CACHE),
        severity="slows",
        change={"ubatch_size": 256},
        says=("too large",),
        gain=("ttft", 1.85),
    ),
    "PRE03 one thread of eight, calibrated": Golden(
        code="PRE03",
        situation=make_case(config={"threads": 8, "threads_batch": 1}),
        severity="slows",
        change={"threads_batch": 8},
        says=("Too few",),
        gain=("ttft", 8.0),
    ),
    "PRE03 one thread of eight, never calibrated": Golden(
        code="PRE03",
        situation=make_case(config={"threads": 8, "threads_batch": 1}, speed=None),
        severity="slows",
        change={"threads_batch": 8},
        gain=("ttft", 1 + 7 * 2 / 3),
    ),
    "PRE03 two threads a core": Golden(
        code="PRE03",
        situation=make_case(config={"threads": 8, "threads_batch": 16}),
        severity="slows",
        change={"threads_batch": 8},
        says=("Too many",),
    ),
    "PRE04 a sibling of a fast format": Golden(
        code="PRE04",
        situation=make_case(model=Q41, siblings=(make_model(),), speed=SLOW_Q41),
        severity="slows",
        change={"model": "/models/one-q4_k.gguf"},
        says=("Q4_1", "answers differ a little"),
        evidence={"share of the weights in Q4_1": 1.0},
        gain=("ttft", 2.4),
    ),
    "PRE04 a format to get, calibrated": Golden(
        code="PRE04", situation=make_case(model=Q41, speed=SLOW_Q41), severity="slows", says=("Q4_K_M",), gain=("ttft", 2.4)
    ),
    "PRE04 a format to get, from figures that may as well be wrong": Golden(
        code="PRE04", situation=make_case(model=Q41, speed=Pretended(format_cost={"Q4_1": 2.4}, error=0.9)), severity="hint",
        says=("Q4_K_M",),
    ),
    "PRE04 a format to get, never calibrated": Golden(
        code="PRE04", situation=make_case(model=Q41, speed=None), severity="slows", says=("Q4_K_M", "llama-quantize")
    ),
    "PRE04 rows that K formats do not take": Golden(
        code="PRE04", situation=make_case(model=make_model(quant="Q4_1", bits=5.0, n_embd=576), speed=None), severity="slows",
        says=("Q4_0",),
    ),
    "PRE04 Q5_K on x86": Golden(
        code="PRE04", situation=make_case(model=make_model(quant="Q5_K", bits=5.5), speed=None), severity="slows", says=("Q5_K",)
    ),
    "PRE05 AVX512 left unused": Golden(
        code="PRE05",
        situation=make_case(machine=make_host(build={"missing_simd": ("AVX512_VNNI",)})),
        severity="slows",
        says=("pip install",),
        evidence={"vector units left unused": "AVX512_VNNI"},
    ),
    "PRE05 AMX alone, which some compilers cannot build": Golden(
        code="PRE05", situation=make_case(machine=make_host(build={"missing_simd": ("AMX_INT8",)})), severity="hint"
    ),
    "PRE06 a card and a build for processors (case 47)": Golden(
        code="PRE06",
        situation=make_case(machine=make_host(gpus=(CARD,), build={"supports_gpu_offload": False})),
        severity="slows",
        says=("This llama.cpp build cannot use the GPU", "-DGGML_CUDA=on"),
        evidence={"GPU by the driver": "RTX 4090"},
    ),
    "PRE06 layers left on the processor": Golden(
        code="PRE06",
        situation=make_case(machine=GPU, config={"n_gpu_layers": 0}),
        severity="slows",
        change={"n_gpu_layers": 17},
        says=("all layers and the output",),
    ),
    "PRE07 a long prompt from nothing": Golden(
        code="PRE07",
        situation=make_case(workload=RAG),
        severity="hint",
        says=("what changes at its end",),
        evidence={"prompt": 4096, "of it the same as last time": 3072},
        gain=("ttft", 4.0),
    ),
    "PRE08 a promise that is missed": Golden(
        code="PRE08",
        situation=make_case(promise_ttft_ms=1000.0),
        severity="slows",
        says=("Send at most", "1000 ms"),
        evidence={"promised": 1000.0, "prompt": 512},
    ),
    "PRE08 a promise that nothing keeps": Golden(
        code="PRE08", situation=make_case(promise_ttft_ms=0.001), severity="slows", says=("No prompt is short enough",)
    ),
    "PRE09 a mixed pair, unmeasured (case 41)": Golden(
        code="PRE09",
        situation=_mixed(None),
        severity="hint",
        change={"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        says=("may run on the processor",),
    ),
    "PRE09 a mixed pair, measured at a fifth (case 41)": Golden(
        code="PRE09",
        situation=_mixed(6.0),
        severity="slows",
        change={"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        says=("runs on the processor", "6.00×"),
    ),
}  # fmt: skip

SILENT = {
    "PRE01 nobody waits": ("PRE01", make_case()),
    "PRE01 another symptom": ("PRE01", make_case(symptom="slow-output")),
    "PRE02 the default is best (case 69)": ("PRE02", make_case(workload=RAG)),
    "PRE02 a prompt shorter than the pieces": (
        "PRE02",
        make_case(workload=Workload(name="q", prompt_tokens=60, output_tokens=9)),
    ),
    "PRE02 the better size does not fit": (
        "PRE02",
        make_case(
            workload=RAG, config={"ubatch_size": 16}, find_misfit=lambda config: "full" if config.ubatch_size > 16 else None
        ),
    ),
    "PRE03 all cores": ("PRE03", make_case()),
    "PRE03 never calibrated, all cores": ("PRE03", make_case(speed=None)),
    "PRE04 a fast format": ("PRE04", make_case(speed=None)),
    "PRE04 calibrated, and not slower": ("PRE04", make_case(model=Q41)),
    "PRE04 Q8_0, for which the list knows no better": (
        "PRE04",
        make_case(model=make_model(quant="Q8_0", bits=8.5), speed=None),
    ),
    "PRE04 all on a device": ("PRE04", make_case(model=Q41, machine=GPU, speed=SLOW_Q41)),
    "PRE04 Q6_K on ARM, where it is laid out anew": (
        "PRE04",
        make_case(model=make_model(quant="Q6_K", bits=6.6), machine=make_host(build={"simd": ("NEON", "DOTPROD")}), speed=None),
    ),
    "PRE05 built for this processor": ("PRE05", make_case(machine=make_host(build={"simd": SIMD}))),
    "PRE06 no card": ("PRE06", make_case()),
    "PRE06 a card hidden on purpose": (
        "PRE06",
        make_case(machine=make_host(gpus=(GpuFacts(index=0, name="A100", cuda_ordinal=None),))),
    ),
    "PRE06 in use": ("PRE06", make_case(machine=GPU)),
    "PRE06 too small for the model": (
        "PRE06",
        make_case(machine=make_host(devices=(make_gpu(free_bytes=2**28),)), config={"n_gpu_layers": 0}),
    ),
    "PRE07 the history is cached": (
        "PRE07",
        make_case(workload=Workload(name="c", prompt_tokens=4096, output_tokens=9, depth_tokens=4096), symptom="slow-start"),
    ),
    "PRE07 quick all the same": ("PRE07", make_case(workload=RAG, speed=Pretended(core_flops=2e12))),
    "PRE08 kept": ("PRE08", make_case(promise_ttft_ms=5000.0)),
    "PRE08 nothing was promised": ("PRE08", make_case(workload=RAG)),
    "PRE09 measured at normal speed": ("PRE09", _mixed(1.1)),
    "PRE09 one common type": ("PRE09", make_case(machine=GPU, config={"cache_type_k": "q8_0", "cache_type_v": "q8_0"})),
    "PRE09 no card": ("PRE09", make_case(config=MIXED)),
}


@pytest.mark.parametrize("name", SPEAKS)
def test_it_says(name: str) -> None:
    check_golden_case(SPEAKS[name])


@pytest.mark.parametrize("name", SILENT)
def test_it_stays_silent(name: str) -> None:
    code, situation = SILENT[name]
    assert check(code, situation) == ()


def test_the_longest_prompt_keeps_the_promise_and_one_token_more_does_not() -> None:
    case = make_case(promise_ttft_ms=1000.0)
    longest = find_longest_prompt(case, 1000.0)
    assert longest is not None
    assert 0 < longest < case.workload.prompt_tokens
    times = []
    for tokens in (longest, longest + 1):
        prediction = case.predict(case.model, case.config, Workload(name="x", prompt_tokens=tokens, output_tokens=2))
        assert prediction is not None
        times.append(prediction.ttft.value)
    assert times[0] <= 1000 < times[1]


def test_a_window_is_told_where_a_beginning_is_to_be_kept() -> None:
    """The cache of a sliding window forgets the beginning unless the whole is kept (case 31)."""
    windowed = make_case(workload=RAG, model=make_model(n_swa=1024))
    (finding,) = check("PRE07", windowed)
    assert "swa_full" in finding.remedy
