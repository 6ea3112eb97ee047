"""What every dimension keeps, found by existing: a new one is tested without a line here."""

from __future__ import annotations

import inspect

import pytest

from tests.builders.situations import make_layer, make_machine, make_situation, make_spec
from tuner.discover import discover_classes
from tuner.engines.base import PrepareRequest
from tuner.engines.llama_cpp_python.settings import pick_context_settings, pick_model_settings
from tuner.runconfig import RunConfig
from tuner.space import Absent, Dimension, Domain, SpaceSituation, dimensions, list_dimensions
from tuner.workload import PRESETS

FOUND = [kind() for kind in discover_classes(dimensions, Dimension)]
RECURRENT = make_spec(layers=(make_layer(kind="recurrent"),) * 4, n_layer=4)
BARE = make_spec(n_layer=None, context_length=None)
SITUATIONS: dict[str, SpaceSituation] = {
    "a CPU": make_situation(),
    "one thread": make_situation(machine=make_machine(usable=1)),
    "many threads": make_situation(machine=make_machine(usable=128, physical=64, nodes=2)),
    "two GPUs and experts": make_situation(machine=make_machine(gpus=2), models=(make_spec(n_expert=8),)),
    "several users": make_situation(workload=PRESETS["batch"], goals=("throughput",)),
    "context, quality may be lost": make_situation(goals=("context",), allow_quality_loss=True),
    "two recurrent files": make_situation(models=(RECURRENT, make_spec(path="/m/b.gguf"))),
    "a file that says little": make_situation(machine=make_machine(gpus=1), models=(BARE,)),
    "remote devices, little memory": make_situation(machine=make_machine(available_bytes=1), rpc_devices=2),
}


WITHOUT_LISTED_VALUES = {"load_mode": ("auto", "none"), "swa_full": (False, True)}
"""Two values of what no situation above searches unasked."""


def list_values(dimension: Dimension) -> tuple[object, ...]:
    """Two different values that the setting takes somewhere."""
    verdicts = [dimension.find_domain(situation) for situation in SITUATIONS.values()]
    found = [verdict.values for verdict in verdicts if isinstance(verdict, Domain) and len(verdict.values) > 1]
    return found[0] if found else WITHOUT_LISTED_VALUES[dimension.name]


def find_rebuilt(before: RunConfig, after: RunConfig) -> str:
    """What the engine brings about anew to go from one point to the other."""
    models = [pick_model_settings(PrepareRequest(config=config, workload=PRESETS["quick"])) for config in (before, after)]
    if models[0] != models[1]:
        return "model"
    if pick_context_settings(before) != pick_context_settings(after):
        return "context"
    return "process" if before.numa != after.numa else "live"


def test_each_setting_has_one_dimension() -> None:
    """And each dimension is a setting of a run."""
    assert sorted(each.name for each in FOUND) == sorted(RunConfig.__struct_fields__)
    assert [each.name for each in list_dimensions()] == list(RunConfig.__struct_fields__)


@pytest.mark.parametrize("dimension", FOUND, ids=lambda each: each.name)
class TestDimension:
    def test_it_has_a_manual(self, dimension: Dimension) -> None:
        """Some lines on what it is, when it hurts and where it comes from, and a short title."""
        manual = inspect.cleandoc(type(dimension).__doc__ or "")
        assert len(manual.split()) > 40
        assert manual.splitlines()[0].rstrip()[-1] in ".:,-" or len(manual.splitlines()[0]) > 60
        assert 0 < len(dimension.title) <= 40

    def test_it_says_what_it_moves_and_costs(self, dimension: Dimension) -> None:
        """Phases and costs that there are."""
        assert dimension.affects
        assert dimension.affects <= {"prefill", "decode", "memory"}
        assert dimension.cost in ("live", "context", "model", "process")

    def test_a_change_of_it_reaches_the_engine_at_its_declared_cost(self, dimension: Dimension) -> None:
        """Nothing is rebuilt without need, and no setting is searched that the engine does not take."""
        first, second = list_values(dimension)[:2]
        base = RunConfig(model="/m/a.gguf", threads=1, threads_batch=1)
        before, after = (base.replace(**{dimension.name: value}) for value in (first, second))
        assert before != after
        assert find_rebuilt(before, after) == dimension.cost

    @pytest.mark.parametrize("name", SITUATIONS)
    def test_its_values_are_distinct_and_its_own(self, dimension: Dimension, name: str) -> None:
        """Each value passes the check that a user's value must pass, and comes back the same."""
        verdict = dimension.find_domain(SITUATIONS[name])
        if isinstance(verdict, Absent):
            assert verdict.reason
            assert not verdict.reason.endswith(".")
            return
        assert isinstance(verdict, Domain)
        assert len(set(verdict.values)) == len(verdict.values) >= 1
        assert all(dimension.parse_value(value) == value for value in verdict.values)
        assert not verdict.ordered or tuple(sorted(verdict.values)) == verdict.values

    @pytest.mark.parametrize("name", SITUATIONS)
    def test_its_default_is_a_value_it_takes(self, dimension: Dimension, name: str) -> None:
        """As a value and as the text of a flag."""
        default = dimension.find_default(SITUATIONS[name])
        assert dimension.parse_value(default) == default
        text = ",".join(f"{share:g}" for share in default) or "auto" if isinstance(default, tuple) else str(default)
        assert dimension.parse_value(text) == default

    @pytest.mark.parametrize("name", SITUATIONS)
    def test_it_moves_known_phases_there(self, dimension: Dimension, name: str) -> None:
        """In every situation."""
        assert dimension.affects_in(SITUATIONS[name]) <= {"prefill", "decode", "memory"}
