"""The engine against real models: what is kept, what is rebuilt, what a slot holds when the clock starts, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.child import run_child

pytestmark = [pytest.mark.llama, pytest.mark.timeout(280)]


def test_a_turn_from_an_empty_cache_counts_exactly(smollm2: Path) -> None:
    """n_out tokens are n_out - 1 timed steps; nothing of the prompt comes from a cache."""
    got = run_child(
        """
        ready = prepare(point(), load(prompt=32, output=8))
        before = held()
        turns = [turn(prefill=True, decode_tokens=8) for _ in range(2)]
        report([before, ready.ctx_per_slot, ready.flash_attn, sorted(k.split()[0] for k in ready.buffers), held(),
                [(t.decode_steps, len(t.step_ms), t.slots, t.cached_tokens) for t in turns],
                all(t.ttft_ms > 0 and abs(sum(t.step_ms) - t.decode_ms) < 0.01 for t in turns),
                ready.memory_bytes == sum(ready.buffers.values())])
        """,
        smollm2,
    )
    assert got == [[0], 512, "on", ["compute", "kv", "output", "weights"], [32 + 7], [[7, 7, 1, 0]] * 2, True, True]


@pytest.mark.parametrize("settings", ["parallel=1", "parallel=3, ctx_size=1536", "cache_type_k='q8_0', cache_type_v='q8_0'"])
def test_the_history_stands_in_every_slot_before_each_turn(smollm2: Path, settings: str) -> None:
    """Whatever the turn before added is gone."""
    got = run_child(
        f"""
        from tuner.engines.llama_cpp_python import engine as room
        starts = []
        timed = room.time_prefill
        room.time_prefill = lambda *a: starts.append(held()) or timed(*a)
        steps = room.time_decode
        decoded = []
        room.time_decode = lambda *a: decoded.append(held()) or steps(*a)
        prepare(point({settings}), load(prompt=16, output=4, depth=64))
        starts.clear(), decoded.clear()
        turn(prefill=True, decode_tokens=4), turn(prefill=True), turn(prefill=False, decode_tokens=4), turn(prefill=True)
        report([starts, decoded])
        """,
        smollm2,
    )
    slots = 3 if "parallel=3" in settings else 1
    assert got == [[[64] * slots] * 3, [[80] * slots] * 2]


def test_threads_change_live_and_the_model_outlives_contexts(smollm2: Path) -> None:
    """Same context for other threads; same weights for another context; both anew only where they must be."""
    got = run_child(
        """
        seen = []
        def step(config, **request):
            ready = prepare(config, load(), **request)
            seen.append([ready.load_ms > 0, ready.context_ms > 0])
        step(point())
        first_model, first_context = engine._model, engine._context
        step(point())
        step(point(threads=2, threads_batch=2))
        same = engine._context is first_context and engine._context.threads == (2, 2)
        step(point(ubatch_size=64))
        step(point(ubatch_size=64), fresh=True)
        kept = engine._model is first_model
        step(point(load_mode="none"))
        report([seen, same, kept, engine._model is first_model])
        """,
        smollm2,
    )
    seen, same, kept, still = got
    assert seen == [[True, True], [False, False], [False, False], [False, True], [False, True], [True, True]]
    assert (same, kept, still) == (True, True, False)


@pytest.mark.parametrize(
    ("flash", "k", "v", "settled"),
    [
        ("on", "f16", "f16", "on"),
        ("off", "f16", "f16", "off"),
        ("auto", "f16", "f16", "on"),
        ("off", "q8_0", "f16", "off"),
        ("auto", "q8_0", "q8_0", "on"),
    ],
)
def test_flash_attention_and_cache_types_settle_as_llama_cpp_says(
    smollm2: Path, flash: str, k: str, v: str, settled: str
) -> None:
    """And turns run under each."""
    got = run_child(
        f"""
        ready = prepare(point(flash_attn={flash!r}, cache_type_k={k!r}, cache_type_v={v!r}), load(depth=32))
        t = turn(prefill=True, decode_tokens=4)
        report([ready.flash_attn, t.decode_steps, ready.buffers["kv CPU"]])
        """,
        smollm2,
    )
    per_cell = {"f16": 2.0, "q8_0": 34 / 32}
    assert got[:2] == [settled, 3]
    assert got[2] == pytest.approx(512 * 30 * 192 * (per_cell[k] + per_cell[v]), abs=2**14)


@pytest.mark.parametrize("swa_full", [False, True])
def test_a_window_model_comes_back_to_its_history(gemma3: Path, swa_full: bool) -> None:
    """Where the cache forgets what left the window, the history is restored rather than cut back."""
    got = run_child(
        f"""
        ready = prepare(point(ctx_size=2048, swa_full={swa_full}, ubatch_size=128), load(prompt=96, output=4, depth=640))
        turns = [turn(prefill=True, decode_tokens=4) for _ in range(2)]
        engine._ready.history.bring(640, fill_threads=1)
        report([engine._context.can_trim, held(), [t.decode_steps for t in turns], ready.buffers["kv CPU"]])
        """,
        gemma3,
    )
    assert got[:3] == [swa_full, [640], [3, 3]]
    cells = 2048 if swa_full else 768
    assert got[3] == pytest.approx((3 * 2048 + 15 * cells) * 256 * 2 * 2, abs=2**15)


@pytest.mark.parametrize("settings", ["flash_attn='on'", "flash_attn='off'", "cache_type_k='q8_0'"])
def test_a_restored_history_answers_like_a_computed_one(smollm2: Path, settings: str) -> None:
    """A second context with other batches restores instead of computing, and its logits are the same."""
    got = run_child(
        f"""
        import numpy as np
        prepare(point({settings}), load(prompt=16, depth=96))
        first, computed = last_logits(96), engine._ready.history.computed_tokens
        prepare(point({settings}, batch_size=64, ubatch_size=64), load(prompt=16, depth=96))
        second, again = last_logits(96), engine._ready.history.computed_tokens
        engine._store.clear()
        prepare(point({settings}), load(prompt=16, depth=96), fresh=True)
        third, anew = last_logits(96), engine._ready.history.computed_tokens
        scale = float(np.abs(first).max())
        report([computed, again, anew, float(np.abs(first - second).max()) / scale, float(np.abs(first - third).max()) / scale,
                float(np.abs(first).max())])
        """,
        smollm2,
    )
    computed, again, anew, restored, recomputed, scale = got
    assert (computed, again, anew) == (96, 0, 96)
    assert scale > 1
    assert restored < 0.005
    assert recomputed < 0.005


def test_prompts_of_slots_differ_and_tokens_are_ordinary(smollm2: Path) -> None:
    """The same every time, never an end or control token; the vocabulary's first token where it wants one."""
    got = run_child(
        """
        prepare(point(), load())
        tokens, api, vocab = engine._model.tokens, engine._native.api, None
        vocab = api.llama_model_get_vocab(engine._model.pointer)
        a, b = tokens.draw_prompt(0, 64, starts=False), tokens.draw_prompt(1, 64, starts=False)
        odd = [int(t) for t in (*a, *b) if api.llama_vocab_is_eog(vocab, int(t)) or api.llama_vocab_is_control(vocab, int(t))]
        report([(a == tokens.draw_prompt(0, 64, starts=False)).all().item(), (a == b).all().item(), odd])
        """,
        smollm2,
    )
    assert got == [True, False, []]


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ("cache_type_k='q8_1'", "invalid", "f32, f16, bf16, q8_0"),
        ("cache_type_v='q8_0', flash_attn='off'", "invalid", "quantized V cache requires flash_attn"),
        ("batch_size=0", "invalid", "batch_size"),
        ("threads=0", "invalid", "threads"),
        ("parallel=257", "invalid", "256"),
        ("ctx_size=256", "invalid", "tokens a slot"),
    ],
)
def test_what_cannot_run_is_refused_in_words(smollm2: Path, settings: str, kind: str, words: str) -> None:
    """The child lives on, and runs the next point."""
    got = run_child(
        f"""
        said = refusal(lambda: prepare(point({settings}), load(prompt=256, output=8, depth=128)))
        loaded = engine._model is not None
        prepare(point(), load())
        report([said, loaded, turn(prefill=True).ttft_ms > 0])
        """,
        smollm2,
    )
    assert got[0][0] == kind
    assert words in got[0][1]
    assert got[2] is True
    if "q8_1" in settings:
        assert got[1] is False, "a wrong cache type is refused before anything is loaded"


@pytest.mark.parametrize("request_", ["decode_tokens=1", "prefill=False", "decode_tokens=500"])
def test_turns_that_cannot_be_timed_or_do_not_fit_are_refused(smollm2: Path, request_: str) -> None:
    """One token has no rate; a turn longer than the context has no end."""
    got = run_child(f"prepare(point(), load()); report(refusal(lambda: turn({request_})))", smollm2)
    assert got[0] == "invalid"


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"not a model at all", "truncated"])
def test_an_unreadable_model_is_told_as_such(smollm2: Path, tmp_path: Path, content: bytes | str | None) -> None:
    """Missing, empty, foreign and cut short."""
    path = tmp_path / "broken.gguf"
    if content == "truncated":
        path.write_bytes(smollm2.read_bytes()[:20_000_000])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    got = run_child("report(refusal(lambda: prepare(point(), load())))", path)
    assert got[0] == "unreadable"
    assert got[1]


def test_another_numa_policy_needs_another_process(smollm2: Path) -> None:
    """llama.cpp sets it once."""
    got = run_child("prepare(point(), load()); report(refusal(lambda: prepare(point(numa='distribute'), load())))", smollm2)
    assert got[0] == "needs_process"


def test_a_turn_before_preparing_is_refused(smollm2: Path) -> None:
    """Also after a refusal: nothing is run under settings that were not brought about."""
    got = run_child(
        """
        first = refusal(lambda: turn(prefill=True))
        prepare(point(), load())
        refusal(lambda: prepare(point(batch_size=0), load()))
        engine_kept = refusal(lambda: turn(prefill=True))
        engine.close()
        report([first[0], engine_kept, refusal(lambda: turn(prefill=True))[0]])
        """,
        smollm2,
    )
    assert got[0] == got[2] == "failed"


def test_quantising_makes_a_whole_file(smollm2: Path, tmp_path: Path) -> None:
    """The size is the file's, and the engine runs it."""
    target = tmp_path / "made.gguf"
    got = run_child(
        f"""
        made = engine.run_task("quantise", {{"source": MODEL, "target": {str(target)!r}, "ftype": "Q4_0", "threads": 2}})
        prepare(point(model={str(target)!r}), load())
        report([made, turn(prefill=True, decode_tokens=4).decode_steps])
        """,
        smollm2,
    )
    assert got == [{"path": str(target), "bytes": target.stat().st_size}, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["made.gguf"]


@pytest.mark.parametrize(
    ("source", "folder", "ftype", "kind"),
    [
        ("broken", "", "Q4_0", "failed"),
        ("missing", "", "Q4_0", "unreadable"),
        ("good", "", "Q9_9", "invalid"),
        ("good", "nowhere", "Q4_0", "invalid"),
    ],
)
def test_quantising_leaves_no_part_behind(
    smollm2: Path, tmp_path: Path, source: str, folder: str, ftype: str, kind: str
) -> None:
    """An old target stays as it was."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(smollm2.read_bytes()[:20_000_000])
    paths = {"broken": broken, "missing": tmp_path / "missing.gguf", "good": smollm2}
    out = tmp_path / "out"
    out.mkdir()
    (out / "made.gguf").write_bytes(b"old")
    target = out / folder / "made.gguf"
    arguments = {"source": str(paths[source]), "target": str(target), "ftype": ftype}
    got = run_child(f"report(refusal(lambda: engine.run_task('quantise', {arguments!r})))", smollm2)
    assert got[0] == kind
    assert [(p.name, p.read_bytes()) for p in out.iterdir()] == [("made.gguf", b"old")]


def test_an_unknown_task_is_refused(smollm2: Path) -> None:
    """By name."""
    assert run_child("report(refusal(lambda: engine.run_task('paint', {})))", smollm2)[0] == "invalid"


def test_the_versions_are_told(smollm2: Path) -> None:
    """Package and llama.cpp."""
    got = run_child("f = engine.describe_runtime(); report([f.engine, f.version, f.llama_cpp])", smollm2)
    assert got[0] == "llama-cpp-python"
    assert got[1][0].isdigit()
    assert got[2]
