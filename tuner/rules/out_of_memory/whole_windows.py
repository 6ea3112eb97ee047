"""MEM04: whole caches are kept for layers that look at a window only."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory import settle_geometry
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step, fits
from tuner.rules.points import change_point


class WholeWindows(Rule):
    """In some models (Gemma 3, gpt-oss and others) most layers look back at the last few hundred or thousand tokens only, their
    sliding window. They need a cache (notes on the text so far) for the window, not for the whole context. The setting
    `swa_full` keeps the whole context for them all the same. The programs differ here: llama-server has it off, the C interface
    has it on, and llama-cpp-python leaves it so. That is why the same file can take two to eight times the cache in Python.

    The rule speaks when the setting is on, the model has windows, and memory is short. The remedy is `swa_full=False` in
    llama-cpp-python, or to leave away `--swa-full` in llama-server. Neither speed nor answers suffer.

    When this is wrong: with the window alone, a conversation cannot be cut back and taken up again at an earlier point, and the
    beginning of a long prompt cannot be used again for another one. Where many prompts share a long beginning, `swa_full` can
    be worth its memory.
    """

    code: ClassVar[str] = "MEM04"
    title: ClassVar[str] = "Whole caches for sliding-window layers"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory", "long-chat", "many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        finding = Finding(
            code=self.code,
            title="Layers that look back at a short window keep a cache for the whole context.",
            severity="slows" if fits(situation) else "stops",
            evidence=(*_tell_cells(situation), tell_freed(step.freed_bytes)),
            change=change,
            remedy="Switch swa_full off: llama-server does by itself, llama-cpp-python only when told `swa_full=False`."
            + tell_part(alone=alone),
            expected=expect_memory(situation, change) if change else None,
            costs="The beginning of an earlier prompt cannot be used again as freely.",
        )
        return (finding,)


def _tell_cells(situation: Situation) -> tuple[Evidence, ...]:
    model, config = situation.model, change_point(situation, {})
    geometry = settle_geometry(model, config.replace(swa_full=False))
    if geometry is None or model.n_swa is None:
        return ()
    layers = sum(layer.kind == "sliding" for layer in model.layers)
    return (
        Evidence(what="sliding window", value=model.n_swa, unit="tokens", basis="measured"),
        Evidence(what="layers with a window", value=layers, unit="layers", basis="measured"),
        Evidence(what="tokens that they keep in each slot", value=geometry.cells, unit="tokens", basis="predicted"),
        Evidence(what="tokens that they need in each slot", value=geometry.window_cells, unit="tokens", basis="predicted"),
    )
