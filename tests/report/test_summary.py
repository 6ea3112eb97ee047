"""The words of a report: the verdict first, numbers with units and depth, nothing better than it is."""

from __future__ import annotations

import io
import itertools
import shlex

import pytest
from rich.console import Console

from tests.builders.reports import DEFAULT, TUNED, report, side
from tuner.engines.base import RuntimeFacts
from tuner.report import Gain
from tuner.report.summary import build_measure_command, describe_verdict, find_changes, find_missed_limits, render_summary
from tuner.runconfig import RunConfig
from tuner.trial import STATES
from tuner.workload import PRESETS, Workload


def gain(
    metric: str = "latency", ratio: float = 2.1, low: float = 1.95, high: float = 2.26, *, significant: bool = True
) -> Gain:
    return Gain(metric=metric, ratio=ratio, ci95=(low, high), significant=significant, rounds=6)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("ttft", "First token 2.10× sooner than the default [1.95, 2.26]."),
        ("tpot", "Every further token 2.10× faster than the default [1.95, 2.26]."),
        ("latency", "The whole answer 2.10× sooner than the default [1.95, 2.26]."),
        ("throughput", "2.10× more tokens per second than the default [1.95, 2.26]."),
    ],
)
def test_a_gain_is_told_with_its_interval(metric: str, words: str) -> None:
    assert describe_verdict(report(gain=gain(metric))) == words


def test_a_gain_that_ran_out_of_budget_is_not_called_none() -> None:
    """What looked far better in too few rounds is undecided, which differs from no gain."""
    cut = Gain(metric="tpot", ratio=2.73, ci95=None, significant=False, rounds=1)
    words = describe_verdict(report(best=DEFAULT, gain=cut))
    assert words.startswith(
        "Not decided: the best of the search was every further token 2.73× faster than the default in one round"
    )
    assert "--budget" in words


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("ttft", "first token 1.25× later"),
        ("tpot", "every further token 1.25× slower"),
        ("latency", "the whole answer 1.25× later"),
        ("throughput", "1.25× fewer tokens per second"),
        ("context", "1.25× less context"),
    ],
)
def test_what_is_worse_is_called_so(metric: str, words: str) -> None:
    """With the interval seen from the same side; a limit may be worth it."""
    loss = gain(metric, 0.8, 0.5, 0.9, significant=False)
    assert f"{words} than the default [1.11, 2.00]" in describe_verdict(report(limits=("tpot<=6ms",), gain=loss))


def test_every_state_of_a_trial_is_explained_where_it_is_counted() -> None:
    """Whoever reads "8 invalid" did nothing wrong."""
    counts = {state: 1 for state in STATES if state not in {"running", "complete"}}
    text = " ".join(draw(report(trials=counts)).split())
    for state in counts:
        assert f"1 {state.replace('_', ' ')} (" in text


def test_the_default_may_win() -> None:
    tie = report(best=DEFAULT, gain=gain(ratio=1.0, low=0.99, high=1.01, significant=False))
    assert "default is already best" in describe_verdict(tie)


def test_a_search_that_tried_nothing_does_not_praise_the_default() -> None:
    alone = report(best=DEFAULT, gain=gain(ratio=1.0, significant=False), trials={"complete": 1, "does_not_fit": 7})
    assert describe_verdict(alone).startswith("Only the default was measured")


def test_a_difference_inside_the_noise_is_none() -> None:
    """28.83 against 28.79 tok/s with 3 % spread."""
    noise = report(gain=gain("throughput", 1.0014, 0.97, 1.03, significant=False))
    assert describe_verdict(noise).startswith("No significant difference")


def test_a_default_that_misses_a_limit_is_said_so() -> None:
    tight = report(limits=("tpot<=6ms",), gain=gain(ratio=0.8, low=0.7, high=0.9, significant=False))
    assert "The default misses tpot<=6ms" in describe_verdict(tight)


@pytest.mark.parametrize(
    ("limit", "missed"),
    [("tpot<=10ms", False), ("tpot<=9ms", True), ("memory<=100MiB", True), ("ctx_size>=512", False), ("ctx_size>=1k", True),
     ("throughput>=101", True)],
)  # fmt: skip
def test_limits_are_looked_at(limit: str, missed: bool) -> None:
    assert bool(find_missed_limits(side(DEFAULT), (limit,))) is missed


def test_changes_are_found_by_name() -> None:
    changes = find_changes(DEFAULT, TUNED)
    assert changes["ubatch_size"] == (512, 256)
    assert set(changes) == {"ubatch_size", "threads", "threads_batch", "flash_attn", "cache_type_k"}


def test_the_summary_names_depth_units_and_changes() -> None:
    text = draw(report(workload=PRESETS["chat"], notes=("the machine was busy",), pareto=(side(TUNED), side(DEFAULT))))
    for part in (
        "Measured",
        "(TTFT) @ depth 2048",
        "(TPOT) @ depth 2560",
        "200 ms",
        "2.00× faster",
        "2.00× more",
        "200 MiB",
        "ubatch_size",
        "the machine was busy",
        "67 %",
    ):
        assert part in text, part


def test_where_the_default_is_best_its_figures_stand_alone() -> None:
    """Two equal columns would look as if two things had been compared."""
    text = draw(report(best=DEFAULT, baseline=side(DEFAULT), gain=gain(ratio=1.0, significant=False)))
    assert "200 ms" in text
    assert "best is" not in text
    heads = next(line for line in text.splitlines() if "default" in line and "┃" in line)
    assert heads.strip("┃ ").split() == ["default"]


def test_a_phase_that_was_not_measured_has_no_row() -> None:
    assert "TTFT" not in draw(report(baseline=_decode_only(), best=_decode_only()))


def test_the_command_measures_the_same_point() -> None:
    command = build_measure_command(report())
    assert command is not None
    assert command.startswith("rooftune measure '/models/smol lm2.gguf' --workload quick")
    assert "--set ubatch_size=256" in command
    assert "--set flash_attn=off" in command


def test_the_command_sets_every_setting_to_the_same_value() -> None:
    from tuner.space import apply_settings, parse_settings

    best = TUNED.replace(n_gpu_layers=31, tensor_split=(3.0, 1.0), split_mode="row", load_mode="mmap+mlock", op_offload=False)
    words = shlex.split(build_measure_command(report(best=best)) or "")
    given = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
    assert apply_settings(RunConfig(), parse_settings(given)) == best


def test_simulated_figures_are_not_called_measured() -> None:
    runtime = RuntimeFacts(engine="simulated", version="1", llama_cpp="")
    text = draw(report(runtime=runtime))
    assert "Simulated" in text
    assert "easured" not in text


def test_a_workload_of_ones_own_has_no_such_command() -> None:
    assert build_measure_command(report(workload=Workload(name="quick", prompt_tokens=1, output_tokens=2))) is None


def _decode_only():
    from tuner.report import Side

    return Side(config=TUNED, ttft_ms=None, tpot_ms=5.0, latency_ms=None, throughput_tps=200.0, memory_bytes=1)


def draw(tuned) -> str:
    console = Console(file=io.StringIO(), width=120, markup=False)
    console.print(*render_summary(tuned), sep="\n")
    return console.file.getvalue()
