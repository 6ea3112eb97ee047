"""Proposed changes are tried in turns with the settings in question, and judged by what they brought."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.builders.measurements import measured
from tests.rules.builders import make_case
from tuner.measure.record import Outcome, Plan
from tuner.rules.base import Evidence, Expected, Finding
from tuner.runconfig import RunConfig
from tuner.session.trying import LEAST_ROUNDS, MOST_ROUNDS, Trier, judge_promise
from tuner.workload import Workload


class Table:
    """A measurer whose times are a function of point and run, on a clock that runs a second a measurement."""

    def __init__(self, tpot_ms: Callable[[RunConfig, int], float | None]) -> None:
        self.now = 0.0
        self.asked: list[tuple[RunConfig, Plan]] = []
        self._tpot_ms = tpot_ms

    def clock(self) -> float:
        return self.now

    def measure(self, config: RunConfig, workload: Workload, plan: Plan) -> Outcome:
        self.now += 1.0
        self.asked.append((config, plan))
        value = self._tpot_ms(config, len(self.asked))
        if value is None:
            return Outcome(state="crash", reason="it fell over")
        return Outcome(state="complete", measurement=measured(tpot_ms=value, config=config, workload=workload))

    def project_memory(self, config: RunConfig, *, front_end: str) -> None:
        """Not asked."""

    def close(self) -> None:
        """Nothing to close."""


def propose(change: dict[str, object], *, code: str = "DEC05", ratio: float = 2.0, metric: str = "tpot") -> Finding:
    return Finding(
        code=code,
        title="Too few threads write the answer.",
        severity="slows",
        evidence=(Evidence(what="threads", value=1, unit="threads", basis="measured"),),
        change=change,
        remedy="Set it.",
        expected=Expected(metric=metric, ratio=ratio, low=ratio * 0.9, high=ratio * 1.1),
    )


def run(table: Table, *findings: Finding, budget_s: float = 1000.0) -> tuple[tuple[Finding, ...], Trier]:
    trier = Trier(make_case(config={"threads": 1}), table, budget_s=budget_s, tell=lambda _: None, clock=table.clock)
    return trier.try_findings(findings), trier


def test_a_gain_is_measured_in_turns_and_told_with_its_interval() -> None:
    """Base and change take turns, and who begins changes from round to round."""
    table = Table(lambda config, n: (10.0 if config.threads == 1 else 5.0) * (1 + 0.001 * (n % 3)))
    (finding,), trier = run(table, propose({"threads": 4}))
    assert finding.measured is not None
    assert finding.measured.basis == "measured"
    assert finding.measured.low <= 2.0 <= finding.measured.high * 1.002
    assert [config.threads for config, _ in table.asked[:4]] == [1, 4, 4, 1]
    assert len(table.asked) == 2 * LEAST_ROUNDS
    assert trier.baseline is not None
    assert judge_promise(finding) == "kept its promise"


def test_only_the_phases_that_a_promise_speaks_of_are_run() -> None:
    table = Table(lambda _config, _n: 5.0)
    run(table, propose({"threads": 4}))
    assert {(plan.prefill, plan.decode_tokens > 0) for _, plan in table.asked} == {(False, True)}


def test_noise_goes_on_until_the_rounds_are_used_up() -> None:
    """A change that does nothing on a noisy machine is never called a gain (case 55)."""
    noise = (28.83, 28.1, 29.6, 28.2, 29.5, 28.79, 28.0, 29.7)
    table = Table(lambda _config, n: noise[n % len(noise)])
    (finding,), _ = run(table, propose({"threads": 4}))
    assert len(table.asked) <= 2 * MOST_ROUNDS
    assert "nothing that can be told from noise" in judge_promise(finding)


def test_a_change_that_does_not_run_is_told_and_not_repeated() -> None:
    table = Table(lambda config, _n: 10.0 if config.threads == 1 else None)
    (finding,), trier = run(table, propose({"threads": 4}))
    assert finding.measured is None
    assert trier.notes == ["the change of DEC05 does not run: it fell over"]
    assert sum(config.threads == 4 for config, _ in table.asked) == 1


def test_settings_in_question_that_do_not_run_end_it() -> None:
    table = Table(lambda _config, _n: None)
    (finding,), trier = run(table, propose({"threads": 4}))
    assert finding.measured is None
    assert "settings in question do not run" in trier.notes[0]
    assert (len(trier.notes), len(table.asked)) == (1, 1)


def test_what_there_is_no_time_for_is_left_untried_the_least_promising_first() -> None:
    table = Table(lambda config, _n: 10.0 if config.threads == 1 else 5.0)
    many = [propose({"threads": count}, code=f"DEC{count:02}") for count in (2, 3, 4, 5, 6, 7)]
    findings, _ = run(table, *many, budget_s=14.0)
    assert findings[0].measured is not None
    assert findings[-1].measured is None
    assert table.now <= 14.0


def test_where_not_even_one_change_can_be_tried_in_time_only_the_first_run_is_made() -> None:
    """Six runs of a second and the note says so; a budget that is kept matters more than a figure that proves nothing."""
    table = Table(lambda config, _n: 10.0 if config.threads == 1 else 5.0)
    (finding,), trier = run(table, propose({"threads": 4}), budget_s=3.5)
    assert finding.measured is None
    assert table.now == 1.0
    assert "one run takes about 1.0s, so give it --budget 10s" in trier.notes[0]


def test_findings_without_a_change_pass_through() -> None:
    hint = msgspec.structs.replace(propose({}), severity="hint")
    table = Table(lambda _config, _n: 5.0)
    assert run(table, hint)[0] == (hint,)
    assert table.asked == []


@pytest.mark.parametrize(
    ("measured_at", "said"),
    [
        ((1.9, 1.8, 2.0), "kept its promise"),
        ((1.5, 1.45, 1.55), "less than was said, but a gain"),
        ((2.6, 2.5, 2.7), "more than was said"),
        ((1.01, 0.98, 1.04), "nothing that can be told from noise"),
        ((0.8, 0.75, 0.85), "made it worse"),
    ],
)
def test_a_promise_is_judged_by_both_intervals(measured_at: tuple[float, float, float], said: str) -> None:
    ratio, low, high = measured_at
    tried = msgspec.structs.replace(
        propose({"threads": 4}), measured=Expected(metric="tpot", ratio=ratio, low=low, high=high, basis="measured")
    )
    assert said in judge_promise(tried)


def test_what_was_not_tried_is_not_judged() -> None:
    assert judge_promise(propose({"threads": 4})) == ""
