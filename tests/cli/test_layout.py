"""Advice is wrapped so that it can be read, and its commands are left whole so that they can be copied."""

from __future__ import annotations

import pytest

from tuner.cli.layout import lay_out
from tuner.hardware import BuildFacts
from tuner.hardware.rebuilding import explain_missing_simd

COMMAND = "CMAKE_ARGS='-DGGML_RPC=on' pip install --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36"


def test_a_long_command_has_a_line_of_its_own() -> None:
    """Without the backticks, which a shell would take for something else, and with the sentences around it whole."""
    text = lay_out(f"note: Build it here: `{COMMAND}`. It takes some minutes.", width=60)
    assert text.splitlines() == ["note: Build it here:", f"    {COMMAND}", "  It takes some minutes."]


def test_what_follows_the_first_line_hangs() -> None:
    lines = lay_out("note: " + "word " * 40, width=50).splitlines()
    assert len(lines) > 3
    assert all(line.startswith("  word") for line in lines[1:])
    assert all(len(line) <= 50 for line in lines)


def test_an_indent_is_kept_and_the_rest_hangs_from_it() -> None:
    lines = lay_out("  do: " + "word " * 20, width=40).splitlines()
    assert lines[0].startswith("  do: word")
    assert all(line.startswith("    word") for line in lines[1:])


@pytest.mark.parametrize("width", range(20, 60, 3))
def test_a_short_command_is_never_broken(width: int) -> None:
    """Wherever the line ends."""
    text = lay_out("Measure the machine once with `rooftune calibrate`, or leave it.", width=width)
    assert any("`rooftune calibrate`" in line for line in text.splitlines())


@pytest.mark.parametrize("text", ["", "one line", "\na title\n", "two\nlines"])
def test_short_texts_stay_as_they_are(text: str) -> None:
    assert lay_out(text, width=80) == text


@pytest.mark.parametrize("missing", [("AVX512",), ("AMX_INT8",), ("AVX512", "AMX_INT8")])
def test_every_way_to_rebuild_can_be_copied_as_one_line(missing: tuple[str, ...]) -> None:
    """On a narrow terminal too."""
    build = BuildFacts(missing_simd=missing, package_version="0.3.36", backends=("RPC",))
    for note in explain_missing_simd(build):
        lines = [line.strip() for line in lay_out(f"note: {note}", width=60).splitlines()]
        commands = [line for line in lines if "pip install" in line]
        assert commands
        assert all(line.endswith("llama-cpp-python==0.3.36") for line in commands)
        assert all(line.startswith(("CC=", "CMAKE_ARGS=")) for line in commands)
