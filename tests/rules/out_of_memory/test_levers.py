"""What is proposed where it does not fit: the cheapest change that makes it fit, and never one that does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.rules.builders import GIB, check_rule, evidence_of, make_case, make_gpu, make_host, make_model
from tests.rules.pretended import Pretended
from tuner.hardware.record import GpuFacts, GpuProcess
from tuner.model.spec import LayerSpec
from tuner.rules.base import Situation
from tuner.rules.checking import check_situation
from tuner.rules.out_of_memory.levers import LEVERS
from tuner.rules.points import change_point, find_obstacle
from tuner.workload import Workload

MIB = 2**20
DEEP = Workload(name="deep", prompt_tokens=512, output_tokens=256, depth_tokens=24_000)
LLAMA = make_model(n_layer=32, heads=32, kv_heads=8, head=128, context_length=131_072)
NEMO = make_model(n_layer=40, heads=32, kv_heads=8, head=128, context_length=1_024_000)
SLIDING = LayerSpec(kind="sliding", n_head=4, n_head_kv=1, key_length=256, value_length=256, weight_bytes=MIB)
FULL = msgspec.structs.replace(SLIDING, kind="attention")
GEMMA = make_model(n_layer=18, n_swa=512, layers=((SLIDING,) * 5 + (FULL,)) * 3, parameters=270_000_000)
MIXTURE = make_model(parameters=8_000_000_000, n_layer=32, experts=8)
DENSE = make_model(parameters=8_000_000_000, n_layer=32, heads=32, kv_heads=8, head=128)
Q8 = make_model(quant="Q8_0", bits=8.5, parameters=4_000_000_000)
Q4 = make_model(parameters=4_000_000_000)


def host(need: int, **more: Any) -> Any:
    """A machine on which `need` bytes may be taken: what is free less a twentieth."""
    return make_host(available_bytes=int(need / 0.95) + 1, **more)


def card(need: int, **more: Any) -> Any:
    return make_host(devices=(make_gpu(free_bytes=int(need / 0.95) + 1),), **more)


WEIGHTS = 562_500_000
CASES = {
    "whole windows": (
        make_case(model=GEMMA, machine=host(300 * MIB), config={"swa_full": True, "ctx_size": 32_768}),
        "MEM04", {"swa_full": False},
    ),
    "tables of attention": (
        make_case(model=LLAMA, machine=host(WEIGHTS + 5 * GIB), config={"flash_attn": "off", "ctx_size": 32_768}, workload=DEEP),
        "MEM06", {"flash_attn": "on"},
    ),
    "training context": (
        make_case(model=NEMO, machine=host(WEIGHTS + 4 * GIB), config={"ctx_size": 1_024_000}),
        "MEM03", {"ctx_size": 16_384},
    ),
    "training context, less memory": (
        make_case(model=NEMO, machine=host(WEIGHTS + 2 * GIB), config={"ctx_size": 1_024_000}),
        "MEM03", {"ctx_size": 8192},
    ),
    "slots that nobody uses": (
        make_case(model=LLAMA, machine=host(WEIGHTS + GIB), config={"parallel": 4, "ctx_size": 16_384}),
        "MEM12", {"parallel": 1, "ctx_size": 4096},
    ),
    "8-bit cache": (
        make_case(model=LLAMA, machine=host(WEIGHTS + 2 * GIB), workload=DEEP),
        "MEM05", {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    ),
    "a context nearer to the need": (
        make_case(model=LLAMA, machine=host(WEIGHTS + GIB), config={"ctx_size": 32_768}),
        "MEM11", {"ctx_size": 7936},
    ),
    "layers": (make_case(model=DENSE, machine=card(3 * GIB)), "MEM08", {"n_gpu_layers": 24}),
    "a smaller file": (make_case(model=Q8, siblings=(Q4,), machine=host(3 * GIB)), "MEM13", {"model": Q4.path}),
}  # fmt: skip


@pytest.mark.parametrize(("situation", "code", "change"), CASES.values(), ids=CASES)
def test_the_cheapest_change_that_fits_is_proposed(situation: Situation, code: str, change: dict[str, Any]) -> None:
    """By its own rule, with what it frees, and by no other."""
    (finding,) = check_rule(code, situation)
    assert finding.change == change
    assert finding.severity == "stops"
    assert find_obstacle(situation, change_point(situation, finding.change)) is None
    freed = evidence_of(finding)["memory it frees"]
    assert isinstance(freed, int)
    assert freed > 0
    assert finding.expected is not None
    assert finding.expected.metric == "memory"
    others = [lever.code for lever in LEVERS if lever.code.startswith("MEM") and lever.code != code]
    assert [each for each in others if check_rule(each, situation)] == []


@pytest.mark.parametrize("code", [*(lever.code for lever in LEVERS if lever.code.startswith("MEM")), "MEM02", "MEM09", "MEM10"])
def test_nothing_is_said_where_it_fits(code: str) -> None:
    """Even where there would be something to save."""
    lavish = make_case(model=GEMMA, config={"swa_full": True, "flash_attn": "off", "parallel": 4, "ctx_size": 32_768})
    assert check_rule(code, lavish) == ()
    assert check_rule(code, make_case(machine=card(24 * GIB))) == ()


def test_no_more_layers_than_needed_leave_the_device() -> None:
    situation = CASES["layers"][0]
    assert situation.find_misfit(change_point(situation, {"n_gpu_layers": 25})) is not None


def test_the_arithmetic_comes_first() -> None:
    """Before what frees memory, however much that is."""
    codes = [finding.code for finding in check_situation(CASES["training context"][0])]
    assert codes[:3] == ["MEM01", "MEM02", "MEM03"]


def test_a_free_change_is_preferred_to_one_that_costs() -> None:
    """Window caches and 8 bits would both do."""
    situation = make_case(model=GEMMA, machine=host(300 * MIB), config={"swa_full": True, "ctx_size": 32_768})
    assert [finding.code for finding in check_situation(situation) if finding.change] == ["MEM04"]


def test_several_changes_that_suffice_only_together_are_one_proposal() -> None:
    """And each is explained by its own rule, without a change that would not fit."""
    situation = make_case(model=LLAMA, machine=host(WEIGHTS + 400 * MIB), config={"parallel": 4, "ctx_size": 16_384})
    (whole,) = check_rule("MEM02", situation)
    assert whole.change == {"parallel": 1, "ctx_size": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    for code in ("MEM05", "MEM12"):
        (part,) = check_rule(code, situation)
        assert part.change == {}
        assert "does not suffice" in part.remedy


def test_the_table_tells_what_each_frees() -> None:
    situation = make_case(model=LLAMA, machine=host(WEIGHTS + 2 * GIB), workload=DEEP)
    (finding,) = check_rule("MEM02", situation)
    told = evidence_of(finding)
    assert told["8-bit KV cache frees"] == 24_832 * 131_072 * 15 // 32
    assert "fewer slots frees" not in told


def test_context_cache_type_micro_batch_slots_and_layers_are_told_the_cheapest_first() -> None:
    """Each with what it frees by itself on the device that is too small."""
    machine = make_host(devices=(make_gpu(free_bytes=4 * GIB),))
    grok = make_model(n_layer=32, heads=32, kv_heads=8, head=128, context_length=262_144, parameters=8_000_000_000)
    config = {"ctx_size": 65_536, "parallel": 4, "flash_attn": "off"}
    (finding,) = check_rule("MEM02", make_case(model=grok, machine=machine, config=config))
    told = evidence_of(finding)
    order = [
        "flash attention frees",
        "dropping slots that nobody uses frees",
        "a smaller micro-batch frees",
        "8-bit KV cache frees",
        "a context nearer to what the workload needs frees",
        "fewer slots frees",
        "layers or experts kept in main memory frees",
    ]
    assert list(told) == order
    assert all(isinstance(value, int) and value > 0 for value in told.values())


def test_the_cache_is_never_proposed_below_8_bits() -> None:
    """However short the memory is."""
    situation = make_case(model=LLAMA, machine=host(WEIGHTS + GIB), workload=DEEP)
    types = {finding.change.get("cache_type_k") for finding in check_situation(situation)}
    assert types <= {None, "q8_0"}


def test_a_quantised_cache_is_not_proposed_where_flash_attention_is_forbidden() -> None:
    grok = make_model(n_layer=32, heads=32, kv_heads=8, head=128, flash_attn_forced_off=True)
    assert check_rule("MEM05", make_case(model=grok, machine=host(WEIGHTS + 2 * GIB), workload=DEEP)) == ()


def test_the_tables_of_attention_are_told_as_a_product() -> None:
    """Context × micro-batch × heads × 4: 2 GiB at 32768 × 512 × 32."""
    (finding,) = check_rule("MEM06", CASES["tables of attention"][0])
    assert evidence_of(finding)["attention tables, at least"] == 2_147_483_648


def test_the_training_context_is_shown_only_as_full_context() -> None:
    (finding,) = check_rule("MEM03", CASES["training context"][0])
    told = evidence_of(finding)
    assert told["KV cache at full context"] == 167_772_160_000
    assert told["KV cache at 16384 tokens"] == 2_684_354_560


def test_the_largest_context_is_told_where_nothing_fits() -> None:
    """The workload is never cut: there is no setting to change."""
    situation = make_case(model=LLAMA, machine=host(WEIGHTS + GIB), workload=DEEP)
    (finding,) = check_rule("MEM11", situation)
    assert finding.change == {}
    most = evidence_of(finding)["largest context that fits"]
    assert isinstance(most, int)
    assert situation.find_misfit(situation.config.replace(ctx_size=most)) is None
    assert situation.find_misfit(situation.config.replace(ctx_size=most + 256)) is not None


class TestExperts:
    """A mixture that does not fit the card: experts against whole layers."""

    def test_the_smallest_number_that_fits_stays_outside(self) -> None:
        situation = make_case(model=MIXTURE, machine=card(3 * GIB), speed=None)
        (finding,) = check_rule("MEM08", situation)
        outside = finding.change["n_cpu_moe"]
        assert finding.change["n_gpu_layers"] == 33
        less = change_point(situation, finding.change | {"n_cpu_moe": outside - 1})
        assert situation.find_misfit(less) is not None
        assert "compare" in finding.remedy
        assert "Python" in finding.remedy

    def test_whole_layers_win_where_they_are_predicted_to_be_faster(self) -> None:
        """The pretended machine knows nothing of experts on the host, so both ways are told apart by the layers alone."""

        class Slow(Pretended):
            def predict(self, spec: Any, config: Any, workload: Any) -> Any:
                found = super().predict(spec, config, workload)
                assert found is not None
                slower = 100.0 if config.n_cpu_moe else 1.0
                tpot = msgspec.structs.replace(found.tpot, value=found.tpot.value * slower)
                return msgspec.structs.replace(found, tpot=tpot)

        (finding,) = check_rule("MEM08", make_case(model=MIXTURE, machine=card(3 * GIB), speed=Slow()))
        assert "n_cpu_moe" not in finding.change


class TestOneMemory:
    """64 GiB for both; 40 on the device and 30 in main memory are 70."""

    def test_both_needs_are_added_up(self) -> None:
        device = msgspec.structs.replace(make_gpu(name="Metal", backend="Metal", free_bytes=64 * GIB), unified=True)
        machine = make_host(available_bytes=64 * GIB, devices=(device,))
        big = make_model(parameters=70 * GIB, bits=8.0)
        situation = make_case(model=big, machine=machine, config={"n_gpu_layers": 9})
        (finding,) = check_rule("MEM09", situation)
        told = evidence_of(finding)
        assert told["memory to be had for both together"] == 63 * GIB
        assert sum(value for name, value in told.items() if name.startswith("needed on")) == told["needed in all, at least"]
        assert check_rule("MEM08", situation) == ()

    def test_separate_memories_are_no_matter_of_it(self) -> None:
        assert check_rule("MEM09", make_case(model=DENSE, machine=card(3 * GIB))) == ()


class TestOthersHoldMemory:
    @pytest.mark.parametrize(
        ("held", "severity"), [(3 * GIB, "stops"), (GIB // 4, "hint")], ids=["would fit alone", "would not fit even alone"]
    )
    def test_the_processes_are_named(self, held: int, severity: str) -> None:
        finding = self._check(held, (GpuProcess(pid=7, memory_bytes=held - 1), GpuProcess(pid=8)))[0]
        told = evidence_of(finding)
        assert finding.severity == severity
        assert told["process 7 holds"] == held - 1
        assert told["process 8"] == "holds an unknown amount"

    def test_it_is_silent_where_nobody_else_is_there(self) -> None:
        assert self._check(3 * GIB, ()) == ()

    def _check(self, held: int, processes: tuple[GpuProcess, ...]) -> Any:
        gpu = GpuFacts(index=0, uuid="GPU-1", memory_free_bytes=3 * GIB, memory_used_bytes=held, processes=processes)
        device = msgspec.structs.replace(make_gpu(free_bytes=3 * GIB), gpu_uuid="GPU-1")
        return check_rule("MEM10", make_case(model=DENSE, machine=make_host(devices=(device,), gpus=(gpu,))))


def test_who_ran_out_although_it_should_fit_is_told_what_is_free_of_charge() -> None:
    situation = make_case(model=GEMMA, config={"swa_full": True, "ctx_size": 32_768}, symptom="out-of-memory")
    (finding,) = check_rule("MEM04", situation)
    assert finding.change == {"swa_full": False}
    assert finding.severity == "slows"
    assert check_rule("MEM05", situation) == ()


def test_a_sensitive_family_is_warned_of_8_bits() -> None:
    model = msgspec.structs.replace(LLAMA, architecture="qwen2")
    (finding,) = check_rule("MEM05", make_case(model=model, machine=host(WEIGHTS + 2 * GIB), workload=DEEP))
    assert "sensitive" in finding.costs


def test_a_smaller_micro_batch_is_proposed_where_it_suffices() -> None:
    """Without flash attention the tables shrink with it; the model forbids flash attention, so this is what is left."""
    grok = make_model(n_layer=32, heads=32, kv_heads=8, head=128, flash_attn_forced_off=True)
    situation = make_case(model=grok, machine=host(WEIGHTS + 4 * GIB), workload=DEEP)
    (finding,) = check_rule("MEM07", situation)
    assert finding.change == {"ubatch_size": 256}
    assert finding.expected is not None


@pytest.mark.parametrize("code", ["MEM01", "MEM03", "MEM05", "MEM11"])
def test_a_purely_recurrent_model_gets_no_advice_about_context(code: str) -> None:
    """Its state has one size, whatever the context: neither a smaller nor a largest one means anything, and nothing is NaN."""
    state = LayerSpec(kind="recurrent", n_head=0, n_head_kv=0, key_length=None, value_length=None, recurrent_s=4096)
    rwkv = make_model(n_layer=24, layers=(state,) * 24, context_length=1_048_576)
    found = check_rule(code, make_case(model=rwkv, machine=host(GIB // 4), config={"ctx_size": 1_048_576}))
    assert [each.code for each in found] == (["MEM01"] if code == "MEM01" else [])
    for finding in found:
        told = evidence_of(finding)
        assert not {"KV cache for one token", "largest context that fits"} & set(told)
        assert all(value == value for value in told.values())


def test_a_head_that_8_bit_blocks_do_not_divide_keeps_its_cache() -> None:
    """80 is no multiple of 32."""
    odd, even = (make_model(n_layer=32, heads=32, kv_heads=8, head=head, context_length=131_072) for head in (80, 96))
    assert check_rule("MEM05", make_case(model=odd, machine=host(WEIGHTS + GIB + GIB // 4), workload=DEEP)) == ()
    assert len(check_rule("MEM05", make_case(model=even, machine=host(WEIGHTS + GIB + GIB // 2), workload=DEEP))) == 1


def test_a_micro_batch_that_frees_too_little_is_not_touched() -> None:
    """With flash attention there are no tables to shrink: the cache is what does not fit."""
    assert check_rule("MEM07", CASES["8-bit cache"][0]) == ()


def test_another_file_is_the_last_resort() -> None:
    """Not proposed where a setting is enough, however small the file beside it is."""
    needy = make_case(model=LLAMA, siblings=(make_model(bits=2.0, path="/models/two.gguf"),), machine=host(WEIGHTS + 2 * GIB),
                      workload=DEEP)  # fmt: skip
    assert check_rule("MEM13", needy) == ()
    assert len(check_rule("MEM05", needy)) == 1
