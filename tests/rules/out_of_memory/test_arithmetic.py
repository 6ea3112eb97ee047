"""The sum of memory, with the numbers that public reports give."""

from __future__ import annotations

import msgspec
import pytest

from tests.rules.builders import GIB, check_rule, evidence_of, make_blank, make_case, make_host, make_model
from tuner.model import ModelSpec
from tuner.model.spec import LayerSpec
from tuner.rules.points import count_memory
from tuner.workload import PRESETS, Workload

TINY = make_host(available_bytes=GIB // 2)
SHORT = Workload(name="short", prompt_tokens=128, output_tokens=64)


def make_layer(kind: str, heads: int, key: int, value: int, **more: object) -> LayerSpec:
    return LayerSpec(kind=kind, n_head=32, n_head_kv=heads, key_length=key, value_length=value, weight_bytes=1000, **more)


LLAMA = make_model(n_layer=32, heads=32, kv_heads=8, head=128, context_length=131_072)
QWEN = make_model(n_layer=36, layers=(make_layer("attention", 8, 128, 128),) * 36, context_length=262_144)
GPT_OSS = make_model(
    n_layer=24, n_swa=128, context_length=131_072,
    layers=(make_layer("sliding", 8, 64, 64), make_layer("attention", 8, 64, 64)) * 12,
)  # fmt: skip
DEEPSEEK = make_model(
    n_layer=61, is_mla=True, context_length=163_840, layers=(make_layer("attention", 1, 576, 512, caches_values=False),) * 61
)
HYBRID = make_model(
    n_layer=64, context_length=262_144,
    layers=(*((make_layer("recurrent", 0, 256, 256, recurrent_r=36864, recurrent_s=524_288),) * 3),
            make_layer("attention", 4, 256, 256)) * 16,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "context", "size", "per_token"),
    [
        (LLAMA, 8192, 1_073_741_824, 131_072),
        (LLAMA, 131_072, 17_179_869_184, 131_072),
        (QWEN, 32_768, 4_831_838_208, 147_456),
        (QWEN, 262_144, 38_654_705_664, 147_456),
        (GPT_OSS, 131_072, 3_240_099_840, 24_576),
        (DEEPSEEK, 32_768, 2_302_672_896, 70_272),
        (DEEPSEEK, 163_840, 11_513_364_480, 70_272),
        (HYBRID, 262_144, 17_179_869_184, 65_536),
    ],
)
def test_the_cache_is_what_llama_cpp_allocates(model: ModelSpec, context: int, size: int, per_token: int) -> None:
    """Grouped heads, stated head sizes, windows, latent attention and recurrent layers each counted by their own rule."""
    (finding,) = check_rule("MEM01", make_case(model=model, machine=TINY, config={"ctx_size": context}))
    told = evidence_of(finding)
    assert told["KV cache"] == size
    assert told["KV cache for one token"] == per_token
    assert finding.severity == "stops"
    assert finding.change == {}


def test_the_product_is_laid_out() -> None:
    """Layers × cells × KV heads × head sizes × bytes, windows apart; and what else needs memory, and what there is."""
    (finding,) = check_rule("MEM01", make_case(model=GPT_OSS, machine=TINY, config={"ctx_size": 131_072}))
    told = evidence_of(finding)
    assert told["KV cache, layers with a window"] == "12 layers × 768 cells × 8 KV heads × (64 × 2 + 64 × 2) bytes"
    assert told["KV cache, layers that keep everything"] == "12 layers × 131072 cells × 8 KV heads × (64 × 2 + 64 × 2) bytes"
    assert told["weights"] == GPT_OSS.weights_bytes
    assert told["memory to be had on CPU"] == "486 MiB"
    assert "needs" in finding.remedy


def test_the_recurrent_state_is_a_line_of_its_own() -> None:
    (finding,) = check_rule("MEM01", make_case(model=HYBRID, machine=TINY, config={"ctx_size": 262_144}))
    assert evidence_of(finding)["recurrent state"] == 48 * (36864 + 524_288) * 4


def test_the_largest_context_is_told_in_any_case() -> None:
    """Where something cheaper makes it fit, and where all fits and memory ran out all the same."""
    short = make_case(model=LLAMA, machine=make_host(available_bytes=2 * GIB), config={"ctx_size": 16_384})
    for situation in (short, make_case(model=LLAMA, machine=make_host(available_bytes=8 * GIB), symptom="out-of-memory")):
        (finding,) = check_rule("MEM01", situation)
        most = evidence_of(finding)["largest context that fits"]
        assert isinstance(most, int)
        assert most > 0
        assert situation.find_misfit(situation.config.replace(ctx_size=most)) is None
        assert situation.find_misfit(situation.config.replace(ctx_size=most + 256)) is not None


def test_a_projector_and_a_draft_model_are_lines_of_their_own_and_take_room() -> None:
    """A projector of 207,346,528 bytes with room for an input; a draft model with its own cache of the same context."""
    small = make_model(parameters=100_000_000, n_layer=4)
    machine, config = make_host(available_bytes=2 * GIB), {"ctx_size": 4096}
    plain = make_case(model=LLAMA, machine=machine, config=config, symptom="out-of-memory")
    both = msgspec.structs.replace(plain, projector_bytes=207_346_528, draft=small)
    told = evidence_of(check_rule("MEM01", both)[0])
    assert told["projector, with room for an input"] == 207_346_528
    assert told["draft model with its cache, at least"] == small.weights_bytes + 4 * 4096 * 4 * (64 + 64) * 2
    assert count_memory(both, both.config).known_bytes - count_memory(plain, plain.config).known_bytes == (
        207_346_528 + small.weights_bytes + 4 * 4096 * 4 * (64 + 64) * 2
    )


def test_an_8_bit_cache_is_told_with_its_blocks() -> None:
    (finding,) = check_rule("MEM01", make_case(model=LLAMA, machine=TINY, config={"cache_type_k": "q8_0", "flash_attn": "off"}))
    assert "(128 × 34/32 + 128 × 2)" in str(evidence_of(finding)["KV cache, layers that keep everything"])


def test_an_upper_bound_is_called_one() -> None:
    """An unknown family with a window but no pattern."""
    (finding,) = check_rule("MEM01", make_case(model=msgspec.structs.replace(LLAMA, kv_basis="upper_bound"), machine=TINY))
    assert str(evidence_of(finding)["how well that is known"]).startswith("at most")


def test_who_ran_out_of_memory_sees_the_sum_even_if_it_fits() -> None:
    (finding,) = check_rule("MEM01", make_case(symptom="out-of-memory"))
    assert finding.severity == "hint"


@pytest.mark.parametrize("symptom", [None, "slow-start", "many-users", "long-chat"])
def test_it_is_silent_where_all_fits(symptom: str | None) -> None:
    assert check_rule("MEM01", make_case(symptom=symptom)) == ()
    assert check_rule("MEM01", make_case(workload=PRESETS["chat"], symptom=symptom)) == ()


def test_it_is_silent_where_the_file_says_nothing() -> None:
    assert check_rule("MEM01", make_blank(symptom="out-of-memory", find_misfit=lambda _: "It does not fit.")) == ()
