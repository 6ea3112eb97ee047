"""MEM06: room for attention without flash attention."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory import settle_geometry
from tuner.memory.compute import attention_scratch_bytes
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.cheapest_way import tell_freed, tell_part
from tuner.rules.out_of_memory.levers import expect_memory, find_step, fits
from tuner.rules.points import change_point


class AttentionScratch(Rule):
    """Prompts are read in pieces (micro-batches). To look back, each token of a piece is compared with each token of the
    context, in each head of a layer. Without flash attention llama.cpp writes the whole table of these numbers down:

        context × micro-batch × heads × 4 bytes.

    At 32768 tokens, pieces of 512 and 32 heads that is 2 GiB beside the cache, and it grows with each factor. Flash attention
    works the table off piece by piece and never stores it. llama-server switches it on by itself where it can run;
    llama-cpp-python has it off unless told `flash_attn=True`. (It is a part of llama.cpp; the Python package of that name has
    nothing to do with it.)

    When this is wrong: on some processors flash attention slows writing down when the history is long (DEC10 predicts it). A
    few models cannot use it; then a smaller micro-batch is what helps, and MEM07 says so.
    """

    code: ClassVar[str] = "MEM06"
    title: ClassVar[str] = "Attention tables without flash attention"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory", "long-chat"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = find_step(situation, self.code)
        if found is None:
            return ()
        step, alone = found
        change = step.change if alone else {}
        finding = Finding(
            code=self.code,
            title="Without flash attention much memory goes to tables that are used for a moment.",
            severity="slows" if fits(situation) else "stops",
            evidence=(*tell_scratch(situation), tell_freed(step.freed_bytes)),
            change=change,
            remedy=f"Set flash_attn to on.{tell_part(alone=alone)}",
            expected=expect_memory(situation, change) if change else None,
            costs="On some processors writing with a long history gets slower.",
        )
        return (finding,)


def tell_scratch(situation: Situation) -> tuple[Evidence, ...]:
    """The table of one layer as evidence, with its product; () where flash attention runs or the heads are not known."""
    model, config = situation.model, change_point(situation, {})
    geometry = settle_geometry(model, config)
    heads = max((layer.n_head or 0 for layer in model.layers), default=0)
    if geometry is None or not heads or (config.flash_attn != "off" and not model.flash_attn_forced_off):
        return ()
    size = attention_scratch_bytes(cells=geometry.cells, ubatch=geometry.ubatch, n_head=heads)
    text = f"{geometry.cells} cells × {geometry.ubatch} tokens × {heads} heads × 4 bytes"
    return (
        Evidence(what="attention tables", value=text, basis="predicted"),
        Evidence(what="attention tables, at least", value=size, unit="bytes", basis="predicted"),
    )
