"""Long chats: what history costs, and what pays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.rules.builders import GIB, check_rule, evidence_of, make_blank, make_case, make_host, make_model
from tests.rules.pretended import Pretended
from tuner.model.spec import LayerSpec
from tuner.workload import PRESETS, Workload

DEEP = Workload(name="deep", prompt_tokens=512, output_tokens=256, depth_tokens=16_000)
LLAMA = make_model(n_layer=32, heads=32, kv_heads=8, head=128, context_length=131_072)
STATE = LayerSpec(kind="recurrent", n_head=0, n_head_kv=0, key_length=None, value_length=None, recurrent_s=4096)
RWKV = make_model(n_layer=24, layers=(STATE,) * 24)
SLOW = Pretended(op_s=4e-11)


class PackedWins(Pretended):
    """Reading an 8-bit cache takes `cost` times as long."""

    cost: float = 0.5

    def predict(self, spec: Any, config: Any, workload: Any) -> Any:
        cost = self.cost if config.cache_type_k == "q8_0" else 1.0
        return Pretended.predict(msgspec.structs.replace(self, op_s=self.op_s * cost), spec, config, workload)


class TestWhatHistoryCosts:
    def test_memory_and_time_are_told_in_numbers_of_this_model(self) -> None:
        """2 × 32 × 256 × 32 operations for each token of history, of 40 ps each: 21 ms for a thousand."""
        (finding,) = check_rule("CHT01", make_case(model=LLAMA, workload=DEEP, speed=SLOW, symptom="long-chat"))
        told = evidence_of(finding)
        assert told["memory for each token of context"] == 131_072
        assert told["cache set aside at the start"] == 16_896 * 131_072
        assert told["each 1000 tokens of history add to each token"] == pytest.approx(20.97, rel=0.001)
        assert finding.change == {}
        assert finding.severity == "hint"

    def test_a_limit_pays_in_time_from_a_history_on_and_in_memory_at_once(self) -> None:
        """Half of what a token takes without history, at 21 ms a thousand; 65,536 tokens where 16,896 would do."""
        situation = make_case(model=LLAMA, workload=DEEP, speed=SLOW, symptom="long-chat", config={"ctx_size": 65_536})
        (finding,) = check_rule("CHT01", situation)
        told = evidence_of(finding)
        assert told["of it beyond what the workload needs"] == (65_536 - 16_896) * 131_072
        bare = situation.predict(LLAMA, situation.config, msgspec.structs.replace(DEEP, depth_tokens=0))
        assert bare is not None
        limit = told["history that makes a token take half as long again as none"]
        assert limit == pytest.approx(bare.tpot.value / 2 / 20.97 * 1000, abs=51)
        assert f"limit the history to about {limit} tokens" in finding.remedy

    def test_without_figures_the_memory_is_told(self) -> None:
        (finding,) = check_rule("CHT01", make_case(model=LLAMA, workload=DEEP, speed=None, symptom="long-chat"))
        assert "each 1000 tokens of history add to each token" not in evidence_of(finding)

    def test_a_purely_recurrent_model_gets_no_such_advice(self) -> None:
        for code in ("CHT01", "CHT02", "CHT03", "CHT04", "CHT05"):
            situation = make_case(
                model=RWKV, workload=DEEP, speed=SLOW, symptom="long-chat", config={"ctx_size": 65_536, "cache_type_k": "q4_0"}
            )
            assert check_rule(code, situation) == ()

    @pytest.mark.parametrize("symptom", [None, "slow-output"])
    def test_it_is_silent_unless_asked(self, symptom: str | None) -> None:
        assert check_rule("CHT01", make_case(model=LLAMA, workload=DEEP, symptom=symptom)) == ()
        assert check_rule("CHT01", make_blank(symptom="long-chat")) == ()


class TestFreshStart:
    def test_the_number_of_tokens_after_which_a_summary_pays(self) -> None:
        """What it takes once, divided by what each token saves."""
        (finding,) = check_rule("CHT02", make_case(model=LLAMA, workload=DEEP, speed=SLOW))
        told = {name: value for name, value in evidence_of(finding).items() if not isinstance(value, str)}
        assert told["summary"] == 2000
        saved = told["time per token now"] - told["time per token with the summary"]
        assert told["it pays after"] == round(told["writing and reading the summary, once"] / saved)
        assert told["time per token in a new chat"] < told["time per token with the summary"] < told["time per token now"]
        assert f"more than {told['it pays after']} further tokens" in finding.remedy

    @pytest.mark.parametrize(
        ("workload", "speed"),
        [(DEEP, Pretended(op_s=0.0)), (PRESETS["chat"], SLOW), (DEEP, None)],
        ids=["history costs nothing", "short chat", "no figures"],
    )
    def test_it_is_silent_where_nothing_is_saved(self, workload: Workload, speed: Pretended | None) -> None:
        assert check_rule("CHT02", make_case(model=LLAMA, workload=workload, speed=speed)) == ()


class TestFasterCache:
    def test_8_bits_are_proposed_where_they_are_read_faster(self) -> None:
        (finding,) = check_rule("CHT03", make_case(model=LLAMA, workload=DEEP, speed=PackedWins(op_s=4e-11)))
        assert finding.change == {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        assert finding.expected is not None
        assert finding.expected.metric == "tpot"
        told = evidence_of(finding)
        assert told["KV cache in 8 bits"] == 16_896 * 131_072 * 17 // 32

    def test_flash_attention_comes_with_it(self) -> None:
        situation = make_case(model=LLAMA, workload=DEEP, speed=PackedWins(op_s=4e-11), config={"flash_attn": "off"})
        (finding,) = check_rule("CHT03", situation)
        assert finding.change["flash_attn"] == "on"

    @pytest.mark.parametrize(
        ("speed", "workload", "config"),
        [
            (PackedWins(op_s=4e-11, cost=1.5), DEEP, {}),
            (PackedWins(op_s=4e-11), PRESETS["quick"], {}),
            (PackedWins(op_s=4e-11), DEEP, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
            (None, DEEP, {}),
        ],
        ids=["slower", "short", "already", "no figures"],
    )
    def test_it_is_silent_elsewhere(self, speed: Any, workload: Workload, config: dict[str, Any]) -> None:
        assert check_rule("CHT03", make_case(model=LLAMA, workload=workload, speed=speed, config=config)) == ()


class TestBeyondTraining:
    SHORT = make_model(context_length=2048)

    def test_a_context_beyond_it_is_cut(self) -> None:
        (finding,) = check_rule("CHT04", make_case(model=self.SHORT, config={"ctx_size": 8192}))
        assert finding.change == {"ctx_size": 2048}
        assert finding.severity == "hint"

    def test_slots_count_each_by_itself(self) -> None:
        workload = Workload(name="two", prompt_tokens=512, output_tokens=64, users=2)
        situation = make_case(model=self.SHORT, workload=workload, config={"ctx_size": 4096, "parallel": 2})
        assert check_rule("CHT04", situation) == ()

    def test_a_workload_beyond_it_has_no_remedy_in_settings(self) -> None:
        (finding,) = check_rule("CHT04", make_case(model=self.SHORT, workload=DEEP))
        assert finding.change == {}
        assert finding.severity == "slows"

    def test_padding_is_no_excess(self) -> None:
        model = make_model(context_length=2000)
        assert check_rule("CHT04", make_case(model=model, config={"ctx_size": 2048})) == ()

    def test_it_is_silent_where_the_file_does_not_say(self) -> None:
        assert check_rule("CHT04", make_case(model=make_model(context_length=None), workload=DEEP)) == ()


class TestCoarseCache:
    @pytest.mark.parametrize(
        ("k", "v", "context"),
        [("q4_0", "q4_0", 65_536), ("q5_1", "q4_0", 40_960), ("q8_0", "f16", 4096), ("q4_0", "q8_0", 4096)],
    )
    def test_8_bits_are_proposed(self, k: str, v: str, context: int) -> None:
        config = {"cache_type_k": k, "cache_type_v": v, "ctx_size": context}
        (finding,) = check_rule("CHT05", make_case(model=LLAMA, config=config))
        assert finding.change == {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}

    @pytest.mark.parametrize(
        ("k", "v", "context"),
        [("q4_0", "q4_0", 32_768), ("q8_0", "q8_0", 65_536), ("f16", "q8_0", 65_536), ("f16", "f16", 65_536)],
    )
    def test_it_is_silent_for_short_texts_and_fine_caches(self, k: str, v: str, context: int) -> None:
        config = {"cache_type_k": k, "cache_type_v": v, "ctx_size": context}
        assert check_rule("CHT05", make_case(model=LLAMA, config=config)) == ()

    def test_what_does_not_fit_is_not_proposed(self) -> None:
        machine = make_host(available_bytes=562_500_000 + 3 * GIB)
        config = {"cache_type_k": "q4_0", "cache_type_v": "q4_0", "ctx_size": 65_536}
        (finding,) = check_rule("CHT05", make_case(model=LLAMA, machine=machine, config=config))
        assert finding.change == {}
