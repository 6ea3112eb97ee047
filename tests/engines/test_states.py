"""Saved histories stay within their bound, least recently used first out."""

from __future__ import annotations

from tuner.engines.llama_cpp_python.states import StateKey, StateStore


def key(depth: int, prompt: int = 0) -> StateKey:
    return StateKey(
        model=("m", 1, 1), cache_type_k="f16", cache_type_v="f16", flash_attn="on", swa_full=False, depth=depth, prompt=prompt
    )


def test_the_least_recently_used_goes_first() -> None:
    """Three of forty bytes do not fit into a hundred."""
    store = StateStore(limit=lambda: 100)
    store.keep(key(1), bytes(40))
    store.keep(key(2), bytes(40))
    assert store.find(key(1)) is not None
    store.keep(key(3), bytes(40))
    assert [store.find(key(d)) is not None for d in (1, 2, 3)] == [True, False, True]


def test_what_is_larger_than_the_bound_has_no_room() -> None:
    """It is not even copied."""
    store = StateStore(limit=lambda: 100)
    assert (store.has_room(100), store.has_room(101)) == (True, False)


def test_depth_and_prompt_are_told_apart() -> None:
    """64 tokens of history are not 32 of history and 32 of prompt."""
    store = StateStore(limit=lambda: 100)
    store.keep(key(64), b"x")
    assert store.find(key(32, prompt=32)) is None
