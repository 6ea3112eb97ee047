"""MEM01: the sum that memory is spent on, the KV cache laid out."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final

from tuner.memory import kv_bytes, recurrent_bytes, settle_geometry
from tuner.model.spec import LayerSpec
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.out_of_memory.largest_context import find_largest
from tuner.rules.out_of_memory.levers import fits, is_short
from tuner.rules.points import change_point, count_memory
from tuner.units import format_bytes

_PER_VALUE: Final = {
    "f32": "4", "f16": "2", "bf16": "2", "q8_0": "34/32", "q5_1": "24/32", "q5_0": "22/32", "q4_1": "20/32", "q4_0": "18/32",
    "iq4_nl": "18/32",
}  # fmt: skip
_UPPER: Final = "at most, for the file does not say which layers have a window"


class KvArithmetic(Rule):
    """A model takes memory for three things: its weights (the file), room for intermediate results, and the KV cache. The cache
    is the model's notes on the text: for each token (a word or a piece of one) of context and each layer that looks back, one
    row of keys (K) and one of values (V). So it takes

        layers × cells × KV heads × (key size + value size) × bytes per value.

    Cells are the tokens of context, rounded up to a multiple of 256 for each slot (the place of one conversation). KV heads are
    often far fewer than the heads that a model is described with, and the head size need not be the width divided by the heads:
    the rule takes what the file says. A layer with a sliding window needs cells for its window only. A layer with a recurrent
    state has one fixed block per slot and no rows at all. The whole cache is set aside when the model starts, so a long chat
    does not run out of it later.

    The rule lays out this sum with your model's own numbers when the settings do not fit, or when you said that memory ran out,
    and tells the largest context that fits with the other settings as they are. Nothing is to be changed here; MEM02 tells what
    frees how much.

    When this is wrong: weights and cache are exact where the file tells all, and said to be an upper bound where it does not.
    Intermediate results are only a lower bound here. A projector for images, a draft model, and prompts that llama-server keeps
    in main memory (--cache-ram) come on top.
    """

    code: ClassVar[str] = "MEM01"
    title: ClassVar[str] = "Where the memory goes"
    symptoms: ClassVar[frozenset[str]] = frozenset({"out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        if not situation.model.layers or not is_short(situation):
            return ()
        misfit = situation.find_misfit(change_point(situation, {}))
        finding = Finding(
            code=self.code,
            title="These settings need more memory than there is."
            if misfit
            else "By the sums these settings fit, so this is where the memory goes.",
            severity="hint" if fits(situation) else "stops",
            evidence=(*tell_cache(situation), *_tell_rest(situation)),
            remedy=misfit
            or "Look for what comes on top of these sums: other programs, a projector, a draft model, kept prompts.",
        )
        return (finding,)


def tell_cache(situation: Situation) -> tuple[Evidence, ...]:
    """The KV cache as a product for each kind of layer, its sum, and what one token of context takes."""
    model, config = situation.model, change_point(situation, {})
    size = kv_bytes(model, config)
    lines = (
        *(Evidence(what=f"KV cache, {name}", value=text, basis="predicted") for name, text in _list_products(situation)),
        *(Evidence(what="KV cache", value=each, unit="bytes", basis="predicted") for each in (size,) if each is not None),
        *(
            Evidence(what="KV cache for one token", value=each, unit="bytes", basis="predicted")
            for each in (count_per_token(situation),)
            if each
        ),
    )
    bound = (Evidence(what="how well that is known", value=_UPPER, basis="assumed"),)
    return (*lines, *(bound if model.kv_basis == "upper_bound" else ()))


def count_per_token(situation: Situation) -> int | None:
    """What a further token of context takes in the layers that keep all of it, bytes; None: unknown."""
    config = change_point(situation, {})
    step = 256 * max(1, config.parallel)
    sizes = [kv_bytes(situation.model, config.replace(ctx_size=config.ctx_size + extra)) for extra in (0, step)]
    if not config.ctx_size or sizes[0] is None or sizes[1] is None:
        return None
    return (sizes[1] - sizes[0]) // step


def _list_products(situation: Situation) -> list[tuple[str, str]]:
    config = change_point(situation, {})
    geometry = settle_geometry(situation.model, config)
    kinds = Counter(layer for layer in map(_shape, situation.model.layers) if layer is not None)
    if geometry is None or situation.model.kv_basis == "unknown":
        return []
    k, v = _PER_VALUE[config.cache_type_k], _PER_VALUE[config.cache_type_v]
    found = []
    for (kind, heads, key, value), count in kinds.items():
        cells = geometry.window_cells if kind == "sliding" else geometry.cells
        slots = f"{geometry.streams} slots × " if geometry.streams > 1 else ""
        values = f"({key} × {k} + {value} × {v})" if value else f"{key} × {k}"
        name = "layers with a window" if kind == "sliding" else "layers that keep everything"
        found.append((name, f"{count} layers × {slots}{cells} cells × {heads} KV heads × {values} bytes"))
    return found


def _shape(layer: LayerSpec) -> tuple[str, int, int, int] | None:
    if layer.kind not in {"attention", "sliding"} or not layer.n_head_kv or layer.key_length is None:
        return None
    value = layer.value_length or 0 if layer.caches_values else 0
    return layer.kind, layer.n_head_kv, layer.key_length, value


def _tell_rest(situation: Situation) -> tuple[Evidence, ...]:
    config = change_point(situation, {})
    footprint = count_memory(situation, config)
    told = (
        ("weights", footprint.bytes_of("weights")),
        ("recurrent state", recurrent_bytes(situation.model, config) or None),
        ("intermediate results, at least", footprint.bytes_of("compute")),
        ("projector, with room for an input", footprint.bytes_of("projector")),
        ("draft model with its cache, at least", footprint.bytes_of("draft")),
    )
    known = tuple(Evidence(what=what, value=size, unit="bytes", basis="predicted") for what, size in told if size)
    places = [(place, free) for place in footprint.devices if (free := situation.budget.on(place)) is not None]
    return (
        *known,
        *(Evidence(what=f"memory to be had on {place}", value=format_bytes(free), basis="measured") for place, free in places),
        *(_tell_largest(situation) if places else ()),
    )


def _tell_largest(situation: Situation) -> tuple[Evidence, ...]:
    """With the other settings as they are; at most what the model was trained on."""
    if not situation.model.has_kv or not situation.model.kv_known:
        return ()
    return (Evidence(what="largest context that fits", value=find_largest(situation), unit="tokens", basis="predicted"),)
