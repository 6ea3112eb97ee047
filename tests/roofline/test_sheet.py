"""Machines by their data sheets: shipped ones, a user's own, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import BadInputError, UsageError
from tuner.roofline.sheet import MOST_BYTES, Sheet, Sourced, list_sheets, load_sheet

OWN = """
kind: gpu
backend: cuda
bandwidth_gbs: 500
fp16_tflops: {value: 60, source: a leaflet}
"""


def list_figures(sheet: Sheet) -> list[tuple[str, Sourced]]:
    return [(key, each) for key in sheet.__struct_fields__ if isinstance(each := getattr(sheet, key), Sourced)]


def reckon(text: str) -> float:
    """A chain of factors and divisors: "2 x 8 x 5.6 / 10"."""
    first, *rest = text.split()
    value = float(first)
    for sign, factor in zip(rest[::2], rest[1::2], strict=True):
        value = {"x": value * float(factor), "/": value / float(factor)}[sign]
    return value


def test_shipped_machines_cover_the_usual_vendors() -> None:
    """Consumer and data-centre GPUs, Apple chips, Strix Halo, desktop and server CPUs."""
    names = set(list_sheets())
    assert {"rtx-4090", "h100-sxm", "rx-7900-xtx", "apple-m4-max-40", "strix-halo", "arc-b580", "epyc-9554"} <= names
    assert len(names) >= 15


@pytest.mark.parametrize("name", list_sheets())
def test_every_figure_of_a_shipped_machine_has_a_source_and_says_what_it_is_worth(name: str) -> None:
    """Read or derived from a page that is named, or marked as unconfirmed; none is merely given."""
    sheet = load_sheet(name)
    assert sheet.name == name
    assert sheet.title
    assert sheet.tflops > 0
    for key, figure in list_figures(sheet):
        assert len(figure.source) > 2, key
        assert figure.state in {"read", "derived", "unconfirmed"}, key
        assert figure.state == "unconfirmed" or figure.address.startswith("http"), key


@pytest.mark.parametrize(
    ("name", "key"), [(n, key) for n in list_sheets() for key, each in list_figures(load_sheet(n)) if each.state == "derived"]
)
def test_the_arithmetic_of_a_derived_figure_gives_its_value(name: str, key: str) -> None:
    """Factors of the first part of its source, within the rounding of half a per cent."""
    figure = getattr(load_sheet(name), key)
    assert reckon(figure.source.partition(" = ")[0]) == pytest.approx(figure.value, rel=0.005)


def test_a_machine_names_the_figures_that_nothing_confirms() -> None:
    """So that a prediction can say so."""
    assert load_sheet("arc-a770-16gb").unconfirmed == ("fp16_tflops", "int8_tops")
    assert load_sheet("rtx-4090").unconfirmed == ()


@pytest.mark.parametrize("state", ["read", "derived"])
@pytest.mark.parametrize("address", ["", "address: NVIDIA"])
def test_no_figure_claims_to_be_looked_up_without_an_address(tmp_path: Path, state: str, address: str) -> None:
    """A user's own file neither."""
    path = tmp_path / "m.yaml"
    path.write_text(OWN.replace("a leaflet", f"a leaflet, state: {state}{', ' * bool(address)}{address}"))
    with pytest.raises(BadInputError, match="its address is missing"):
        load_sheet(str(path))


def test_a_sheet_of_ones_own_takes_plain_numbers_and_its_files_name(tmp_path: Path) -> None:
    """Numbers without a source say so."""
    path = tmp_path / "my-card.yaml"
    path.write_text(OWN)
    sheet = load_sheet(str(path))
    assert (sheet.name, sheet.bandwidth_gbs.value, sheet.bandwidth_gbs.source) == ("my-card", 500, "not stated")
    assert sheet.fp16_tflops is not None
    assert (sheet.fp16_tflops.source, sheet.fp16_tflops.state) == ("a leaflet", "given")
    assert sheet.unconfirmed == ()


def test_a_cpu_is_measured_by_fp32_and_a_gpu_by_fp16(tmp_path: Path) -> None:
    """Efficiencies refer to that rate."""
    path = tmp_path / "c.yaml"
    path.write_text("kind: cpu\nbackend: cpu\nbandwidth_gbs: 80\nfp32_tflops: 2\nfp16_tflops: 9\ncores: 16\n")
    assert load_sheet(str(path)).tflops == 2
    assert load_sheet("rtx-4090").tflops == pytest.approx(165.2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "kind: gpu",
        "{",
        "\x00",
        "[" * 5000,
        "!!python/object:os.system {}",
        "a: &a [1]\nb: *a",
        OWN.replace("500", "fast"),
        OWN.replace("500", "0"),
        OWN.replace("500", "-5"),
        OWN.replace("500", ".nan"),
        OWN.replace("500", ".inf"),
        OWN.replace("kind: gpu", "kind: toaster"),
        OWN.replace("kind: gpu", "kind: cpu"),
        OWN.replace("backend: cuda", "backend: cpu"),
        OWN + "colour: red",
        OWN.replace("fp16_tflops: {value: 60, source: a leaflet}", ""),
        "kind: cpu\nbackend: cpu\nbandwidth_gbs: 80\nfp32_tflops: 2\n",
        OWN + "note: " + "x" * MOST_BYTES,
    ],
)
def test_a_file_that_describes_no_machine_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    """With its name, and what to do."""
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        load_sheet(str(path))
    assert "\n" not in str(caught.value)
    assert "m.yaml" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(("name", "hint"), [("rtx-4091", "rtx-4090"), ("zzz", "apple-m1")])
def test_an_unknown_name_leads_to_the_known(name: str, hint: str) -> None:
    """The nearest, or all of them."""
    with pytest.raises(UsageError) as caught:
        load_sheet(name)
    assert hint in caught.value.hint


@pytest.mark.parametrize("path", ["missing.yaml", "a\x00b.yaml", ".yaml/x.yaml"])
def test_a_path_that_cannot_be_read_is_refused(path: str) -> None:
    """Nothing but a bad input, whatever the operating system says."""
    with pytest.raises(BadInputError):
        load_sheet(path)


def test_a_sheet_without_a_compute_rate_says_so() -> None:
    """The record alone may be incomplete; files are checked."""
    sheet = Sheet(name="x", kind="gpu", backend="cuda", bandwidth_gbs={"value": 1.0})  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="compute rate"):
        _ = sheet.tflops
