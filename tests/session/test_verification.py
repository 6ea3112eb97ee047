"""Verifying: default and best in turns, a verdict from their paired ratio, and what is no longer as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.builders.gguf_files import write_llama
from tests.builders.measurements import measured
from tests.builders.reports import DEFAULT, TUNED, report, side
from tuner.errors import BadInputError, ExitCode, NothingFeasibleError
from tuner.hardware import HardwareProfile, LimitFacts
from tuner.measure.record import Outcome, Plan
from tuner.model import read_model
from tuner.report import Gain
from tuner.runconfig import RunConfig
from tuner.session.guarding import MemoryRules
from tuner.session.tuning import guard_measured
from tuner.session.verification import MOST_ROUNDS, check_fit, compare_again, confirm_default
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


def test_what_the_machine_had_to_say_meanwhile_is_told_with_the_verdict() -> None:
    """Such as memory that an earlier run did not give back."""
    once = iter(["1 GiB did not come back"])

    class Noting(Measurer):
        def measure(self, config: RunConfig, workload: Workload, plan: Plan) -> Outcome:
            outcome = super().measure(config, workload, plan)
            return msgspec.structs.replace(outcome, notes=tuple(itertools.islice(once, 1)))

    answer = run(Noting(lambda config: 10.0 if is_default(config) else 5.0), notes=("the machine is busy",))
    assert answer.describe()[-2:] == ["note: the machine is busy", "note: 1 GiB did not come back"]


MIB = 2**20


@pytest.mark.parametrize(
    ("available", "compute", "refused", "asked"),
    [(1000, 900, False, 0), (20, 9, True, 1), (20, 2, False, 2), (20, None, False, 2), (8, 1, True, 0)],
    ids=["room enough", "llama.cpp needs more", "it needs little more", "it cannot say", "arithmetic suffices"],
)
def test_what_no_longer_fits_is_refused_by_llama_cpps_own_projection_too(
    tmp_path: Path, available: int, compute: int | None, refused: bool, asked: int
) -> None:
    """The check that tune makes before each run, with its sentence and its way round; nothing is measured."""
    spec = read_model(write_llama(tmp_path / "m.gguf"))
    machine = HardwareProfile(limits=LimitFacts(memory_available_bytes=available * MIB))
    small = report(baseline=side(DEFAULT.replace(ctx_size=4096)), best=DEFAULT.replace(ctx_size=4096, ubatch_size=256))
    projected: list[RunConfig] = []

    class Projecting(Measurer):
        def project_memory(self, config: RunConfig, *, front_end: str) -> dict[str, int] | None:
            projected.append(config)
            whole = {"weights CPU": 4 * MIB, "kv CPU": 8 * MIB}
            return None if compute is None else whole | {"compute CPU": compute * MIB}

    measurer = Projecting(lambda _: 10.0)
    find_misfit = guard_measured(measurer, (spec,), machine, MemoryRules(reserve_bytes=0), rpc=())
    if refused:
        with pytest.raises(BadInputError, match=r"does not fit here: .*KV cache.*--no-memory-check") as caught:
            check_fit(small, spec.path, find_misfit)
        assert caught.value.exit_code == ExitCode.BAD_INPUT
        assert ("compute buffers 9 MiB" in caught.value.message) == bool(asked)
    else:
        check_fit(small, spec.path, find_misfit)
    assert (len(projected), measurer.asked) == (asked, [])
