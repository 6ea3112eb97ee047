"""What a whole study does with a machine whose costs are known."""

# ruff: noqa: ARG005

from __future__ import annotations

import itertools

import pytest

from tests.study.fakes import FakeMeasurer, FakeSpace, cost_of, failing, make_request, run
from tuner.errors import NothingFeasibleError
from tuner.runconfig import RunConfig
from tuner.study.events import (
    BestChanged,
    Note,
    Progress,
    RoundFinished,
    StageStarted,
    StudyFinished,
    TrialFinished,
    TrialStarted,
)
from tuner.trial import count_states

MEMORY = "memory://"
WIDE = {
    "threads": (1, 2, 3, 4, 6, 8, 12),
    "threads_batch": (1, 2, 3, 4, 6, 8, 12),
    "flash_attn": ("on", "off"),
    "cache_type_k": ("f16", "q8_0"),
    "cache_type_v": ("f16", "q8_0"),
    "batch_size": (512, 1024, 2048),
    "ubatch_size": (64, 128, 256, 512, 1024),
}
SIX = {"threads": (2, 4, 6), "flash_attn": ("on", "off")}


def refuse(config):
    return "a quantised V cache needs flash attention" if config.cache_type_v != "f16" and config.flash_attn == "off" else None


def wide():
    return FakeSpace(WIDE, refuse=refuse)


def value_of(config, goal="latency"):
    ttft, tpot = cost_of(config)
    return {"ttft": ttft, "tpot": tpot, "latency": ttft + 63 * tpot}[goal]


@pytest.mark.parametrize("goal", ["ttft", "tpot", "latency"])
def test_physics_finds_a_point_near_the_optimum(goal):
    """Within 3 % of the best of the full grid, in under a tenth of its points."""
    space = wide()
    result = run(make_request(space, MEMORY, goals=goal), FakeMeasurer(noise=0.005))
    grid = space.every()
    assert value_of(result.best.config, goal) <= 1.03 * min(value_of(config, goal) for config in grid)
    assert result.gain.significant
    assert len(result.trials) < len(grid) / 10


def test_physics_needs_a_third_of_the_points_of_random():
    """Points tried until one lies within 1 % of the optimum; random search needs (N + 1) / (k + 1) of N with k such points."""
    space = wide()
    grid = [value_of(config) for config in space.every()]
    target = 1.01 * min(grid)
    by_chance = (len(grid) + 1) / (1 + sum(value <= target for value in grid))

    def count(seed):
        result = run(make_request(space, MEMORY, goals="latency", seed=seed), FakeMeasurer(noise=0.005, seed=seed))
        tried = [trial for trial in result.trials if trial.state == "complete"]
        return next(index for index, trial in enumerate(tried, 1) if value_of(trial.config) <= target)

    assert sum(count(seed) for seed in range(3)) / 3 <= by_chance / 3


@pytest.mark.parametrize("strategy", ["tpe", "random"])
def test_controls_run_over_the_whole_space(strategy):
    """Optuna's own samplers find a gain too."""
    result = run(make_request(wide(), MEMORY, goals="latency", strategy=strategy, trials=25))
    assert result.stop_reason == "all 25 trials used"
    assert result.gain.ratio > 1.03


@pytest.mark.parametrize("strategy", ["tpe", "random"])
def test_a_space_of_six_points_is_exhausted_after_six_runs(strategy):
    """Twenty trials over six valid points are six measurements; repeats are told as duplicates."""
    measurer = FakeMeasurer()
    result = run(make_request(FakeSpace(SIX), MEMORY, strategy=strategy, trials=20), measurer)
    assert result.stop_reason == "space exhausted"
    searched = [config for config, _ in itertools.groupby(config for config, plan in measurer.runs if not plan.fresh)]
    assert len(searched) == len(set(searched)) == 6
    assert count_states(result.trials)["complete"] == 6


def test_duplicates_carry_the_known_figures():
    result = run(make_request(FakeSpace(SIX), MEMORY, strategy="random", trials=20))
    known = {trial.config: trial.score for trial in result.trials if trial.state == "complete"}
    duplicates = [trial for trial in result.trials if trial.state == "duplicate"]
    assert duplicates
    assert all(trial.score == known[trial.config] for trial in duplicates)


def test_clamped_twins_are_one_point():
    """n_ubatch above n_batch runs as n_batch."""
    space = FakeSpace(
        {"ubatch_size": (512, 1024, 2048), "threads": (4, 6)},
        baseline=RunConfig(model="/m/a.gguf", threads=4, batch_size=512, ctx_size=4096),
    )
    measurer = FakeMeasurer()
    run(make_request(space, MEMORY, strategy="random", trials=20), measurer)
    assert len({config for config, _ in measurer.runs}) == 2


def test_default_that_is_best_is_kept():
    """The best prefill chunk may well be the default."""
    space = FakeSpace(
        {"ubatch_size": (64, 128, 256, 512, 1024)},
        baseline=RunConfig(model="/m/a.gguf", threads=4, threads_batch=8, ubatch_size=256, ctx_size=4096),
    )
    result = run(make_request(space, MEMORY, goals="ttft"), FakeMeasurer(noise=0.003))
    assert result.best.config == result.baseline.config
    assert not result.gain.significant


def test_settings_without_effect_keep_their_default():
    """For tpot nothing that only prefill feels is tried, and nothing without effect is changed."""
    result = run(make_request(wide(), MEMORY, goals="tpot"))
    default = result.baseline.config
    assert {trial.config.ubatch_size for trial in result.trials} == {default.ubatch_size}
    assert result.best.config == default.replace(threads=6)


def test_the_default_is_trial_zero():
    result = run(make_request(wide(), MEMORY, trials=3))
    assert result.trials[0].number == result.baseline.number == 0
    assert result.trials[0].stage == "baseline"


@pytest.mark.parametrize("state", ["crash", "timeout", "invalid"])
def test_failed_baseline_stops_at_once_with_the_cause(state):
    measurer = FakeMeasurer(respond=lambda config, plan: failing(state, "it says no"))
    with pytest.raises(NothingFeasibleError, match="it says no"):
        run(make_request(wide(), MEMORY), measurer)
    assert len(measurer.runs) == 1


def test_baseline_out_of_memory_is_tried_once_with_less_context():
    space = FakeSpace({"ctx_size": (512, 1024, 2048, 4096), "threads": (4, 6)})
    measurer = FakeMeasurer(respond=lambda config, plan: failing("out_of_memory") if config.ctx_size > 2048 else None)
    events = []
    result = run(make_request(space, MEMORY), measurer, events=events)
    assert result.baseline.config.ctx_size == 2048
    assert [config.ctx_size for config, _ in measurer.runs[:2]] == [4096, 2048]
    assert any("does not fit" in event.text for event in events if isinstance(event, Note))


def test_baseline_that_never_fits_stops_after_one_retry():
    space = FakeSpace({"ctx_size": (512, 1024, 2048, 4096), "threads": (4, 6)})
    measurer = FakeMeasurer(respond=lambda config, plan: failing("out_of_memory", "no memory"))
    with pytest.raises(NothingFeasibleError, match="no memory"):
        run(make_request(space, MEMORY), measurer)
    assert len(measurer.runs) == 2


def test_five_failures_in_a_row_end_the_search():
    """Nothing but the default runs: the search gives up and the default stays."""
    default = FakeSpace({}).baseline
    measurer = FakeMeasurer(respond=lambda config, plan: None if config.threads == 4 else failing("crash", "boom"))
    result = run(
        make_request(FakeSpace({"threads": tuple(range(1, 30))}, baseline=default), MEMORY, strategy="random"), measurer
    )
    assert result.stop_reason == "5 runs in a row failed"
    assert result.best.config.threads == 4
    assert any("boom" in note for note in result.notes)


def test_a_failed_point_is_never_run_again():
    measurer = FakeMeasurer(respond=lambda config, plan: failing("crash", "boom") if config.threads == 6 else None)
    run(make_request(FakeSpace({"threads": (2, 4, 6)}), MEMORY, strategy="random", trials=20), measurer)
    assert sum(config.threads == 6 for config, _ in measurer.runs) == 1


def test_what_is_larger_than_a_misfit_is_not_run():
    """One context too large: the larger ones are told so without a run."""
    space = FakeSpace({"ctx_size": (4096, 8192, 16384, 32768), "threads": (4, 6)})
    measurer = FakeMeasurer(respond=lambda config, plan: failing("out_of_memory") if config.ctx_size > 4096 else None)
    result = run(make_request(space, MEMORY, strategy="random", trials=30), measurer)
    too_large = [config.ctx_size for config, _ in measurer.runs if config.ctx_size > 4096]
    assert len(too_large) < 3 * 2
    told = {trial.config for trial in result.trials if trial.state == "does_not_fit"}
    assert len(told) + len(too_large) == 6


def test_misfits_and_refusals_are_told_without_a_run():
    measurer = FakeMeasurer()
    result = run(
        make_request(wide(), MEMORY, strategy="random", trials=40),
        measurer,
        misfit=lambda config: "needs 9 GiB, has 8 GiB" if config.batch_size == 1024 else None,
    )
    states = count_states(result.trials)
    assert states["does_not_fit"]
    assert states["invalid"]
    assert not any(config.batch_size == 1024 or refuse(config) for config, _ in measurer.runs)
    assert all(trial.reason for trial in result.trials if trial.state in {"invalid", "does_not_fit"})


def test_nothing_feasible_names_the_closest_miss():
    with pytest.raises(NothingFeasibleError, match=r"has .* ms where tpot<=5ms is asked"):
        run(make_request(wide(), MEMORY, goals="ttft", limits=("tpot<=5ms",), trials=10))


def test_limits_come_before_the_goal():
    """More context is better, and the answer keeps the memory limit all the same."""
    space = FakeSpace({"ctx_size": (1024, 2048, 4096, 8192, 16384), "threads": (4, 6)})
    result = run(make_request(space, MEMORY, goals="context", limits=("memory<=9MB",)))
    assert result.best.config.ctx_size == 8192
    assert result.gain.ratio == 2.0
    assert result.gain.significant


def test_an_infeasible_default_gives_way_to_a_feasible_point():
    result = run(make_request(wide(), MEMORY, goals="ttft", limits=("tpot<=21ms",)), FakeMeasurer(noise=0.002))
    assert result.baseline.score is not None
    assert not result.baseline.score.is_feasible
    assert result.best.score is not None
    assert result.best.score.is_feasible


def test_several_goals_give_a_front():
    """Decode likes q8_0 not at all here, so the front has the best of each goal and nothing dominated."""
    result = run(make_request(wide(), MEMORY, goals="ttft,tpot"))
    values = [trial.score.values for trial in result.pareto]
    assert values
    assert not any(a[0] < b[0] and a[1] < b[1] for a in values for b in values)


MODELS = {
    "model": ("/m/a.gguf", "/m/b.gguf"),
    "threads": (2, 3, 4, 6, 8, 12),
    "flash_attn": ("on", "off"),
    "cache_type_k": ("f16", "q8_0"),
}


def test_the_most_precise_file_stays_best_unless_quality_may_be_lost():
    result = run(make_request(FakeSpace(MODELS), MEMORY))
    assert result.best.config.model == "/m/a.gguf"
    assert [trial.config.model for trial in result.per_model] == ["/m/a.gguf", "/m/b.gguf"]
    assert {trial.config.threads for trial in result.per_model} == {6}


def test_a_smaller_file_wins_where_quality_may_be_lost():
    result = run(make_request(FakeSpace(MODELS), MEMORY, allow_quality_loss=True))
    assert result.best.config.model == "/m/b.gguf"
    assert result.gain.ratio > 1.4


def test_a_drifting_machine_is_noted_and_does_not_fool_the_search():
    """The clock decays by 30 % early in the screen: the optimum is found all the same."""
    space = FakeSpace(
        {"threads": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16), "cache_type_k": ("f16", "q8_0"), "flash_attn": ("on", "off")}
    )
    measurer = FakeMeasurer(noise=0.003, drift=lambda count: 1.0 if count < 14 else 1.3)
    result = run(make_request(space, MEMORY), measurer)
    told = [note for note in result.notes if "slower" in note]
    assert told
    assert all("let the machine cool down, and go on with --resume" in note for note in told)
    assert result.best.config.threads in {5, 6, 7}


def test_budget_holds_and_leaves_time_to_confirm():
    measurer = FakeMeasurer()
    result = run(make_request(wide(), MEMORY, goals="latency", budget_s=60.0), measurer)
    assert measurer.clock.now <= 66.0
    assert result.gain.rounds >= 3


def test_most_of_the_time_is_measured():
    result = run(make_request(wide(), MEMORY, goals="latency"))
    assert 0.6 <= result.measured_s / result.elapsed_s <= 1.0


def test_events_tell_the_whole_story():
    events = []
    result = run(make_request(wide(), MEMORY, goals="latency"), events=events)
    assert [event.stage for event in events if isinstance(event, StageStarted)] == ["baseline", "screen", "search", "confirm"]
    started = {event.number for event in events if isinstance(event, TrialStarted)}
    finished = {event.trial.number for event in events if isinstance(event, TrialFinished)}
    assert started <= finished
    for kind in (BestChanged, Progress, RoundFinished):
        assert any(isinstance(event, kind) for event in events)
    assert isinstance(events[-1], StudyFinished)
    assert events[-1].result == result


def test_a_model_that_vanishes_is_told_and_what_was_measured_is_kept(storage):
    """Every run fails from some point on: no verdict is invented."""
    from tuner.study.storage import read_studies

    measurer = FakeMeasurer()
    measurer._respond = lambda config, plan: failing("invalid", "the file is gone") if len(measurer.runs) > 11 else None
    with pytest.raises(NothingFeasibleError, match="the file is gone"):
        run(make_request(wide(), storage), measurer)
    (study,) = read_studies(storage)
    assert study.complete >= 4
    assert study.state == "interrupted"


def test_noisy_figures_count_with_their_state():
    """On a machine that is never quiet there is an answer all the same."""
    quiet = FakeMeasurer()

    def respond(config, plan):
        import msgspec

        outcome = quiet.measure(config, make_request(wide(), MEMORY).workload, plan)
        return msgspec.structs.replace(outcome, state="noisy", reason="other programs were busy")

    result = run(make_request(wide(), MEMORY), FakeMeasurer(respond=respond))
    assert result.best.config.threads == 6
    assert count_states(result.trials)["noisy"] > 0
