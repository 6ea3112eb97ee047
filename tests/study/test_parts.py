"""The pure parts of a study: dominance, ranking, parameters."""

from __future__ import annotations

import pytest

from tests.study.fakes import FakeSpace
from tuner.objective import Score
from tuner.runconfig import RunConfig
from tuner.study.dominance import needs_as_much
from tuner.study.parameters import Parameters
from tuner.study.ranking import Cost, count_changes, find_cost, find_front

FAILED = RunConfig(
    model="a", n_gpu_layers=10, ctx_size=4096, batch_size=512, ubatch_size=256, parallel=2, cache_type_k="q8_0",
    cache_type_v="q8_0", flash_attn="on", threads=4, n_cpu_moe=4,
)  # fmt: skip

DOMINANCE = [
    ({}, True),
    ({"ctx_size": 8192}, True),
    ({"ctx_size": 2048}, False),
    ({"cache_type_k": "f16"}, True),
    ({"cache_type_v": "q4_0"}, False),
    ({"n_gpu_layers": 11}, True),
    ({"n_gpu_layers": 9}, False),
    ({"n_gpu_layers": -1}, True),
    ({"n_cpu_moe": 2}, True),
    ({"n_cpu_moe": 6}, False),
    ({"swa_full": True}, True),
    ({"flash_attn": "off"}, True),
    ({"threads": 1}, True),
    ({"parallel": 1}, False),
    ({"ctx_size": 8192, "batch_size": 256}, False),
    ({"model": "b", "ctx_size": 8192}, False),
    ({"no_kv_offload": True}, False),
    ({"split_mode": "row"}, False),
]


@pytest.mark.parametrize(("changes", "expected"), DOMINANCE)
def test_what_needs_as_much_as_a_misfit(changes, expected):
    assert needs_as_much(FAILED.replace(**changes), FAILED) is expected


def test_offloading_may_help_where_the_host_was_too_small():
    assert not needs_as_much(FAILED, FAILED.replace(n_gpu_layers=0))


def test_feasible_comes_before_fast():
    slow = find_cost(Score(values=(50.0,), violations=(-0.1,)), ("tpot",))
    fast = find_cost(Score(values=(10.0,), violations=(0.2,)), ("tpot",))
    assert slow.beats(fast)
    assert min(fast, slow) == slow


def test_more_throughput_is_less_cost():
    one, two = (find_cost(Score(values=(value,), violations=()), ("throughput",)) for value in (10.0, 20.0))
    assert two.beats(one, margin=0.4)
    assert not two.beats(one, margin=0.6)


def test_within_a_share():
    best = Cost(missed=0.0, value=100.0)
    assert Cost(missed=0.0, value=104.0).is_within(best, 0.05)
    assert not Cost(missed=0.0, value=106.0).is_within(best, 0.05)


def test_the_front_has_what_nothing_beats_and_keeps_the_limits():
    scores = [
        Score(values=(1.0, 9.0), violations=()),
        Score(values=(2.0, 2.0), violations=()),
        Score(values=(3.0, 3.0), violations=()),
        Score(values=(0.1, 0.1), violations=(0.5,)),
        Score(values=(9.0, 1.0), violations=()),
    ]
    assert find_front(scores, ("ttft", "tpot")) == [0, 1, 4]


def test_changes_are_counted_against_the_default():
    assert count_changes(FAILED.replace(threads=8, parallel=1), FAILED) == 2


def test_parameters_go_to_optuna_and_back():
    space = FakeSpace(
        {
            "model": ("/x/a.gguf", "/y/b.gguf"),
            "threads": (1, 2, 3, 4),
            "ubatch_size": (128, 512, 2048),
            "tensor_split": ((), (0.5, 0.5)),
            "swa_full": (False, True),
        },
        baseline=RunConfig(model="/x/a.gguf", threads=4),
    )
    parameters = Parameters(space)
    values = {"model": "/y/b.gguf", "threads": 2, "ubatch_size": 128, "tensor_split": (0.5, 0.5), "swa_full": True}
    assert parameters.encode(values) == {
        "model": "b.gguf", "threads": 2, "ubatch_size": 128, "tensor_split": "0.5,0.5", "swa_full": True,
    }  # fmt: skip
    assert parameters.decode(parameters.encode(values)) == values
    kinds = {name: type(distribution).__name__ for name, distribution in parameters.distributions().items()}
    assert kinds["threads"] == "IntDistribution"
    assert kinds["ubatch_size"] == kinds["model"] == "CategoricalDistribution"


def test_a_default_outside_its_domain_is_among_the_values():
    space = FakeSpace({"threads": (1, 2, 8)}, baseline=RunConfig(model="a", threads=4))
    assert Parameters(space).values("threads") == (1, 2, 4, 8)


def test_studies_command_lists_what_is_stored(storage):
    import json

    from click.testing import CliRunner

    from tests.study.fakes import make_request, run
    from tuner.cli.commands.studies import command

    empty = CliRunner().invoke(command, ["--storage", storage])
    assert "No studies" in empty.output
    run(make_request(FakeSpace({"threads": (4, 6)}), storage, study_name="mine"))
    (study,) = json.loads(CliRunner().invoke(command, ["--storage", storage, "--json"]).output)
    assert (study["name"], study["state"]) == ("mine", "finished")
    assert study["best"]["threads"] == 6
    assert "mine" in CliRunner().invoke(command, ["--storage", storage]).output
