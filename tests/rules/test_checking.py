"""The answer of the checklist as a whole: consistent, possible, in order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.builders import TURN, make_case, make_host, make_model
from tests.rules.pretended import Pretended
from tuner.rules.base import Evidence, Expected, Finding, Rule, Severity, Situation
from tuner.rules.catalogue import find_rule, list_rules
from tuner.rules.checking import check_situation, join_changes, resolve_findings
from tuner.rules.expectation import compare_predictions, expect_gain, find_best_change
from tuner.rules.formats import label_file, main_format, recast_model
from tuner.rules.points import change_point, find_obstacle, is_possible
from tuner.workload import Workload

DEEP = Workload(name="deep", prompt_tokens=256, output_tokens=256, depth_tokens=16_000)


def find(code: str, change: dict[str, Any], *, ratio: float = 1.5, severity: Severity = "slows", what: str = "fact") -> Finding:
    """A finding that proposes `change`."""
    return Finding(
        code=code,
        title="Something is slow.",
        severity=severity,
        evidence=(Evidence(what=what, value="yes", basis="measured"),),
        change=change,
        remedy="Change it.",
        expected=Expected(metric="ttft", ratio=ratio, low=ratio, high=ratio),
    )


def resolve(*findings: Finding, **facts: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(each.code, each.change) for each in resolve_findings(make_case(speed=None, **facts), findings)]


class TestContradictions:
    def test_of_two_values_for_one_setting_the_better_gain_stays(self) -> None:
        assert resolve(find("AAA01", {"ubatch_size": 128}, ratio=1.2), find("BBB01", {"ubatch_size": 256}, ratio=1.4)) == [
            ("BBB01", {"ubatch_size": 256})
        ]

    def test_severity_counts_before_gain(self) -> None:
        mild, bad = (
            find("AAA01", {"ubatch_size": 128}, ratio=9.0, severity="hint"),
            find("BBB01", {"ubatch_size": 256}, severity="stops"),
        )
        assert resolve(mild, bad) == [("BBB01", {"ubatch_size": 256})]

    def test_a_change_that_another_makes_impossible_is_left_out(self) -> None:
        """A quantised V cache needs the flash attention that the better finding switches off."""
        cache = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        assert resolve(find("AAA01", {"flash_attn": "off"}, ratio=2.0), find("BBB01", cache)) == [
            ("AAA01", {"flash_attn": "off"})
        ]

    def test_a_change_that_another_undoes_is_left_out(self) -> None:
        """llama.cpp cuts the micro-batch to the batch."""
        both = (find("AAA01", {"batch_size": 64}, ratio=2.0), find("BBB01", {"ubatch_size": 256}))
        assert resolve(*both) == [("AAA01", {"batch_size": 64})]

    def test_changes_that_only_fit_one_by_one_are_not_both_proposed(self) -> None:
        def misfit(config: Any) -> str | None:
            return "too much" if config.ubatch_size == 128 and config.threads == 4 else None

        both = (find("AAA01", {"ubatch_size": 128}, ratio=2.0), find("BBB01", {"threads": 4}))
        assert resolve(*both, find_misfit=misfit) == [("AAA01", {"ubatch_size": 128})]

    def test_changes_that_go_together_stay(self) -> None:
        assert len(resolve(find("AAA01", {"ubatch_size": 128}), find("BBB01", {"threads": 4}))) == 2

    def test_the_same_change_twice_becomes_one_finding_with_all_evidence(self) -> None:
        twice = (find("AAA01", {"threads": 4}, ratio=2.0, what="one"), find("BBB01", {"threads": 4}, what="other"))
        (merged,) = resolve_findings(make_case(), twice)
        assert merged.code == "AAA01"
        assert [each.what for each in merged.evidence] == ["one", "other"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "refused by llama.cpp"),
        ({"ctx_size": 256}, "too short for the workload"),
        ({"ubatch_size": 512}, "nothing changes"),
        ({"cache_type_k": "q4_0"}, "keys less precise than values"),
        ({"warp_factor": 9}, "no such setting"),
        ({"ctx_size": 2**24}, "does not fit"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_is_never_proposed(change: dict[str, Any], why: str) -> None:
    del why
    assert not is_possible(make_case(), change)
    assert resolve(find("AAA01", change)) == []


def test_findings_come_worst_first_then_by_gain() -> None:
    told = resolve(
        find("CCC01", {"threads": 4}, ratio=1.2),
        find("BBB01", {"ubatch_size": 128}, ratio=1.6),
        find("AAA01", {}, severity="hint"),
        find("DDD01", {}, severity="stops"),
    )
    assert [code for code, _ in told] == ["DDD01", "BBB01", "CCC01", "AAA01"]


class Fixed(Rule):
    """Says what it is told to say."""

    code = "FIX01"
    title = "Says what it is told"
    symptoms = frozenset({"slow-output"})

    def __init__(self, *findings: Finding) -> None:
        self._findings = findings

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        return self._findings


@pytest.mark.parametrize(("symptom", "told"), [(None, 0), ("slow-output", 1)])
def test_one_phase_is_not_made_faster_at_the_cost_of_the_whole_unless_it_is_complained_of(
    symptom: str | None, told: int
) -> None:
    """Without flash attention each token comes sooner here, and the first so much later that the turn takes longer."""
    speed = Pretended(op_s=2e-10, flash_decode_cost=2.0, plain_prefill_cost=50.0)
    case = make_case(workload=DEEP, speed=speed, symptom=symptom)
    faster = expect_gain(case, {"flash_attn": "off"}, "tpot")
    assert faster is not None
    assert faster.ratio > 1.1
    assert len(check_situation(case, [Fixed(find("FIX01", {"flash_attn": "off"}))])) == told


def test_of_contradicting_gains_in_different_phases_the_one_that_saves_more_of_the_turn_stays() -> None:
    """Twice as fast a prompt is little where nearly all of the time goes to writing."""
    case = make_case(config={"threads": 1, "threads_batch": 1})
    prompt = find("AAA01", {"threads_batch": 8, "threads": 2}, ratio=9.0)
    writing = find("BBB01", {"threads": 4}, ratio=1.1)
    wider = find("CCC01", {"threads": 8, "threads_batch": 8}, ratio=1.05)
    assert [each.code for each in resolve_findings(case, (prompt, writing, wider))] == ["CCC01"]


@pytest.mark.parametrize("workload", [TURN, Workload(name="eight", prompt_tokens=128, output_tokens=64, users=8)])
def test_no_more_threads_are_proposed_than_busy_neighbours_leave(workload: Workload) -> None:
    """One finding says that five of eight cores are taken; no other asks for all eight."""
    machine = make_host(logical=8, environment={"load_1m": 5.0, "cpu_pressure": 60.0})
    found = check_situation(make_case(machine=machine, workload=workload, config={"threads": 1, "threads_batch": 1}))
    assert "MAC05" in {finding.code for finding in found}
    asked = [finding.change[name] for finding in found for name in ("threads", "threads_batch") if name in finding.change]
    assert asked
    assert max(asked) == 3


def test_a_symptom_chooses_its_rules_and_those_of_the_machine() -> None:
    case = make_case(config={"threads": 1, "threads_batch": 1}, symptom="slow-output")
    codes = {finding.code for finding in check_situation(case)}
    assert "DEC05" in codes
    for code in codes:
        rule = find_rule(code)
        assert rule is not None
        assert rule.symptoms & {"slow-output", "machine"}


def test_what_stops_a_model_silences_hints_about_speed() -> None:
    case = make_case(machine=make_host(available_bytes=2**30), model=make_model(quant="F16", bits=16.0), symptom="slow-output")
    found = check_situation(case)
    assert found[0].severity == "stops"
    assert not {"DEC01", "DEC11", "DEC12"} & {finding.code for finding in found}


def test_rules_agree_on_one_sibling() -> None:
    """A format that is slow here and a smaller file are the same change where one file answers both."""
    slow = Pretended(format_cost={"Q5_1": 3.0}, bandwidth=4e9)
    case = make_case(model=make_model(quant="Q5_1", bits=6.0), siblings=(make_model(bits=4.6),), speed=slow)
    proposed = [finding for finding in check_situation(case) if "model" in finding.change]
    assert len(proposed) == 1


def test_join_changes_is_one_point_that_runs() -> None:
    case = make_case(config={"threads": 1, "threads_batch": 1, "ubatch_size": 32}, workload=Workload(
        name="w", prompt_tokens=2048, output_tokens=64))  # fmt: skip
    point = change_point(case, join_changes(check_situation(case)))
    assert (point.threads, point.threads_batch) == (8, 8)
    assert point.ubatch_size > 32
    assert find_obstacle(case, point) is None


class TestExpectation:
    def test_the_ratio_is_before_over_after_for_times(self) -> None:
        case = make_case(config={"threads": 1, "threads_batch": 8})
        gain = expect_gain(case, {"threads": 4}, "tpot")
        assert gain is not None
        assert 3.5 < gain.ratio < 4.1
        assert gain.low < gain.ratio < gain.high

    def test_and_after_over_before_for_throughput(self) -> None:
        case = make_case(config={"threads": 1, "threads_batch": 8})
        gain = expect_gain(case, {"threads": 4}, "throughput")
        assert gain is not None
        assert 3.5 < gain.ratio < 4.1

    def test_how_sure_a_gain_is_depends_on_what_changes(self) -> None:
        """Threads that read the prompt leave most of a prediction's error the same; another way of attention, nothing of it."""
        case = make_case(model=make_model(quant="Q8_0", bits=8.5), siblings=(make_model(),))
        changes = ({"threads_batch": 4}, {"model": "/models/one-q4_k.gguf"}, {"flash_attn": "off"})
        gains = [gain for gain in (expect_gain(case, each, "ttft") for each in changes) if gain is not None]
        widths = [gain.high / gain.low for gain in gains]
        assert widths == sorted(widths)
        assert len(set(widths)) == 3

    def test_of_near_equals_the_first_is_taken(self) -> None:
        case = make_case(config={"threads": 1, "threads_batch": 8})
        best = find_best_change(case, [{"threads": 8}, {"threads": 6}, {"threads": 4}], "tpot")
        assert best is not None
        assert best[0] == {"threads": 8}

    def test_nothing_is_expected_of_what_nobody_predicts(self) -> None:
        case = make_case(speed=None)
        assert expect_gain(case, {"threads": 4}, "tpot") is None
        assert find_best_change(case, [{"threads": 4}], "tpot") is None

    def test_a_data_sheet_makes_it_an_assumption(self) -> None:
        import msgspec

        case = make_case()
        prediction = case.predict(case.model, case.config, TURN)
        assert prediction is not None
        guess = msgspec.structs.replace(prediction, ttft=msgspec.structs.replace(prediction.ttft, basis="assumed"))
        compared = compare_predictions(guess, prediction, "ttft")
        assert compared is not None
        assert compared.basis == "assumed"


class TestFormats:
    def test_a_model_in_another_format_weighs_what_its_bits_say(self) -> None:
        model = make_model(quant="F16", bits=16.0)
        other = recast_model(model, "Q8_0")
        assert other is not None
        assert other.weights_bytes == pytest.approx(model.weights_bytes * 8.5 / 16, rel=1e-3)
        assert other.block_bytes == pytest.approx(model.block_bytes * 8.5 / 16, rel=1e-3)
        assert main_format(other) == ("Q8_0", 1.0)

    def test_each_matrix_is_recast_by_its_own_bits_and_norms_stay(self) -> None:
        """Half a file in Q8_0 and half in F16, as mixed files are."""
        import msgspec

        mixed = make_model(quant="Q8_0", bits=8.5)
        held = (("Q8_0", 34_000), ("F16", 64_000), ("F32", 512))
        late = (("Q8_0", 17_000),)
        layers = tuple(msgspec.structs.replace(layer, matrices=held, feed_forward=late) for layer in mixed.layers)
        other = recast_model(msgspec.structs.replace(mixed, layers=layers, output_type="Q8_0"), "Q4_0")
        assert other is not None
        assert other.layers[0].matrices == (("Q4_0", 64_000 * 18 // 32), ("F32", 512))
        assert other.layers[0].feed_forward == (("Q4_0", 9_000),)
        assert other.output_type == "Q4_0"

    def test_rows_that_a_format_cannot_store_have_no_such_file(self) -> None:
        assert recast_model(make_model(n_embd=576), "Q4_K") is None

    def test_files_are_named_as_publishers_name_them(self) -> None:
        assert (label_file("Q4_K"), label_file("Q8_0")) == ("Q4_K_M", "Q8_0")


def test_rules_are_found_by_code_in_any_case() -> None:
    assert find_rule(" pre01 ") is list_rules()[[rule.code for rule in list_rules()].index("PRE01")]
    assert find_rule("XYZ99") is None
