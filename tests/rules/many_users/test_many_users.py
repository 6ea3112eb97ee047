"""Several users at once: how many slots pay, what each takes, and what does not help."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.rules.builders import GIB, check_rule, evidence_of, make_blank, make_case, make_host, make_model
from tests.rules.pretended import Pretended
from tuner.model.spec import LayerSpec
from tuner.roofline.record import Estimate
from tuner.rules.many_users.batch_knee import find_knee, predict_slots
from tuner.rules.points import change_point
from tuner.workload import PRESETS, Workload

EIGHT = Workload(name="eight", prompt_tokens=128, output_tokens=64, users=8)
WEIGHTS = 562_500_000
LLAMA = make_model(n_layer=32, heads=32, kv_heads=8, head=128, context_length=131_072)
SLIDING = LayerSpec(kind="sliding", n_head=4, n_head_kv=1, key_length=256, value_length=256, weight_bytes=2**20)
GEMMA = make_model(n_layer=18, n_swa=512, layers=((SLIDING,) * 5 + (msgspec.structs.replace(SLIDING, kind="attention"),)) * 3)


class Knee(Pretended):
    """Throughput in tokens per second by slots: linear up to `most`, flat from there."""

    most: int = 4

    def predict(self, spec: Any, config: Any, workload: Any) -> Any:
        found = Pretended.predict(self, spec, config, workload)
        assert found is not None
        reached = 10.0 * min(config.parallel, self.most)
        tpot = config.parallel / reached * 1000
        return msgspec.structs.replace(
            found,
            throughput=Estimate(value=reached, low=0.95 * reached, high=1.05 * reached),
            tpot=Estimate(value=tpot, low=0.95 * tpot, high=1.05 * tpot),
        )


class TestHowManySlots:
    @pytest.mark.parametrize(("most", "now", "proposed"), [(8, 4, 8), (4, 1, 4), (2, 8, 2), (2, 4, 2), (1, 4, 1)])
    def test_the_knee_is_proposed(self, most: int, now: int, proposed: int) -> None:
        (finding,) = check_rule("USR01", make_case(workload=EIGHT, config={"parallel": now}, speed=Knee(most=most)))
        assert finding.change == {"parallel": proposed, "ctx_size": 256 * proposed}
        assert finding.expected is not None
        assert finding.expected.metric == ("throughput" if proposed > now else "tpot")

    def test_every_number_is_told_with_what_each_user_pays(self) -> None:
        (finding,) = check_rule("USR01", make_case(workload=EIGHT, config={"parallel": 1}, speed=Knee(most=4)))
        told = evidence_of(finding)
        assert [told[f"tokens per second in all, {name}"] for name in ("1 slot", "2 slots", "4 slots", "8 slots")] == [
            10,
            20,
            40,
            40,
        ]
        assert told["time per token of each user, 1 slot"] == 100
        assert told["time per token of each user, 8 slots"] == 200

    @pytest.mark.parametrize(("most", "now"), [(4, 4), (8, 8), (1, 1)])
    def test_it_is_silent_at_the_knee(self, most: int, now: int) -> None:
        assert check_rule("USR01", make_case(workload=EIGHT, config={"parallel": now}, speed=Knee(most=most))) == ()

    @pytest.mark.parametrize(("most", "said"), [(4, "hardly any further tokens"), (8, "all users fit")])
    def test_who_asks_about_many_users_sees_the_numbers_in_any_case(self, most: int, said: str) -> None:
        """Where throughput stops rising, and what each user pays there; there is nothing to change."""
        situation = make_case(workload=EIGHT, config={"parallel": most}, speed=Knee(most=most), symptom="many-users")
        (finding,) = check_rule("USR01", situation)
        assert (finding.severity, finding.change) == ("hint", {})
        assert f"Up to {most} conversations" in finding.remedy
        assert said in finding.remedy
        assert evidence_of(finding)["time per token of each user, 8 slots"] == (200 if most == 4 else 100)

    def test_it_is_silent_for_one_user_and_without_figures(self) -> None:
        assert check_rule("USR01", make_case(speed=Knee(most=4))) == ()
        assert check_rule("USR01", make_case(workload=EIGHT, speed=None)) == ()

    def test_slots_that_do_not_fit_are_left_out(self) -> None:
        big = Workload(name="big", prompt_tokens=4000, output_tokens=64, users=8)
        machine = make_host(available_bytes=int((WEIGHTS + 2 * GIB) / 0.95))
        situation = make_case(model=LLAMA, machine=machine, workload=big, config={"parallel": 1}, speed=Knee(most=8))
        assert [slot.count for slot in predict_slots(situation)] == [1, 2]

    def test_the_last_step_counts_in_proportion(self) -> None:
        """Six users: from four to six is half a doubling."""
        six = msgspec.structs.replace(EIGHT, users=6)
        curve = predict_slots(make_case(workload=six, speed=Knee(most=6)))
        assert [slot.count for slot in curve] == [1, 2, 4, 6]
        assert find_knee(curve).count == 6


class TestDividedContext:
    @pytest.mark.parametrize(
        ("context", "slots", "share", "need", "size"),
        [(8192, 2, 4096, 8192, 16_384), (1024, 4, 256, 1000, 4096), (4096, 4, 1024, 2000, 8192)],
    )
    def test_each_slot_gets_its_share(self, context: int, slots: int, share: int, need: int, size: int) -> None:
        workload = Workload(name="turn", prompt_tokens=need - 64, output_tokens=64, users=slots)
        config = {"ctx_size": context, "parallel": slots}
        (finding,) = check_rule("USR02", make_case(model=LLAMA, workload=workload, config=config))
        assert evidence_of(finding)["context per slot"] == share
        assert finding.change == {"ctx_size": size}
        assert f"`-c {size} -np {slots}`" in finding.remedy
        assert "--kv-unified" in finding.remedy

    @pytest.mark.parametrize(("context", "slots"), [(16_384, 2), (8192, 1), (32_768, 4)])
    def test_it_is_silent_where_the_share_suffices(self, context: int, slots: int) -> None:
        workload = Workload(name="turn", prompt_tokens=8000, output_tokens=192, users=slots)
        config = {"ctx_size": context, "parallel": slots}
        assert check_rule("USR02", make_case(model=LLAMA, workload=workload, config=config)) == ()

    def test_what_does_not_fit_is_not_proposed(self) -> None:
        workload = Workload(name="turn", prompt_tokens=30_000, output_tokens=192, users=4)
        machine = make_host(available_bytes=WEIGHTS + 2 * GIB)
        config = {"ctx_size": 8192, "parallel": 4}
        (finding,) = check_rule("USR02", make_case(model=LLAMA, machine=machine, workload=workload, config=config))
        assert finding.change == {}
        assert "fewer slots" in finding.remedy


class TestSlotsInMemory:
    BIG = Workload(name="big", prompt_tokens=4000, output_tokens=96, users=8)

    def test_the_most_slots_that_fit_keep_their_context(self) -> None:
        """One slot takes 4096 × 131072 bytes; 1.6 GiB hold three, and six in 8 bits are still fewer than eight."""
        machine = make_host(available_bytes=int((WEIGHTS + 1.6 * GIB) / 0.95))
        situation = make_case(model=LLAMA, machine=machine, workload=self.BIG, config={"parallel": 8})
        (finding,) = check_rule("USR03", situation)
        told = evidence_of(finding)
        assert told["cache of one slot"] == 4096 * 131_072
        assert told["slots that fit"] == 3
        assert finding.change == {"parallel": 3, "ctx_size": 3 * 4096}

    def test_a_cheaper_remedy_goes_before_it(self) -> None:
        """In 8 bits all eight fit."""
        machine = make_host(available_bytes=int((WEIGHTS + 2.5 * GIB) / 0.95))
        situation = make_case(model=LLAMA, machine=machine, workload=self.BIG, config={"parallel": 8})
        assert check_rule("USR03", situation) == ()
        assert len(check_rule("MEM05", situation)) == 1

    def test_it_is_silent_where_all_fit(self) -> None:
        assert check_rule("USR03", make_case(model=LLAMA, workload=self.BIG, config={"parallel": 8})) == ()


class TestSharedPool:
    def test_windows_are_kept_once_in_a_pool(self) -> None:
        """A window of 512 and a micro-batch of 512 in each of four parts, against four windows and one micro-batch."""
        workload = Workload(name="turn", prompt_tokens=3000, output_tokens=96, users=4)
        (finding,) = check_rule("USR04", make_case(model=GEMMA, workload=workload, symptom="many-users"))
        told = evidence_of(finding)
        row = 2 * 256 * 2
        assert told["cache with a part for each slot"] == 4 * row * (15 * 1024 + 3 * 3328)
        assert told["cache as one pool of the same total"] == row * (15 * 2560 + 3 * 4 * 3328)
        assert "--kv-unified" in finding.remedy
        assert "room of the others" in finding.costs

    @pytest.mark.parametrize("symptom", [None, "slow-output"])
    def test_it_is_silent_unless_asked(self, symptom: str | None) -> None:
        assert check_rule("USR04", make_case(model=GEMMA, workload=EIGHT, symptom=symptom)) == ()

    def test_it_is_silent_where_a_pool_saves_nothing(self) -> None:
        assert check_rule("USR04", make_case(workload=EIGHT, symptom="many-users")) == ()
        assert check_rule("USR04", make_blank(symptom="many-users")) == ()


class TestSpeculation:
    def test_it_should_be_off_where_arithmetic_is_used_up(self) -> None:
        situation = make_case(workload=EIGHT, config={"parallel": 4}, speed=Knee(most=4), symptom="many-users")
        (finding,) = check_rule("USR05", situation)
        assert finding.change == {}
        assert evidence_of(finding)["tokens per second with four times as many computed at once"] == 1.0

    @pytest.mark.parametrize(
        ("speed", "symptom"), [(Knee(most=64), "many-users"), (Knee(most=4), None), (None, "many-users")],
        ids=["head-room left", "not asked", "no figures"],
    )  # fmt: skip
    def test_it_is_silent_elsewhere(self, speed: Any, symptom: str | None) -> None:
        assert check_rule("USR05", make_case(workload=EIGHT, config={"parallel": 4}, speed=speed, symptom=symptom)) == ()

    def test_one_user_may_speculate(self) -> None:
        assert check_rule("USR05", make_case(speed=Knee(most=1), symptom="many-users")) == ()


class TestThreads:
    @pytest.mark.parametrize(("now", "proposed"), [(1, 8), (2, 8), (16, 8)])
    def test_the_batch_threads_make_the_output_of_several(self, now: int, proposed: int) -> None:
        situation = make_case(workload=PRESETS["batch"], config={"threads_batch": now})
        (finding,) = check_rule("USR06", situation)
        assert finding.change == {"threads_batch": proposed}
        assert finding.expected is not None
        assert finding.expected.metric == "throughput"

    def test_two_cores_make_the_output_of_two_users_with_both(self) -> None:
        """And one is proposed to nobody, though the decode of one user would do with it."""
        two = msgspec.structs.replace(EIGHT, users=2)
        machine = make_host(cores=2, logical=2)
        (finding,) = check_rule("USR06", make_case(machine=machine, workload=two, config={"threads_batch": 1}))
        assert finding.change == {"threads_batch": 2}
        assert check_rule("USR06", make_case(machine=machine, workload=two)) == ()

    def test_it_is_silent_where_they_are_right_or_unused(self) -> None:
        assert check_rule("USR06", make_case(workload=PRESETS["batch"])) == ()
        assert check_rule("USR06", make_case(config={"threads_batch": 1})) == ()
        assert check_rule("USR06", make_case(workload=PRESETS["batch"], config={"threads_batch": 1}, speed=None)) == ()


def test_the_share_of_a_slot_is_settled_as_llama_cpp_does() -> None:
    situation = make_case(workload=EIGHT, config={"parallel": 4, "ctx_size": 1000})
    assert change_point(situation, {}).ctx_size == 1024
