"""What "fast" is about: presets, and a user's own in YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import BadInputError, UsageError
from tuner.workload import PRESETS, load_workload


@pytest.mark.parametrize(
    ("name", "prompt", "output", "depth", "users"),
    [
        ("chat", 512, 256, 2048, 1),
        ("rag", 4096, 256, 0, 1),
        ("code", 8192, 512, 0, 1),
        ("quick", 128, 64, 0, 1),
        ("batch", 512, 128, 0, 8),
    ],
)
def test_presets_are_the_documented_ones(name: str, prompt: int, output: int, depth: int, users: int) -> None:
    """Scripts rely on their figures."""
    found = PRESETS[name]
    assert (found.prompt_tokens, found.output_tokens, found.depth_tokens, found.users) == (prompt, output, depth, users)


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    """The file's name serves where it gives none; what is absent takes its default."""
    path = tmp_path / "mail.yaml"
    path.write_text("prompt_tokens: 300\noutput_tokens: 40\n")
    found = load_workload(str(path))
    assert (found.name, found.tokens_per_slot, found.users) == ("mail", 340, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "prompt_tokens: 1",
        "prompt_tokens: x\noutput_tokens: 4",
        "prompt_tokens: 0\noutput_tokens: 4",
        "prompt_tokens: 9\noutput_tokens: 1",
        "prompt_tokens: 9\noutput_tokens: 9\ncolour: red",
        "prompt_tokens: 9\noutput_tokens: 9\nusers: 100000",
        "prompt_tokens: 99999999999999999999\noutput_tokens: 9",
        "{",
        "!!python/object:os.system {}",
        "prompt_tokens: 1.5\noutput_tokens: 4",
        "\x00",
        "[" * 5000,
    ],
)
def test_a_file_that_is_no_workload_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    """Each with the file's name and what it should hold."""
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        load_workload(str(path))
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_known() -> None:
    """A usage error, since nothing was read."""
    with pytest.raises(UsageError, match="chat, rag, code, quick, batch"):
        load_workload("chatty")
