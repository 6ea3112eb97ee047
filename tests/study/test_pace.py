"""A budget is divided so that what it was given for, a proof, still fits; only then comes the search."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from tests.study.fakes import FakeMeasurer, FakeSpace, cost_of, make_request, run
from tests.study.test_loop import wide
from tuner.measure.record import Plan
from tuner.measure.statistics import paired_ratio
from tuner.study.events import Note, Progress, RoundFinished
from tuner.study.pace import FEWEST_PAIRS, SEARCH_SHARE, Pace, count_rounds, divide_budget, end_search
from tuner.study.request import CONFIRM_SHARE
from tuner.study.strategy import SHORT_DECODE, plan_round
from tuner.workload import Workload

CHAT = Workload(name="chat", prompt_tokens=512, output_tokens=256)
PACE = Pace(turn_s=12.0, tokens=256, token_s=0.04, prompt_s=1.8, overhead_s=0.5, load_s=2.0)


def request(budget_s: float, goals: str = "tpot"):
    return make_request(FakeSpace({"threads": (4, 6)}), "memory://", budget_s=budget_s, goals=goals, workload=CHAT)


def divide(budget_s: float, *, elapsed_s: float = 15.0, loads: bool = False, tokens: int | None = None):
    return divide_budget(request(budget_s), PACE, ends_s=budget_s - 1.0, elapsed_s=elapsed_s, loads=loads, tokens=tokens)


class TestPace:
    @pytest.mark.parametrize(
        ("plan", "seconds"),
        [
            (Plan(samples=1, prefill=True, decode_tokens=256), 12.5),
            (Plan(samples=3, prefill=True, decode_tokens=256), 36.5),
            (Plan(samples=1, prefill=False, decode_tokens=256), 10.7),
            (Plan(samples=1, prefill=False, decode_tokens=32), 1.74),
            (Plan(samples=1, prefill=True, decode_tokens=0), 2.26),
        ],
    )
    def test_a_run_is_prompt_and_tokens_and_what_goes_before(self, plan: Plan, seconds: float) -> None:
        assert PACE.expect(plan) == pytest.approx(seconds)
        assert PACE.expect(plan, loads=True) == pytest.approx(seconds + 2.0)

    def test_it_is_read_from_a_run(self) -> None:
        """Loading and overhead are told apart from the turns."""
        space = FakeSpace({"threads": (4, 6)})
        outcome = FakeMeasurer(noise=0.0).measure(space.baseline, CHAT, Plan(samples=2, decode_tokens=256))
        assert outcome.measurement is not None
        loaded = msgspec.structs.replace(outcome.measurement, load_ms=30.0)
        pace = Pace.of(msgspec.structs.replace(outcome, measurement=loaded))
        ttft, tpot = cost_of(space.baseline)
        assert pace is not None
        assert pace.turn_s == pytest.approx((ttft + 256 * tpot) / 1000)
        assert (pace.load_s, pace.overhead_s) == (pytest.approx(0.03), pytest.approx(0.02))


class TestDivision:
    def test_an_ample_budget_keeps_its_shares_and_turns_of_full_length(self) -> None:
        division = divide(600)
        assert division.search_ends_s == pytest.approx(0.65 * 600)
        assert division.round_plan == plan_round(request(600))

    @pytest.mark.parametrize("budget_s", [50, 60, 75, 90, 120, 180, 240, 600])
    def test_the_fewest_rounds_always_fit_behind_the_search(self, budget_s: float) -> None:
        division = divide(budget_s)
        later_s = (FEWEST_PAIRS - 1) * PACE.expect(division.later_plan)
        proof_s = 2 * (PACE.expect(division.round_plan) + later_s)
        assert division.missing_s == 0
        assert division.search_ends_s + proof_s <= budget_s - 1.0 + 1e-9
        assert division.search_ends_s > 15.0

    def test_a_short_budget_shortens_the_answers_before_it_gives_up_the_proof(self) -> None:
        lengths = [divide(budget_s).round_plan.decode_tokens for budget_s in (60, 120, 180, 600)]
        assert lengths == sorted(lengths)
        assert lengths[0] >= SHORT_DECODE
        assert lengths[0] < lengths[-1] == 256

    def test_a_short_budget_reads_a_prompt_that_no_goal_needs_once(self) -> None:
        """Its figure exists all the same; where a goal needs it, every round reads it."""
        assert [plan.prefill for plan in (divide(60).round_plan, divide(60).later_plan)] == [True, False]
        assert divide(600).later_plan.prefill
        wanted = divide_budget(request(60, goals="latency"), PACE, ends_s=59.0, elapsed_s=15.0, loads=False)
        assert wanted.later_plan.prefill

    def test_a_budget_without_room_for_a_proof_says_how_much_it_lacks(self) -> None:
        division = divide(30)
        assert division.missing_s > 0
        assert division.search_ends_s == pytest.approx(0.65 * 30)

    def test_models_that_may_be_loaded_anew_cost_their_loading(self) -> None:
        assert divide(120, loads=True).search_ends_s <= divide(120).search_ends_s
        assert divide(90, loads=True).round_plan.decode_tokens < divide(90).round_plan.decode_tokens

    def test_rounds_go_on_with_the_answers_they_began_with(self) -> None:
        """Runs of another length do not compare."""
        assert divide(60, tokens=100).round_plan.decode_tokens == 100


class TestRounds:
    """How many rounds a gain needs, and when the search makes room for them."""

    @pytest.mark.parametrize(
        ("ratio", "noise", "rounds"),
        [
            (1.5, 0.03, 5),
            (1.08, 0.03, 5),
            (1.05, 0.03, 8),
            (1.03, 0.001, 14),
            (1.03, 0.03, 19),
            (1.001, 0.03, 20),
            (1.0, 0.03, 20),
        ],
    )
    def test_small_gains_need_many(self, ratio: float, noise: float, rounds: int) -> None:
        assert count_rounds(ratio, noise, fewest=5) == rounds

    @pytest.mark.parametrize(("ratio", "noise"), [(1.05, 0.03), (1.06, 0.04), (1.035, 0.025)])
    def test_so_many_prove_it_four_times_out_of_five(self, ratio: float, noise: float) -> None:
        draw = random.Random(1)
        rounds = count_rounds(ratio, noise, fewest=5)

        def prove() -> bool:
            pairs = [(ratio * math.exp(draw.gauss(0, noise)), math.exp(draw.gauss(0, noise))) for _ in range(rounds)]
            _, low, _ = paired_ratio([a for a, _ in pairs], [b for _, b in pairs])
            return low > 1.0

        assert 0.65 < sum(prove() for _ in range(400)) / 400 < 0.9

    @pytest.mark.parametrize("budget_s", [60, 120, 180, 600])
    def test_more_rounds_end_the_search_earlier_but_leave_it_its_share(self, budget_s: float) -> None:
        division = divide(budget_s)
        ends = [end_search(PACE, division, rounds=rounds, ends_s=budget_s - 1.0, began_s=15.0) for rounds in (1, 3, 5, 10, 20)]
        assert ends == sorted(ends, reverse=True)
        assert ends[0] <= division.search_ends_s
        assert ends[-1] >= min(division.search_ends_s, 15.0 + SEARCH_SHARE * (budget_s - 16.0)) - 1e-9


def slow(config):
    """Turns of about 12 s."""
    ttft, tpot = cost_of(config)
    return ttft * 12, tpot * 2


@pytest.mark.parametrize("strategy", ["physics", "random"])
@pytest.mark.parametrize("goals", ["tpot", "latency", "ttft"])
@pytest.mark.parametrize("budget_s", [20.0, 45.0, 60.0, 90.0, 150.0, 300.0])
def test_a_budget_is_kept(budget_s: float, goals: str, strategy: str) -> None:
    """But for the very first run, without which nothing is known: then nothing more is begun."""
    measurer = FakeMeasurer(cost=slow)
    wanted = make_request(wide(), "memory://", goals=goals, budget_s=budget_s, workload=CHAT, strategy=strategy)
    run(wanted, measurer)
    assert measurer.clock.now <= budget_s or len(measurer.runs) == 1


def test_what_was_spent_before_the_study_counts() -> None:
    """Looking at the machine, starting the engine."""
    from tuner.study.loop import run_study

    measurer = FakeMeasurer(cost=slow)
    measurer.clock.now = 30.0
    wanted = make_request(wide(), "memory://", budget_s=90.0, workload=CHAT)
    result = run_study(
        wanted, measurer, emit=lambda _: None, find_misfit=lambda _: None, clock=measurer.clock, stop=NeverStop(), began=0.0
    )
    assert measurer.clock.now <= 90.0
    assert result.elapsed_s == pytest.approx(measurer.clock.now)


class NeverStop:
    requested = False


def test_a_short_budget_still_proves_a_gain() -> None:
    """60 s where a full turn takes 12: the rounds write a shorter answer, all of the same length, and the result says so."""
    events: list[object] = []
    measurer = FakeMeasurer(cost=slow, noise=0.003)
    space = FakeSpace({"threads": (2, 4, 6)})
    result = run(make_request(space, "memory://", budget_s=60.0, workload=CHAT), measurer, events=events)
    assert measurer.clock.now <= 60.0
    assert result.gain.rounds >= FEWEST_PAIRS
    assert result.gain.significant
    lengths = {plan.decode_tokens for _, plan in measurer.runs if plan.fresh}
    assert len(lengths) == 1
    assert lengths < set(range(SHORT_DECODE, 256))
    assert any(f"write {lengths.pop()} of 256 tokens" in event.text for event in events if isinstance(event, Note))
    figures = result.best.outcome.measurement if result.best.outcome else None
    assert figures is not None
    assert figures.ttft_ms is not None


def test_without_anything_to_prove_the_search_gets_the_time_for_the_proof() -> None:
    """What is found so late is told as undecided; what nobody looked at could not even be told."""
    measurer = FakeMeasurer(cost=lambda config: (2400.0, 40.0 if config.threads == 4 else 52.0))
    begun: list[float] = []
    measurer._on_measure = lambda _: begun.append(measurer.clock.now)
    space = FakeSpace({"threads": (1, 2, 3, 4, 6, 8, 12), "cache_type_k": ("f16", "q8_0")})
    result = run(make_request(space, "memory://", goals="latency", budget_s=60.0, workload=CHAT), measurer)
    searched = [now for now, (_, plan) in zip(begun, measurer.runs, strict=True) if not plan.fresh]
    assert max(searched) > 60.0 * (1 - CONFIRM_SHARE)
    assert measurer.clock.now <= 60.0
    assert result.best.config == result.baseline.config


def test_a_short_budget_begins_with_a_short_answer() -> None:
    """Nobody knows yet how long a whole one takes; on a fast machine the rounds write far longer ones all the same."""
    measurer = FakeMeasurer()
    run(make_request(FakeSpace({"threads": (2, 4, 6)}), "memory://", budget_s=60.0, workload=CHAT), measurer)
    assert measurer.runs[0][1].decode_tokens == SHORT_DECODE
    assert min(plan.decode_tokens for _, plan in measurer.runs if plan.fresh) > 6 * SHORT_DECODE


def test_a_budget_too_short_for_any_proof_says_what_one_takes() -> None:
    wanted = make_request(wide(), "memory://", goals="latency", budget_s=20.0, workload=CHAT)
    result = run(wanted, FakeMeasurer(cost=slow))
    assert any("too short to prove a gain, which takes" in note for note in result.notes)
    assert not result.gain.significant


def test_no_run_may_repeat_disturbed_samples_beyond_the_budget() -> None:
    measurer = FakeMeasurer(cost=slow)
    begun: list[float] = []
    measurer._on_measure = lambda _: begun.append(measurer.clock.now)
    run(make_request(wide(), "memory://", budget_s=90.0, workload=CHAT), measurer)
    ends = [now + plan.repeats_s for now, (_, plan) in zip(begun, measurer.runs, strict=True)]
    assert all(end <= 90.0 for end in ends)


def test_nobody_goes_on_without_time_left() -> None:
    """Where progress said that nothing is left, no round follows."""
    events: list[object] = []
    run(make_request(wide(), "memory://", budget_s=60.0, workload=CHAT), FakeMeasurer(cost=slow), events=events)
    left = [event.left_s for event in events if isinstance(event, Progress)]
    assert all(seconds > 0 for seconds in left[:-1])
    assert any(isinstance(event, RoundFinished) for event in events)


def test_a_small_gain_in_hand_ends_the_search_earlier() -> None:
    """Its proof takes more rounds, a large one's hardly any; without one there is nothing to set aside for."""

    def count_searched(gain: float) -> int:
        measurer = FakeMeasurer(cost=lambda config: (240.0, 5.0 / (1.0 if config.threads == 4 else gain)), noise=0.001)
        space = FakeSpace({"threads": tuple(range(3, 17)), "cache_type_k": ("f16", "q8_0"), "ubatch_size": (128, 256, 512)})
        result = run(make_request(space, "memory://", budget_s=40.0, goals="latency", strategy="random"), measurer)
        return len(result.trials)

    searched = {gain: count_searched(gain) for gain in (1.0, 1.04, 1.6)}
    assert searched[1.04] < 0.8 * searched[1.6]
    assert searched[1.04] < 0.8 * searched[1.0]
