"""A long history made of a short one: each cell repeated in order, positions counted on, anything else left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.child import run_child
from tuner.engines.llama_cpp_python.tiling import MAGIC, tile_state


def number(value: int, kind: str = "<u4") -> bytes:
    return np.array([value], dtype=kind).tobytes()


def write_cache(cells: int, first: int, *, transposed: bool = False, has_values: bool = True, streams: int = 1) -> bytes:
    """One layer with K rows of 4 bytes and V of 2 elements of 2 bytes, each byte telling its cell."""
    positions = b"".join(number(first + cell) + number(1) + number(0) for cell in range(cells))
    keys = b"".join(bytes([cell] * 4) for cell in range(cells))
    values = b"".join(bytes([cell, row]) for row in range(2) for cell in range(cells))
    rows = b"".join(bytes([cell] * 4) for cell in range(cells))
    v = number(1) + number(2) + number(2) + values if transposed else number(1) + number(4, "<u8") + rows
    body = number(int(transposed)) + number(1) + number(1) + number(4, "<u8") + keys + (v if has_values else b"")
    return number(streams) + number(cells) + positions + body + number(0) * (streams - 1)


def write_state(*caches: bytes) -> bytes:
    return number(MAGIC) + number(0) + b"".join(caches)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_cells_repeat_and_positions_count_on(transposed: bool, streams: int) -> None:
    """Four cells become ten: 0 1 2 3 0 1 2 3 0 1, at positions 0 to 9, in K and V."""
    tiled = tile_state(write_state(write_cache(4, 0, transposed=transposed, streams=streams)), 4, 10)
    order = [cell % 4 for cell in range(10)]
    keys = b"".join(bytes([cell] * 4) for cell in order)
    columns = b"".join(bytes([cell, row]) for row in range(2) for cell in order)
    text = tiled.tobytes()
    assert keys in text
    assert (columns if transposed else keys + number(1) + number(4, "<u8") + keys) in text
    cells = np.frombuffer(text, dtype="<u4", offset=16, count=30).reshape(10, 3)
    assert (list(cells[:, 0]), set(cells[:, 1])) == (list(range(10)), {1})
    assert text.endswith(number(0) * (streams - 1))


def test_a_window_keeps_its_cells_and_moves_to_the_end() -> None:
    """Beside a whole cache of six, the last three of a window become the last three of nine."""
    tiled = tile_state(write_state(write_cache(6, 0), write_cache(3, 3)), 6, 9)
    window = tiled.tobytes()[-len(write_cache(3, 3)) :]
    assert window == write_cache(3, 6)


def test_the_same_length_changes_nothing() -> None:
    state = write_state(write_cache(5, 0), write_cache(2, 3, transposed=True))
    assert tile_state(state, 5, 5).tobytes() == state


def test_keys_alone_are_enough() -> None:
    """Latent attention keeps no V."""
    assert tile_state(write_state(write_cache(2, 0, has_values=False)), 2, 4) is not None


@pytest.mark.parametrize(
    "state",
    [
        b"",
        number(1) + number(0) + write_cache(4, 0),
        write_state(write_cache(4, 1)),
        write_state(write_cache(5, 0)),
        write_state(write_cache(4, 0))[:-1],
        write_state(write_cache(4, 0)) + b"recurrent",
        write_state(number(0)),
        write_state(number(100_000)),
    ],
    ids=["empty", "magic", "positions", "more cells than held", "cut", "something behind", "no stream", "streams"],
)
def test_what_is_not_understood_is_not_touched(state: bytes) -> None:
    assert tile_state(state, 4, 8) is None


def test_a_state_is_not_made_shorter() -> None:
    assert tile_state(write_state(write_cache(4, 0)), 4, 3) is None


def describe_spread(model: Path, settings: str, depth: int) -> Any:
    return run_child(
        f"""
        import numpy as np
        ready = prepare(point({settings}), load(prompt=16, output=4, depth={depth}))
        made, computed = held(), engine._ready.history.computed_tokens
        turns = [turn(prefill=True, decode_tokens=4), turn(prefill=False, decode_tokens=4)]
        finite = bool(np.isfinite(last_logits({depth})).all())
        report([made, computed, [t.decode_steps for t in turns], finite])
        """,
        model,
    )


@pytest.mark.llama
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "settings",
    [
        "flash_attn='on'",
        "flash_attn='off'",
        "cache_type_k='q8_0', cache_type_v='q4_0'",
        "parallel=2, ctx_size=4096",
    ],
)
def test_a_long_history_is_computed_in_its_beginning_only(smollm2: Path, settings: str) -> None:
    """Every slot holds it all, though 512 tokens were computed; the turn goes on from there."""
    context = "" if "ctx_size" in settings else "ctx_size=2048, "
    made, computed, steps, finite = describe_spread(smollm2, f"{context}{settings}", 1200)
    slots = 2 if "parallel" in settings else 1
    assert (made, computed, steps, finite) == ([1200] * slots, 512, [3, 3], True)


@pytest.mark.llama
@pytest.mark.timeout(280)
@pytest.mark.parametrize(("swa_full", "expected"), [(False, 768), (True, 1600)])
def test_a_window_is_filled_before_it_is_repeated(gemma3: Path, swa_full: bool, expected: int) -> None:
    """The sample is longer than the window; a cache that keeps everything beyond its window is computed honestly."""
    made, computed, _, finite = describe_spread(gemma3, f"ctx_size=2048, swa_full={swa_full}", 1600)
    assert (made, computed, finite) == ([1600], expected, True)
