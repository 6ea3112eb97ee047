"""From a study's result to the report: every figure is the study's own, and nothing secret gets in."""

from __future__ import annotations

import math

import pytest

from tests.builders.measurements import measured
from tests.builders.reports import DEFAULT, TUNED
from tuner.hardware import HardwareProfile
from tuner.hardware.record import GpuFacts, LimitFacts
from tuner.measure.record import Outcome
from tuner.objective import parse_limit
from tuner.report import ModelNote, Report
from tuner.report.build import build_report, build_side, hide_password
from tuner.space import SearchSpace
from tuner.study.request import KeyFacts, StudyRequest
from tuner.study.result import Gain, StudyResult
from tuner.trial import Trial
from tuner.workload import PRESETS

NOTES = tuple(ModelNote(path=f"/{name}.gguf", name=name, quant="Q", bytes=1, sha256=name) for name in "ab")
SPACE = SearchSpace(
    name="x", domains={}, absent={}, fixed={}, baseline=DEFAULT, facts={}, refusal_facts={}, affects={}, costs={}
)


def trial(number: int, config, *, state: str = "complete", ttft_ms: float = 100.0) -> Trial:
    outcome = Outcome(state="complete", measurement=measured(config=config, ttft_ms=ttft_ms)) if state == "complete" else None
    return Trial(number=number, stage="search", config=config, state=state, outcome=outcome)


def build(**changes) -> Report:
    default, best = DEFAULT.replace(model="/a.gguf"), TUNED.replace(model="/b.gguf")
    trials = (trial(0, default, ttft_ms=200.0), trial(1, best), trial(2, best, state="crash"))
    fields = {
        "baseline": trials[0],
        "best": trials[1],
        "gain": Gain(metric="ttft", ratio=2.0, low=1.9, high=2.1, significant=True, rounds=5),
        "per_model": trials[:2],
        "trials": trials,
        "elapsed_s": 10.0,
        "measured_s": 7.0,
        "stop_reason": "budget used",
        "study_name": "s-1",
        "storage": "postgresql://me:secret@host/db",
    }
    request = StudyRequest(
        workload=PRESETS["quick"],
        goals=("ttft", "tpot"),
        limits=(parse_limit("memory<=1GiB"),),
        space=SPACE,
        facts=KeyFacts(models=("a",), engine="e", llama_cpp="", machine="m"),
        seed=7,
    )
    machine = HardwareProfile(
        fingerprint="f", summary="s", gpus=(GpuFacts(index=0, driver="550"),), limits=LimitFacts(usable_threads=3)
    )
    return build_report(StudyResult(**(fields | changes)), request, machine=machine, models=NOTES, notes=("busy",))


def test_the_study_is_told_as_it_was() -> None:
    report = build()
    assert (report.baseline.ttft_ms, report.best.ttft_ms) == (200.0, 100.0)
    assert (report.gain.ratio, report.gain.ci95, report.gain.rounds) == (2.0, (1.9, 2.1), 5)
    assert (report.objective, report.limits, report.seed) == ("ttft,tpot", ("memory<=1GiB",), 7)
    assert (report.trials["complete"], report.trials["crash"], report.trials["timeout"]) == (2, 1, 0)
    assert (report.machine.driver, report.machine.usable_threads) == ("550", 3)
    assert report.notes == ("busy", "the search ended: budget used")


def test_the_model_is_the_one_that_the_best_runs() -> None:
    report = build()
    assert report.model.name == "b"
    assert [each.model.name for each in report.files] == ["a", "b"]


def test_an_interval_without_bounds_is_none() -> None:
    report = build(gain=Gain(metric="ttft", ratio=1.2, low=0.0, high=math.inf, significant=False, rounds=1))
    assert report.gain.ci95 is None


def test_an_answer_without_figures_is_a_fault() -> None:
    with pytest.raises(ValueError, match="no figures"):
        build(best=trial(2, TUNED, state="crash"))


def test_flash_attention_is_told_as_llama_cpp_settled_it() -> None:
    assert build_side(measured(config=TUNED.replace(flash_attn="auto"))).config.flash_attn == "on"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("mysql+pymysql://u:p%40ss@h:1/d", "mysql+pymysql://u:***@h:1/d"),
        ("sqlite:///results/studies.db", "sqlite:///results/studies.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_passwords_are_hidden(url: str, shown: str) -> None:
    assert hide_password(url) == shown
    assert "secret" not in build().storage
