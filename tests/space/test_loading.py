"""Space files: what they may say, and how they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import preset_names, read_preset
from tests.builders.situations import make_machine, make_situation, write_space
from tuner.errors import BadInputError, RooftuneError, UsageError
from tuner.space import build_space, choose_space, load_space, parse_settings, read_space
from tuner.space.loading import MOST_BYTES


def test_the_presets_are_there() -> None:
    """Names that the documentation tells."""
    assert preset_names() == ("cpu", "gpu", "long_context", "quick", "server")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_loads_and_can_be_copied(name: str, tmp_path: Path) -> None:
    """The name and a copy of the file mean the same."""
    copy = tmp_path / "mine.yaml"
    copy.write_text(read_preset(name))
    assert load_space(name).dimensions == load_space(str(copy)).dimensions
    assert load_space(name).name == name


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_fits_any_machine(name: str) -> None:
    """With and without devices there is a space with the default in it."""
    for machine in (make_machine(usable=1), make_machine(), make_machine(gpus=2)):
        space = build_space(make_situation(machine=machine), load_space(name))
        assert set(space.domains) | set(space.absent) >= set(load_space(name).dimensions)
        assert next(space.points(())) == space.baseline


def test_the_quick_preset_is_small() -> None:
    """A first look on a CPU is over soon."""
    assert build_space(make_situation(), load_space("quick")).size <= 32


@pytest.mark.parametrize(("gpus", "expected"), [(0, "cpu"), (1, "gpu")])
def test_who_names_none_gets_the_machines_own(gpus: int, expected: str) -> None:
    """A device that takes layers decides."""
    assert choose_space(make_machine(gpus=gpus)) == expected


def test_the_goal_and_remote_devices_choose_too() -> None:
    """The largest context is searched where contexts are; remote devices are devices."""
    assert choose_space(make_machine(), goals=("context",)) == "long_context"
    assert choose_space(make_machine(), goals=("latency",), rpc_devices=1) == "gpu"


SPECS = {
    "auto": ("threads: auto", "auto"),
    "off": ("threads: off", "off"),
    "a list": ("threads: [1, 2]", (1, 2)),
    "a range": ("threads: {min: 1, max: 7, step: 3}", (1, 4, 7)),
    "a range without step": ("threads: {min: 1, max: 3}", (1, 2, 3)),
    "the same value twice": ("threads: [1, 2, 1]", (1, 2)),
    "on and off, which YAML makes booleans": ("flash_attn: [on, off]", ("on", "off")),
    "thousands": ("ctx_size: [4k, 8192]", (4096, 8192)),
    "shares": ("tensor_split: ['3,1', [1, 1]]", ((3.0, 1.0), (1.0, 1.0))),
}


@pytest.mark.parametrize("name", SPECS)
def test_what_a_dimension_takes(name: str) -> None:
    """auto, off, values, or a range."""
    line, expected = SPECS[name]
    assert next(iter(write_space(line).dimensions.values())) == expected


REFUSED = {
    "empty": ("", "is not a search space"),
    "a list": ("- 1\n- 2\n", "is not a search space"),
    "a number": ("42\n", "is not a search space"),
    "no dimensions": ("name: mine\n", "dimensions is missing"),
    "dimensions as a list": ("dimensions: [threads]\n", "dimensions is missing"),
    "an unknown key": ("colour: red\ndimensions: {threads: auto}\n", "unknown key 'colour'"),
    "an unknown dimension": ("dimensions:\n  thread: [1]\n", "Did you mean threads?"),
    "a dimension that is a number": ("dimensions:\n  7: [1]\n", "unknown dimension 7"),
    "no values": ("dimensions:\n  threads: []\n", "has no values"),
    "one bare value": ("dimensions:\n  threads: 4\n", "in brackets"),
    "nothing": ("dimensions:\n  threads:\n", "cannot be nothing"),
    "words for numbers": ("dimensions:\n  threads: [one]\n", "from 1 to 512"),
    "a value that is a map": ("dimensions:\n  threads: [{a: 1}]\n", "from 1 to 512"),
    "a value that is a list": ("dimensions:\n  threads: [[1]]\n", "from 1 to 512"),
    "a range backwards": ("dimensions:\n  threads: {min: 4, max: 1}\n", "empty range"),
    "a range of words": ("dimensions:\n  threads: {min: a, max: 2}\n", "whole numbers"),
    "a range without end": ("dimensions:\n  threads: {min: 1}\n", "without min and max"),
    "a range with more": ("dimensions:\n  threads: {min: 1, max: 2, stepp: 1}\n", "other keys"),
    "step 0": ("dimensions:\n  threads: {min: 1, max: 4, step: 0}\n", "step must be 1"),
    "a range of too many": ("dimensions:\n  ctx_size: {min: 1, max: 100000000000}\n", "too many values"),
    "a range of words for a word": ("dimensions:\n  flash_attn: {min: 1, max: 2}\n", "auto, on, off"),
    "a key twice": ("dimensions:\n  threads: [1]\n  threads: [2]\n", "given twice"),
    "an alias": ("dimensions:\n  threads: &a [1]\n  threads_batch: *a\n", "aliases are not taken"),
    "unclosed": ("{a: [1, 2\n", "not valid YAML"),
    "a tab": ("a:\n\t- b\n", "not valid YAML"),
    "a Python object": ("!!python/object/apply:os.system ['true']\n", "not valid YAML"),
    "binary": ("\x00\x01", "not valid YAML"),
    "nested without end": ("[" * 5000, "nested too deeply"),
    "a number without end": ("dimensions:\n  threads: [" + "9" * 10_000 + "]\n", "not valid YAML"),
    "a name that is none": ("name: [a]\ndimensions: {threads: auto}\n", "name cannot be"),
    "a complex key": ("? [a, b]\n: 1\n", "not valid YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_space(name: str) -> None:
    """One line that names the file and what is accepted."""
    text, said = REFUSED[name]
    with pytest.raises(BadInputError) as refused:
        read_space(text, source="mine.yaml")
    assert said in str(refused.value)
    assert "mine.yaml" in refused.value.message
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_aliases_that_would_swell_are_refused_at_once() -> None:
    """A few hundred bytes cannot become a billion values."""
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghijklmno", "bcdefghijklmnop", strict=True)
    )
    with pytest.raises(BadInputError, match="aliases"):
        read_space(bomb, source="bomb.yaml")


def test_files_that_cannot_be_spaces(tmp_path: Path) -> None:
    """Missing, a folder, too large, or of another kind."""
    large = tmp_path / "large.yaml"
    large.write_bytes(b"# padding\n" * MOST_BYTES)
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    odd = tmp_path / "odd.yaml"
    odd.write_bytes(b"\xff\xfe\xfd")
    cases: dict[str, type[RooftuneError]] = {
        "galaxy": UsageError,
        str(tmp_path / "none.yaml"): BadInputError,
        str(large): BadInputError,
        str(folder): BadInputError,
        str(odd): BadInputError,
        "x" * 5000 + ".yaml": BadInputError,
        "a\0b.yaml": BadInputError,
    }
    for given, kind in cases.items():
        with pytest.raises(kind):
            load_space(given)


def test_settings_are_checked_values_by_name() -> None:
    """llama.cpp's own spelling with dashes is understood; the last of equal keys counts."""
    given = ["threads=4", "--cache-type-k=q8_0", " ctx_size = 8k ", "threads=2", "flash_attn=off"]
    assert parse_settings(given) == {"threads": 2, "cache_type_k": "q8_0", "ctx_size": 8192, "flash_attn": "off"}


BAD_SETTINGS = {
    "thread=2": (UsageError, "Did you mean threads?"),
    "ngl=3": (UsageError, "Did you mean n_gpu_layers?"),
    "warp=3": (UsageError, "There are model"),
    "threads": (UsageError, "threads=4"),
    "threads=": (UsageError, "threads=4"),
    "=4": (UsageError, "threads=4"),
    "": (UsageError, "threads=4"),
    "threads=0": (UsageError, "from 1 to 512"),
    "cache_type_k=q9_9": (UsageError, "q8_0"),
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_settings_that_cannot_be_meant(setting: str) -> None:
    """The closest name is offered, or what the setting takes."""
    kind, said = BAD_SETTINGS[setting]
    with pytest.raises(kind) as refused:
        parse_settings([setting])
    assert said in str(refused.value)
