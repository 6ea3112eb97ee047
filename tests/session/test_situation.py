"""What the checklist looks at: which devices count, what lies beside the model, and what figures do not cover."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tests.builders.gguf_files import GGMLQuantizationType, write_llama
from tests.rules.builders import GIB, TURN, make_gpu, make_host, make_model
from tuner.model import read_model
from tuner.runconfig import RunConfig
from tuner.session.guarding import MemoryRules
from tuner.session.remote import add_remote_devices
from tuner.session.situation import describe_point, find_projectors, open_predictor

MODEL = make_model()
POINT = RunConfig(model=MODEL.path, ctx_size=1024, threads=2, threads_batch=2)


def test_remote_devices_come_before_the_machine_s_own_and_their_memory_is_unknown() -> None:
    machine = add_remote_devices(make_host(devices=(make_gpu(),)), 2)
    assert [(each.name, each.backend) for each in machine.devices] == [("RPC0", "RPC"), ("RPC1", "RPC"), ("CUDA0", "CUDA")]
    assert [each.free_bytes for each in machine.devices[:2]] == [None, None]
    assert add_remote_devices(make_host(), 0) == make_host()


def test_calibrated_remote_devices_are_as_many_as_answered_with_the_memory_they_had() -> None:
    """One server may offer two devices."""
    ceilings = make_ceilings(devices=("CPU", "RPC0", "RPC1"))
    told = tuple(msgspec.structs.replace(each, memory_bytes=GIB) for each in ceilings.devices)
    machine = add_remote_devices(make_host(), 1, msgspec.structs.replace(ceilings, devices=told))
    assert [(each.name, each.free_bytes) for each in machine.devices] == [("RPC0", GIB), ("RPC1", GIB)]
    assert add_remote_devices(make_host(), 0, ceilings) == make_host()


def test_what_is_on_another_machine_is_not_counted_against_this_one() -> None:
    """A model larger than this machine's memory, all of it behind a link."""
    big = make_model(parameters=8_000_000_000, n_layer=32)
    here = make_host(available_bytes=2 * GIB)
    there = add_remote_devices(here, 1)
    misfits = [
        describe_point(
            POINT.replace(model=big.path, n_gpu_layers=-1),
            TURN,
            models=(big,),
            machine=machine,
            memory=MemoryRules(),
            ceilings=None,
        )
        for machine in (here, there)
    ]
    assert misfits[0].find_misfit(misfits[0].config) is not None
    assert misfits[1].find_misfit(misfits[1].config) is None


@pytest.mark.parametrize(
    ("layers", "covered", "known"), [(0, ("CPU",), True), (-1, ("CPU",), False), (-1, ("CPU", "CUDA0"), True)]
)
def test_nothing_is_predicted_for_layers_on_a_device_without_figures(
    layers: int, covered: tuple[str, ...], known: bool
) -> None:
    """Figures of the processor alone say nothing of a GPU."""
    predict = open_predictor(make_ceilings(devices=covered, formats=("Q4_K",)), make_host(devices=(make_gpu(),)))
    assert (predict(MODEL, POINT.replace(n_gpu_layers=layers), TURN) is not None) == known


@pytest.mark.parametrize(("projector", "draft"), [(GIB, None), (None, make_model(parameters=2_000_000_000))])
def test_what_lies_beside_the_model_takes_memory(projector: int | None, draft: object) -> None:
    """A model that fits alone does not fit beside a projector or a draft model."""
    machine = make_host(available_bytes=GIB)
    alone, beside = (
        describe_point(POINT, TURN, models=(MODEL,), machine=machine, memory=MemoryRules(), ceilings=None, **extra)
        for extra in ({}, {"projector_bytes": projector, "draft": draft})
    )
    assert alone.find_misfit(POINT) is None
    reason = beside.find_misfit(POINT)
    assert reason is not None
    assert ("projector" if projector else "draft model") in reason


def test_a_projector_is_known_by_its_name(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "small.gguf", kind=GGMLQuantizationType.Q8_0, n_layer=2)
    assert find_projectors(read_model(model)) == ()
    (tmp_path / "mmproj-small-f16.gguf").write_bytes(b"GGUF")
    assert find_projectors(read_model(model)) == (str(tmp_path / "mmproj-small-f16.gguf"),)
    assert find_projectors(msgspec.structs.replace(MODEL, path="/nowhere/at/all.gguf")) == ()
