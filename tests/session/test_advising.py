"""A tune's report tells what the checklist says of the default, with the study's own figures where it tried the change."""

from __future__ import annotations

import pytest

from tests.builders.measurements import measured
from tests.rules.builders import TURN, make_case
from tuner.measure.record import Outcome
from tuner.rules.base import Evidence, Expected, Finding
from tuner.rules.points import change_point
from tuner.runconfig import RunConfig
from tuner.session.advising import compare_findings
from tuner.trial import Trial

CASE = make_case(config={"threads": 1})


def trial(config: RunConfig, tpot_ms: float, *, number: int = 0, samples: int = 5, **changes) -> Trial:
    figures = measured(tpot_ms=tpot_ms, config=config, workload=TURN, samples=samples)
    given = {"number": number, "stage": "search", "config": config, "state": "complete"}
    return Trial(outcome=Outcome(state="complete", measurement=figures), **(given | changes))


def finding(change: dict[str, object], metric: str = "tpot") -> Finding:
    return Finding(
        code="DEC05",
        title="Too few threads write the answer.",
        severity="slows",
        evidence=(Evidence(what="threads", value=1, unit="threads", basis="measured"),),
        change=change,
        remedy="Set threads to 4.",
        expected=Expected(metric=metric, ratio=2.0, low=1.8, high=2.2),
    )


@pytest.mark.parametrize(("metric", "ratio"), [("tpot", 2.0), ("latency", (100 + 127 * 10) / (100 + 127 * 5)), ("ttft", 1.0)])
def test_a_change_that_the_study_ran_is_told_with_its_gain(metric: str, ratio: float) -> None:
    """In the metric that the finding speaks of, from samples at full length."""
    fast = change_point(CASE, {"threads": 4})
    (found,) = compare_findings(CASE, [finding({"threads": 4}, metric)], [trial(CASE.config, 10.0), trial(fast, 5.0)])
    assert found.measured is not None
    assert found.measured.basis == "measured"
    assert found.measured.ratio == pytest.approx(ratio)
    assert found.measured.low <= found.measured.ratio <= found.measured.high


def test_what_the_study_did_not_run_stays_unmeasured() -> None:
    other = change_point(CASE, {"threads": 6})
    (found,) = compare_findings(CASE, [finding({"threads": 4})], [trial(CASE.config, 10.0), trial(other, 5.0)])
    assert found.measured is None


@pytest.mark.parametrize("changes", [{"samples": 2}, {"state": "duplicate"}])
def test_too_few_samples_and_repetitions_prove_nothing(changes: dict[str, object]) -> None:
    fast = change_point(CASE, {"threads": 4})
    (found,) = compare_findings(CASE, [finding({"threads": 4})], [trial(CASE.config, 10.0), trial(fast, 5.0, **changes)])
    assert found.measured is None


def test_a_hint_without_a_change_stays_as_it_is() -> None:
    hint = finding({})
    assert compare_findings(CASE, [hint], [trial(CASE.config, 10.0)]) == (hint,)
