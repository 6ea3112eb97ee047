"""NVIDIA GPUs through a fake driver: what it refuses, what it cuts, what it hides, and how CUDA counts."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping
from typing import Any

import pytest

from tests.hardware.fake_nvml import (
    GIB,
    Answer,
    DriverNotLoaded,
    FakeNvml,
    FunctionNotFound,
    GpuIsLost,
    LibraryNotFound,
    NoPermission,
    NotSupported,
    Unknown,
    make_card,
    make_slice,
    memory,
)
from tuner.hardware.gpus import normalise_bus, probe_gpus
from tuner.hardware.record import GpuFacts, GpuProcess

RAM, AVAILABLE = 128 * GIB, 90 * GIB
A, B, C = "GPU-aaaa1111", "GPU-bbbb2222", "GPU-bbbb3333"


def probe(nvml: FakeNvml | None, environ: Mapping[str, str] | None = None) -> tuple[tuple[GpuFacts, ...], tuple[str, ...]]:
    return probe_gpus(nvml=nvml, environ=environ or {}, memory_total_bytes=RAM, memory_available_bytes=AVAILABLE)


def refuse_import(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    real = builtins.__import__

    def fail(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pynvml":
            raise error
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", fail)


def test_a_healthy_card_tells_everything() -> None:
    """Each field in its unit, and no note."""
    gpus, notes = probe(FakeNvml(make_card()))
    assert notes == ()
    assert gpus == (
        GpuFacts(
            index=0,
            name="NVIDIA GeForce RTX 4090",
            uuid=A,
            pci_bus_id="0000:01:00.0",
            memory_total_bytes=24 * GIB,
            memory_free_bytes=20 * GIB,
            memory_used_bytes=4 * GIB,
            driver="570.86.15",
            cuda="12.8",
            compute_capability="8.9",
            link_generation=1,
            link_generation_max=4,
            link_width=8,
            link_width_max=16,
            memory_bus_bits=384,
            memory_clock_max_mhz=10501,
            power_limit_w=300.0,
            power_limit_default_w=450.0,
            temperature_c=41,
            utilization=7,
            throttle_reasons=("power cap", "thermal (hardware)"),
            mig=False,
            cuda_ordinal=0,
            processes=(),
        ),
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LibraryNotFound(), "library was found"),
        (DriverNotLoaded(), "not loaded"),
        (FunctionNotFound(), "too old"),
        (NoPermission(), "refuses this user"),
        (Unknown("999"), "NVMLError_Unknown 999"),
        (OSError("libnvidia-ml.so.1: file too short"), "file too short"),
    ],
)
def test_no_driver_is_one_short_note(error: Exception, words: str) -> None:
    """Whatever stops the driver library, there are no GPUs, one reason of its own, and no exception."""
    gpus, notes = probe(FakeNvml(init=error))
    assert gpus == ()
    assert len(notes) == 1
    assert words in notes[0]
    assert len(notes[0]) < 120


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("No module named 'pynvml'"), "not installed"),
        (ImportError("libnvidia-ml.so: undefined symbol: nvmlInit_v2"), "too old"),
        (AttributeError("nvmlInit_v2"), "too old"),
    ],
)
def test_without_bindings_there_is_one_short_note(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    """The Python package is optional, and a broken one is no worse than none."""
    refuse_import(monkeypatch, error)
    gpus, notes = probe(None)
    assert gpus == ()
    assert len(notes) == 1
    assert words in notes[0]


def test_reasons_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package, a missing library, an idle driver and an old driver are four different messages."""
    notes = {probe(FakeNvml(init=error))[1] for error in (LibraryNotFound(), DriverNotLoaded(), FunctionNotFound())}
    refuse_import(monkeypatch, ImportError())
    assert len({*notes, probe(None)[1]}) == 4


def test_a_driver_without_cards_says_so() -> None:
    """A loaded driver with nothing to drive is told apart from none."""
    assert probe(FakeNvml()) == ((), ("The NVIDIA driver lists no GPU.",))


def test_a_lost_card_costs_only_itself() -> None:
    """A card that cannot be opened is named in a note; the other one keeps the driver's number."""
    gpus, notes = probe(FakeNvml(GpuIsLost(), make_card()))
    assert [gpu.index for gpu in gpus] == [1]
    assert len(notes) == 1
    assert notes[0].startswith("GPU 0")


def test_every_field_has_its_own_guard() -> None:
    """A driver that refuses everything but the name still yields the card, with None and never 0."""
    (gpu,), _ = probe(FakeNvml({"nvmlDeviceGetName": "NVIDIA Tesla M10"}))
    told = {name for name in gpu.__struct_fields__ if getattr(gpu, name) is not None}
    assert told == {"index", "name", "unified", "driver", "cuda", "cuda_ordinal"}


def test_bindings_without_a_function_cost_only_its_field() -> None:
    """Older bindings lack functions; that is one more way of not saying."""
    lacks = ("nvmlDeviceGetMemoryBusWidth", "nvmlSystemGetDriverVersion", "nvmlShutdown", "nvmlDeviceGetMaxMigDeviceCount")
    (gpu,), _ = probe(FakeNvml(make_card(), lacks=lacks))
    assert (gpu.memory_bus_bits, gpu.driver, gpu.memory_total_bytes) == (None, None, 24 * GIB)


@pytest.mark.parametrize("cards", [(), (make_card(),), (Unknown(),), ({},)])
def test_the_driver_is_always_let_go(cards: tuple[Any, ...]) -> None:
    """What was initialised is shut down, however little was learned."""
    nvml = FakeNvml(*cards)
    probe(nvml)
    assert (nvml.asked.count("nvmlInit"), nvml.asked.count("nvmlShutdown")) == (1, 1)


@pytest.mark.parametrize("name", ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Jetson AGX Thor", "Xavier", "NVIDIA Thor"])
def test_parts_without_memory_of_their_own_share_main_memory(name: str) -> None:
    """Total is the machine's, free is what the machine has available, and the two are not the same."""
    (gpu,), notes = probe(FakeNvml(make_card(name, nvmlDeviceGetMemoryInfo=NotSupported())))
    assert (gpu.unified, gpu.memory_total_bytes, gpu.memory_free_bytes) == (True, RAM, AVAILABLE)
    assert notes == ()


def test_free_memory_of_a_shared_part_counts_reclaimable_cache() -> None:
    """A driver that does tell a shared part's memory tells free pages only; available memory is what counts."""
    (gpu,), _ = probe(FakeNvml(make_card("Orin (nvgpu)", nvmlDeviceGetMemoryInfo=memory(64, 3))))
    assert (gpu.unified, gpu.memory_free_bytes) == (True, AVAILABLE)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("NVIDIA GeForce RTX 4090", NotSupported()),
        ("NVIDIA GB102", NotSupported()),
        ("NVIDIA GeForce RTX 4090", Unknown()),
        ("NVIDIA GB10", Unknown()),
        ("NVIDIA GB10", GpuIsLost()),
    ],
)
def test_other_refusals_never_become_main_memory(name: str, error: Exception) -> None:
    """A card that will not say, or fails, is unknown, and a note says so."""
    (gpu,), notes = probe(FakeNvml(make_card(name, nvmlDeviceGetMemoryInfo=error)))
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes, gpu.memory_used_bytes) == (None, None, None)
    assert gpu.unified is (name == "NVIDIA GB10")
    assert len(notes) == 1
    assert "memory" in notes[0]


def cut_card(*slices: dict[str, Any], **answers: Any) -> dict[str, Any]:
    """An A100 in MIG mode as a user without rights over the whole card sees it."""
    refused = dict.fromkeys(("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"), NoPermission())
    base = {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 7, **refused, **answers}
    return {**make_card("NVIDIA A100", A, 2, **base), "slices": slices}


def test_slices_stand_in_place_of_their_card() -> None:
    """The slice's memory counts, not the parent's; CUDA gives one process the first slice only."""
    card = cut_card(make_slice("MIG-s1", 9.75, 9.5), make_slice("MIG-s2", 19.5, 1.5, "2g.20gb"))
    gpus, notes = probe(FakeNvml(card))
    assert [(gpu.uuid, gpu.memory_total_bytes, gpu.memory_free_bytes) for gpu in gpus] == [
        ("MIG-s1", int(9.75 * GIB), int(9.5 * GIB)),
        ("MIG-s2", int(19.5 * GIB), int(1.5 * GIB)),
    ]
    assert [(gpu.mig, gpu.parent_uuid, gpu.index, gpu.pci_bus_id) for gpu in gpus] == [(True, A, 0, "0000:02:00.0")] * 2
    assert [gpu.cuda_ordinal for gpu in gpus] == [0, None]
    assert {(gpu.utilization, gpu.memory_bus_bits) for gpu in gpus} == {(None, None)}
    assert notes == ()


def test_a_parent_that_refuses_everything_still_yields_its_slices() -> None:
    """In a container that was given a slice, every question about the card is refused."""
    refused = {name: NoPermission() for name in make_card()}
    gpus, _ = probe(FakeNvml({**refused, "slices": (make_slice("MIG-s1", 10, 9),)}))
    assert [(gpu.uuid, gpu.memory_free_bytes, gpu.mig, gpu.cuda_ordinal) for gpu in gpus] == [("MIG-s1", 9 * GIB, True, 0)]


def test_a_card_to_be_cut_but_uncut_is_no_use() -> None:
    """MIG mode without a slice: CUDA cannot use the card, and a note says why."""
    (gpu,), notes = probe(FakeNvml(cut_card()))
    assert (gpu.mig, gpu.cuda_ordinal) == (True, None)
    assert len(notes) == 1
    assert "slices" in notes[0]


@pytest.mark.parametrize(
    ("visible", "ordinals"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("1,0", [1, 0, None]),
        (" 2 , 0 ", [1, None, 0]),
        ("", [None, None, None]),
        ("-1", [None, None, None]),
        ("0,-1,1", [0, None, None]),
        ("1,7,0", [None, 0, None]),
        ("NoDevFiles", [None, None, None]),
        (B, [None, 0, None]),
        (f"{C},{A}", [1, None, 0]),
        ("GPU-bbbb3", [None, None, 0]),
        ("GPU-bbbb", [None, None, None]),
        ("GPU-none,0", [None, None, None]),
        ("1,1", [None, None, None]),
    ],
)
def test_visible_devices_choose_and_order(visible: str | None, ordinals: list[int | None]) -> None:
    """By number, by UUID or its unambiguous beginning, in the order given, up to the first entry that names nothing."""
    nvml = FakeNvml(*(make_card(uuid=uuid, bus=bus) for bus, uuid in enumerate((A, B, C), 1)))
    gpus, notes = probe(nvml, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.cuda_ordinal for gpu in gpus] == ordinals
    assert bool(notes) is (set(ordinals) == {None})


@pytest.mark.parametrize(
    ("visible", "ordinals"),
    [("MIG-s2", [None, 0, None]), ("MIG-s2,MIG-s1", [None, 0, None]), ("1,MIG-s1", [1, None, 0]), ("0", [0, None, None])],
)
def test_visible_devices_choose_slices(visible: str, ordinals: list[int | None]) -> None:
    """A slice goes by its own UUID; a second slice is never seen by the same process."""
    nvml = FakeNvml(cut_card(make_slice("MIG-s1", 10, 9), make_slice("MIG-s2", 20, 19)), make_card(uuid=B, bus=3))
    gpus, _ = probe(nvml, {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [gpu.cuda_ordinal for gpu in gpus] == ordinals


@pytest.mark.parametrize(
    ("names", "order", "warned"),
    [
        (("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"), None, True),
        (("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"), "FASTEST_FIRST", True),
        (("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"), "PCI_BUS_ID", False),
        (("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"), None, False),
    ],
)
def test_unlike_cards_need_the_bus_order(names: tuple[str, str], order: str | None, warned: bool) -> None:
    """CUDA puts the fastest card first unless told otherwise; the note gives the setting to export."""
    nvml = FakeNvml(*(make_card(name, uuid, bus) for bus, (name, uuid) in enumerate(zip(names, (A, B), strict=True), 1)))
    _, notes = probe(nvml, {} if order is None else {"CUDA_DEVICE_ORDER": order})
    assert any("export CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in notes) is warned


def test_slices_of_like_cards_are_not_unlike_cards() -> None:
    """Profiles differ within one card, which has no bearing on CUDA's order of cards."""
    card = cut_card(make_slice("MIG-s1", 10, 9, "1g.10gb"), make_slice("MIG-s2", 20, 19, "2g.20gb"))
    assert probe(FakeNvml(card))[1] == ()


def test_others_that_hold_memory_are_named() -> None:
    """Computing and drawing processes, each once; an amount that the driver withholds is None; not this process."""
    card = make_card(
        nvmlDeviceGetComputeRunningProcesses=[
            Answer(pid=900, usedGpuMemory=3 * GIB),
            Answer(pid=300, usedGpuMemory=None),
            Answer(pid=os.getpid(), usedGpuMemory=GIB),
        ],
        nvmlDeviceGetGraphicsRunningProcesses=[Answer(pid=700, usedGpuMemory=GIB // 2), Answer(pid=900, usedGpuMemory=GIB)],
    )
    (gpu,), _ = probe(FakeNvml(card))
    assert gpu.processes == (
        GpuProcess(pid=300, memory_bytes=None),
        GpuProcess(pid=700, memory_bytes=GIB // 2),
        GpuProcess(pid=900, memory_bytes=3 * GIB),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:0A:00.0", "0000:0a:00.0"),
        ("00010000:C1:00.0", "10000:c1:00.0"),
        ("0000:01:00.0", "0000:01:00.0"),
        (None, None),
    ],
)
def test_bus_numbers_read_as_llama_cpp_writes_them(text: str | None, expected: str | None) -> None:
    """Four digits of domain or more, lower case."""
    assert normalise_bus(text) == expected


def test_the_fake_has_only_what_the_real_bindings_have() -> None:
    """Every function that is asked for exists, and refusals carry the class names that the probe looks for."""
    pynvml = pytest.importorskip("pynvml")
    nvml = FakeNvml(cut_card(make_slice("MIG-s1", 10, 9)), make_card())
    probe(nvml)
    assert [name for name in nvml.asked if not hasattr(pynvml, name)] == []
    for code, error in [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NotSupported),
        (pynvml.NVML_ERROR_NO_PERMISSION, NoPermission),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, LibraryNotFound),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, DriverNotLoaded),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, FunctionNotFound),
    ]:
        assert type(pynvml.NVMLError(code)).__name__ == error.__name__
