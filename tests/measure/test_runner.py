"""What becomes of samples: counted, repeated, set apart; and what a measurement says about itself."""

from __future__ import annotations

import pytest

from tests.faults.engines import SOUND
from tuner.errors import BadInputError, UsageError
from tuner.measure.record import Plan
from tuner.measure.runner import ChildMeasurer, measure_file
from tuner.measure.validity import ANYTHING, Tolerance
from tuner.workload import PRESETS

QUICK = PRESETS["quick"]


def open_measurer(engine: str, tolerance: Tolerance = ANYTHING) -> ChildMeasurer:
    return ChildMeasurer(f"tests.faults.engines:{engine}", time_limit_s=20, tolerance=tolerance)


def test_a_whole_plan_becomes_medians_over_raw_samples() -> None:
    """Every figure follows from the samples, and the workload's latency from the two medians."""
    with open_measurer("Honest") as measurer:
        outcome = measurer.measure(SOUND, QUICK, Plan(samples=4, decode_tokens=64))
    assert outcome.state == "complete"
    found = outcome.measurement
    assert found is not None
    assert (found.ttft_ms, found.tpot_ms, found.latency_ms) == (1.0, 0.5, 1.0 + 63 * 0.5)
    assert found.throughput_tps == pytest.approx(2000)
    assert found.throughput_total_tps == pytest.approx(64 / 0.0325)
    assert (found.memory_bytes, found.load_ms, found.decode_tokens, found.notes) == (1000, 2.0, 64, ())
    assert len(found.samples) == 4
    assert found.measured_s == outcome.measured_s == pytest.approx(4 * 0.0325)
    assert outcome.elapsed_s > 0


@pytest.mark.parametrize(
    ("plan", "known"),
    [
        (Plan(samples=2), {"ttft_ms"}),
        (Plan(samples=2, prefill=False, decode_tokens=32), {"tpot_ms", "throughput_tps"}),
        (
            Plan(samples=2, decode_tokens=32),
            {"ttft_ms", "tpot_ms", "latency_ms", "throughput_tps", "throughput_total_tps"},
        ),
    ],
)
def test_only_what_was_measured_has_a_figure(plan: Plan, known: set[str]) -> None:
    """None for the rest, never 0."""
    figures = ("ttft_ms", "tpot_ms", "latency_ms", "throughput_tps", "throughput_total_tps")
    with open_measurer("Honest") as measurer:
        found = measurer.measure(SOUND, QUICK, plan).measurement
    assert found is not None
    assert {name for name in figures if getattr(found, name) is not None} == known


def test_a_short_generation_is_not_ranked() -> None:
    """Nine tokens came where sixty-four were asked for: real tokens are counted, and the reader is told."""
    with open_measurer("StopsEarly") as measurer:
        found = measurer.measure(SOUND, QUICK, Plan(samples=2, decode_tokens=64)).measurement
    assert found is not None
    assert (found.decode_tokens, found.tpot_ms) == (9, 1.0)
    assert found.notes == (
        "the generation ended after 9 of 64 tokens",
        "fewer than 16 tokens were written: the decode figure is not ranked",
    )


def test_a_screening_run_says_that_it_was_short() -> None:
    """Sixteen tokens are ranked, with a note."""
    with open_measurer("Honest") as measurer:
        found = measurer.measure(SOUND, QUICK, Plan(samples=2, decode_tokens=16)).measurement
    assert found is not None
    assert found.notes == ("a short run: 16 of the workload's 64 tokens were written",)


def test_a_first_sample_far_slower_than_the_rest_is_set_apart_and_replaced() -> None:
    """It is evidence of a slow start, not of the point's speed."""
    with open_measurer("StartsSlowly") as measurer:
        found = measurer.measure(SOUND, QUICK, Plan(samples=3)).measurement
    assert found is not None
    assert len(found.samples) == 3
    assert found.ttft_ms is not None
    assert found.ttft_ms < 2
    assert [sample.ttft_ms for sample in found.discarded] == [50.0]
    assert "slow start: the first sample took" in found.notes[0]


def test_a_prompt_that_came_from_a_cache_does_not_count() -> None:
    """40 ms is the cold time, 1 ms is the cache's; the warm ones are discarded, and the point is noisy."""
    with open_measurer("CachesPrompts") as measurer:
        outcome = measurer.measure(SOUND, QUICK, Plan(samples=2, most_repeats=2))
    assert outcome.state == "noisy"
    assert "warm: 127 prompt tokens came from a cache" in outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.ttft_ms == 40.0
    assert len(outcome.measurement.discarded) == 3


def test_samples_that_stay_disturbed_make_a_noisy_point_with_its_evidence() -> None:
    """As many repeats as the plan allows, then the state is noisy and the figures are those of the disturbed samples."""
    refuses_all = Tolerance(most_steal=-1.0, most_swapped=-1)
    with open_measurer("TakesItsTime", refuses_all) as measurer:
        outcome = measurer.measure(SOUND, QUICK, Plan(samples=2, most_repeats=1))
    assert outcome.state == "noisy"
    assert outcome.reason.startswith("0 of 2 samples undisturbed after 2 disturbed ones: ")
    assert outcome.measurement is not None
    assert all(sample.disturbed for sample in outcome.measurement.samples)
    assert outcome.measurement.notes == (f"noisy: {outcome.reason}",)


def test_disturbed_samples_are_not_repeated_beyond_the_time_for_it() -> None:
    """A budget holds on a busy machine too: what there is makes a noisy point."""
    refuses_all = Tolerance(most_steal=-1.0, most_swapped=-1)
    with open_measurer("TakesItsTime", refuses_all) as measurer:
        outcome = measurer.measure(SOUND, QUICK, Plan(samples=2, most_repeats=3, repeats_s=0.0))
    assert outcome.reason.startswith("0 of 2 samples undisturbed after 1 disturbed ones: ")
    assert outcome.measurement is not None


def test_one_child_serves_many_points() -> None:
    """Nothing is rebuilt without need."""
    with open_measurer("Honest") as measurer:
        assert measurer.child_pid is None
        pids = set()
        for threads in (1, 2, 1):
            measurer.measure(SOUND.replace(threads=threads), QUICK, Plan(samples=1))
            pids.add(measurer.child_pid)
    assert len(pids) == 1


def test_a_closed_measurer_starts_anew_when_asked() -> None:
    """Closing gives everything back, twice over if need be."""
    measurer = open_measurer("Honest")
    assert measurer.measure(SOUND, QUICK, Plan(samples=1)).state == "complete"
    measurer.close()
    measurer.close()
    assert measurer.child_pid is None
    assert measurer.measure(SOUND, QUICK, Plan(samples=1)).state == "complete"
    measurer.close()


def test_an_engine_that_cannot_start_says_why() -> None:
    """As bad input, with the cause."""
    with open_measurer("CannotStart") as measurer, pytest.raises(BadInputError, match="undefined symbol"):
        measurer.describe_runtime()


def test_an_unknown_engine_is_refused_before_a_child_is_started() -> None:
    """With the names that exist."""
    with pytest.raises(UsageError, match="no engine 'llama-dot-cpp'"):
        ChildMeasurer("llama-dot-cpp")


def test_a_task_returns_plain_values_or_bad_input() -> None:
    """Side jobs of an engine go through the same child."""
    with open_measurer("Honest") as measurer:
        assert measurer.run_task("echo", {"type": "Q8_0", "n": [1, 2]}, limit_s=5) == {"type": "Q8_0", "n": [1, 2]}
        with pytest.raises(BadInputError, match="no task 'dance'"):
            measurer.run_task("dance", {}, limit_s=5)


def test_a_model_in_parts_is_granted_the_time_of_all_parts(tmp_path: object) -> None:
    """The first part's size times their number; a file that is not there needs none."""
    from pathlib import Path

    first = Path(str(tmp_path)) / "m-00001-of-00003.gguf"
    first.write_bytes(b"x" * 100)
    assert measure_file(str(first)) == 300
    assert measure_file(str(first) + "?") == measure_file("") == 0
