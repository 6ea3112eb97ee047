"""Verifying: default and best in turns, a verdict from their paired ratio, and what is no longer as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.builders.measurements import measured
from tests.builders.reports import DEFAULT, TUNED, report
from tuner.errors import NothingFeasibleError
from tuner.measure.record import Outcome, Plan
from tuner.report import Gain
from tuner.runconfig import RunConfig
from tuner.session.verification import MOST_ROUNDS, compare_again, confirm_default
from tuner.workload import Workload

NONE = Gain(metric="latency", ratio=1.0, ci95=(0.99, 1.01), significant=False, rounds=5)


class Measurer:
    """Answers with given times and remembers what was asked."""

    def __init__(self, times: Callable[[RunConfig], float | Outcome]) -> None:
        self.times, self.asked, self.plans = times, [], []

    def measure(self, config: RunConfig, workload: Workload, plan: Plan) -> Outcome:
        self.asked.append(config)
        self.plans.append(plan)
        answer = self.times(config)
        if isinstance(answer, Outcome):
            return answer
        return Outcome(
            state="complete", measurement=measured(config=config, workload=workload, ttft_ms=10 * answer, tpot_ms=answer)
        )

    def project_memory(self, config: RunConfig, *, front_end: str) -> None:
        return None

    def close(self) -> None:
        pass


def is_default(config: RunConfig) -> bool:
    return config.ubatch_size == DEFAULT.ubatch_size


def run(measurer: Measurer, tuned=None, budget_s: float = 1e9, **more):
    tuned = tuned or report()
    ticks = itertools.count()
    return compare_again(
        tuned,
        measurer=measurer,
        model="/m.gguf",
        budget_s=budget_s,
        tell=lambda _: None,
        clock=lambda: float(next(ticks)),
        **more,
    )


def test_a_gain_that_is_there_holds() -> None:
    wobble = itertools.cycle([1.0, 1.01, 0.99])
    answer = run(Measurer(lambda config: next(wobble) * (10.0 if is_default(config) else 5.0)))
    assert answer.holds
    assert answer.gain.ratio == pytest.approx(2.0, rel=0.02)
    assert "The gain holds" in answer.verdict


def test_a_gain_that_is_gone_is_said_so() -> None:
    wobble = itertools.cycle([1.0, 1.02, 0.98, 1.01])
    answer = run(Measurer(lambda _: 10.0 * next(wobble)))
    assert not answer.holds
    assert "The gain is gone" in answer.verdict
    assert "2.00×" in answer.verdict


def test_the_two_take_turns_in_going_first_on_fresh_contexts() -> None:
    measurer = Measurer(lambda config: 10.0 if is_default(config) else 5.0)
    run(measurer)
    firsts = [is_default(config) for config in measurer.asked]
    assert firsts[:8] == [True, False, False, True, True, False, False, True]
    assert all(plan.fresh for plan in measurer.plans)
    assert {config.model for config in measurer.asked} == {"/m.gguf"}


def test_rounds_end_when_the_ratio_is_settled_or_the_budget_gone() -> None:
    settled = Measurer(lambda config: 10.0 if is_default(config) else 5.0)
    assert run(settled).gain.rounds == 5
    wobble = itertools.cycle([1.0, 1.6, 0.7, 1.2, 0.5])
    restless = Measurer(lambda config: next(wobble) * (10.0 if is_default(config) else 5.0))
    assert run(restless).gain.rounds == MOST_ROUNDS
    assert run(Measurer(settled.times), budget_s=0.5).gain.rounds == 3


def test_a_limit_that_is_no_longer_kept_fails() -> None:
    answer = run(Measurer(lambda config: 10.0 if is_default(config) else 6.0), report(limits=("tpot<=5.5ms",)))
    assert not answer.holds
    assert "tpot<=5.5ms" in answer.verdict


def test_a_result_without_a_gain_needs_none() -> None:
    """A configuration chosen for its limits, or a tie, only has to run and keep them."""
    assert run(Measurer(lambda _: 10.0), report(gain=NONE)).holds


def test_a_best_that_crashes_fails_and_says_why() -> None:
    crash = Outcome(state="crash", reason="llama.cpp aborted")
    answer = run(Measurer(lambda config: 10.0 if is_default(config) else crash))
    assert not answer.holds
    assert "llama.cpp aborted" in answer.verdict


def test_a_default_that_does_not_run_leaves_nothing_to_compare() -> None:
    with pytest.raises(NothingFeasibleError, match="no memory"):
        run(Measurer(lambda _: Outcome(state="out_of_memory", reason="no memory")))


def test_a_throughput_gain_is_read_the_right_way_round() -> None:
    gain = Gain(metric="throughput", ratio=2.0, ci95=(1.9, 2.1), significant=True, rounds=5)
    answer = run(Measurer(lambda config: 10.0 if is_default(config) else 5.0), report(objective="throughput", gain=gain))
    assert answer.holds
    assert answer.gain.ratio == pytest.approx(2.0)


def test_only_the_phases_that_count_are_measured() -> None:
    measurer = Measurer(lambda config: 10.0 if is_default(config) else 5.0)
    run(measurer, report(objective="ttft"))
    assert {(plan.prefill, plan.decode_tokens) for plan in measurer.plans} == {(True, 0)}


def test_what_changed_is_told() -> None:
    answer = run(Measurer(lambda config: 10.0 if is_default(config) else 5.0), changed=("llama.cpp was b1 and is b2",))
    assert "changed since: llama.cpp was b1 and is b2" in answer.describe()
    assert "nothing that matters has changed since" in confirm_default(report(best=DEFAULT)).describe()


def test_the_tuned_point_differs_from_the_default() -> None:
    """Guards the other tests: they tell the two apart by one setting."""
    assert not is_default(TUNED)
