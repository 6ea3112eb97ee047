"""The presets that are shipped can be searched by every strategy, with and without a GPU."""

from __future__ import annotations

import pytest

from tests.builders.situations import make_machine, make_situation
from tests.study.fakes import FakeMeasurer, make_request, run
from tuner.space import build_space, load_space

SITUATIONS = {"cpu": make_situation(), "gpu": make_situation(machine=make_machine(gpus=1))}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(
    ("preset", "strategy"), [("quick", "physics"), ("cpu", "physics"), ("gpu", "physics"), ("cpu", "tpe"), ("gpu", "random")]
)
def test_presets_are_searched(situation, preset, strategy):
    """A study over a shipped preset ends with an answer that the space accepts."""
    found = SITUATIONS[situation]
    space = build_space(found, load_space(preset))
    request = make_request(space, "memory://", goals="latency", strategy=strategy, trials=40, workload=found.workload)
    result = run(request, FakeMeasurer(noise=0.005))
    assert result.baseline.config == space.baseline
    assert space.refusal(result.best.config) is None
    assert result.best.config == space.effective(result.best.config)
