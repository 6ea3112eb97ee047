"""Block by block: which cache a block has and how wide it is, by llama.cpp's rules for each architecture.

Pure arithmetic on metadata; the bytes of weights are handed in. What the file leaves open becomes a note and a weaker basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from tuner.model import architecture as rules
from tuner.model.metadata import Facts
from tuner.model.spec import LayerKind, LayerSpec

Basis = Literal["exact", "upper_bound", "unknown"]
_STRENGTH: tuple[Basis, ...] = ("exact", "upper_bound", "unknown")


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """Attention heads as the file tells them."""

    n_head: tuple[int | None, ...]
    n_head_kv: tuple[int | None, ...]
    key: int | None
    value: int | None
    key_swa: int | None
    value_swa: int | None


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """All blocks and how far their KV facts can be trusted."""

    layers: tuple[LayerSpec, ...]
    n_swa: int | None
    v_elements_max: int | None
    is_mla: bool
    basis: Basis
    notes: tuple[str, ...]


class _Findings:
    """Notes met on the way, and the weakest basis among them."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.basis: Basis = "exact"

    def add(self, note: str, basis: Basis = "exact") -> None:
        self.notes.append(note)
        self.basis = max(self.basis, basis, key=_STRENGTH.index)


def describe_blocks(facts: Facts, n_layer: int, n_all: int, weights: Sequence[tuple[int, int]]) -> Blocks:
    """The blocks of the main context; `weights` are (bytes, expert bytes) per block, `n_all` counts draft blocks too."""
    found = _Findings()
    arch = facts.prefix
    heads = _read_heads(facts, n_all, found)
    recurrent = _find_recurrent(facts, heads, n_layer, n_all, found)
    n_swa, sliding = _find_sliding(facts, n_layer, recurrent, found)
    shared = _find_shared(facts, n_layer, n_all)
    is_mla = (
        arch in rules.MULTI_HEAD_LATENT
        and bool(facts.count("attention.key_length_mla"))
        and bool(facts.count("attention.value_length_mla"))
    )
    state = _recurrent_state(facts, heads, found) if any(recurrent) or arch in rules.RECURRENT_AND_ATTENDING else (0, 0)
    idle = _find_idle(facts, heads, recurrent, n_layer, n_all)
    layers = []
    for i in range(n_layer):
        kind = _kind(recurrent=recurrent[i], idle=idle[i], shared=shared[i], sliding=sliding[i])
        layers.append(
            _layer(
                heads, i, kind=kind, state=state, is_mla=is_mla, weights=weights[i], both=arch in rules.RECURRENT_AND_ATTENDING
            )
        )
    layers = _add_index_caches(facts, layers, found)
    layers = _repeat_loops(facts, layers, found)
    if arch in rules.UNMODELLED_CACHE:
        found.add(f"llama.cpp gives {arch} a cache of its own shape; its size is asked of llama.cpp, not computed.", "unknown")
    if any(layer.k_elements is None or layer.v_elements is None for layer in layers):
        found.add(
            "The file does not say how many or how wide its attention heads are: the KV cache's size is unknown.", "unknown"
        )
    return Blocks(
        layers=tuple(layers),
        n_swa=n_swa,
        v_elements_max=_widest_v(heads, sliding, n_all),
        is_mla=is_mla,
        basis=found.basis,
        notes=tuple(found.notes),
    )


def _kind(*, recurrent: bool, idle: bool, shared: bool, sliding: bool) -> LayerKind:
    if recurrent:
        return "recurrent"
    if idle:
        return "none"
    if shared:
        return "shared"
    return "sliding" if sliding else "attention"


def _layer(
    heads: Heads, i: int, *, kind: LayerKind, state: tuple[int, int], is_mla: bool, weights: tuple[int, int], both: bool
) -> LayerSpec:
    stateful = kind == "recurrent" or both
    cached = kind in {"attention", "sliding"}
    return LayerSpec(
        kind=kind,
        n_head=heads.n_head[i],
        n_head_kv=heads.n_head_kv[i] if cached else 0,
        key_length=heads.key_swa if kind == "sliding" else heads.key,
        value_length=heads.value_swa if kind == "sliding" else heads.value,
        caches_values=not is_mla,
        recurrent_r=state[0] if stateful else 0,
        recurrent_s=state[1] if stateful else 0,
        weight_bytes=weights[0],
        expert_bytes=weights[1],
    )


def _read_heads(facts: Facts, n_all: int, found: _Findings) -> Heads:
    n_head = facts.counts("attention.head_count", n_all)
    n_head_kv = facts.counts("attention.head_count_kv", n_all)
    if n_head is None and facts.prefix in rules.RECURRENT:
        n_head = (0,) * n_all
    if n_head_kv is None:
        n_head_kv = n_head
        if n_head is not None and any(n_head):
            found.add("The file does not state its KV heads; llama.cpp takes as many as query heads.")
    n_embd = facts.count("embedding_length")
    size = n_embd // n_head[0] if n_embd and n_head and n_head[0] else None
    silent = n_head is not None and n_all > 0 and n_head[0] == 0
    key, value = _stated(facts, "attention.key_length", size), _stated(facts, "attention.value_length", size)
    if silent:
        key = value = 0
    return Heads(
        n_head=n_head or (None,) * n_all,
        n_head_kv=n_head_kv or (None,) * n_all,
        key=key,
        value=value,
        key_swa=_stated(facts, "attention.key_length_swa", key),
        value_swa=_stated(facts, "attention.value_length_swa", value),
    )


def _stated(facts: Facts, key: str, otherwise: int | None) -> int | None:
    stated = facts.count(key)
    return otherwise if stated is None else stated


def _find_recurrent(facts: Facts, heads: Heads, n_layer: int, n_all: int, found: _Findings) -> list[bool]:
    arch = facts.prefix
    if arch in rules.RECURRENT:
        return [True] * n_layer
    if arch in rules.RECURRENT_WITHOUT_HEADS:
        return [n_head_kv == 0 for n_head_kv in heads.n_head_kv[:n_layer]]
    if arch in rules.RECURRENT_WITHOUT_FFN:
        n_ff = facts.counts("feed_forward_length", n_all) or (0,) * n_all
        return [heads.n_head_kv[i] == 0 and n_ff[i] == 0 for i in range(n_layer)]
    known_interval = rules.RECURRENT_INTERVALS.get(arch)
    declares = facts.count("full_attention_interval") is not None or facts.flags("attention.recurrent_layers") is not None
    if known_interval is None and (arch in rules.KNOWN or not declares):
        return [False] * n_layer
    return _interval_pattern(facts, n_layer, n_all, known_interval, found)


def _interval_pattern(facts: Facts, n_layer: int, n_all: int, default: int | None, found: _Findings) -> list[bool]:
    """Recurrent blocks of a hybrid: an explicit list wins over the interval."""
    if facts.flags("attention.recurrent_layers") is not None:
        listed = facts.counts("attention.recurrent_layers", n_all) or ()
        return [bool(flag) for flag in listed[:n_layer]]
    interval = _stated(facts, "full_attention_interval", default)
    if not interval:
        found.add("The file's full_attention_interval is 0: which blocks attend is unknown, all are counted.", "upper_bound")
        return [False] * n_layer
    return [(i + 1) % interval != 0 for i in range(n_layer)]


def _find_idle(facts: Facts, heads: Heads, recurrent: list[bool], n_layer: int, n_all: int) -> list[bool]:
    """Blocks without any cache: encoders, diffusion models, feed-forward blocks of hybrids, blocks without KV heads."""
    arch = facts.prefix
    if arch in rules.ENCODERS or arch in rules.DIFFUSERS:
        return [True] * n_layer
    idle = [n_head_kv == 0 and not recurrent[i] for i, n_head_kv in enumerate(heads.n_head_kv[:n_layer])]
    if arch in rules.RECURRENT_WITHOUT_FFN:
        n_ff = facts.counts("feed_forward_length", n_all) or (0,) * n_all
        idle = [was or (n_ff[i] > 0 and not recurrent[i]) for i, was in enumerate(idle)]
    return idle


def _find_sliding(facts: Facts, n_layer: int, recurrent: list[bool], found: _Findings) -> tuple[int | None, list[bool]]:
    """(window that llama.cpp uses, which blocks slide)."""
    arch, none = facts.prefix, [False] * n_layer
    stated = facts.count("attention.sliding_window")
    rule = rules.WINDOWS.get(arch)
    if rule is None:
        return _unlisted_window(facts, stated, n_layer, found)
    declared = rule.default if stated is None else stated
    if not declared or (rule.only_n_layer and n_layer != rule.only_n_layer):
        return None, none
    window = rule.fixed or declared
    pattern = _pattern(facts, rule, n_layer)
    if pattern is None:
        found.add(
            f"The file has a window of {window} tokens but no pattern: the KV size is an upper bound.",
            "upper_bound",
        )
        return window, none
    return window, [slides and not recurrent[i] for i, slides in enumerate(pattern)]


def _unlisted_window(facts: Facts, stated: int | None, n_layer: int, found: _Findings) -> tuple[int | None, list[bool]]:
    """Known architectures ignore the window; unknown ones use it as the metadata says, or nobody knows how."""
    none = [False] * n_layer
    if not stated:
        if facts.prefix not in rules.KNOWN:
            found.add(f"The architecture {facts.prefix} is not known here: its KV size is an upper bound.", "upper_bound")
        return None, none
    if facts.prefix in rules.KNOWN:
        found.add(f"llama.cpp does not use the file's window of {stated} tokens for {facts.prefix}.")
        return None, none
    pattern = _pattern(facts, rules.Window(period=None), n_layer)
    if pattern is not None:
        found.add(
            f"The architecture {facts.prefix} is not known here; its window's pattern is taken from the file.", "upper_bound"
        )
        return stated, pattern
    found.add(
        f"The architecture {facts.prefix} is not known here and the file has a window of {stated} tokens without a pattern: "
        "the KV size is an upper bound, all blocks counted whole.",
        "upper_bound",
    )
    return stated, none


def _pattern(facts: Facts, rule: rules.Window, n_layer: int) -> list[bool] | None:
    """Which blocks slide: the file's array, else its period, else the architecture's."""
    period = rule.period
    if rule.reads_pattern:
        listed = facts.flags("attention.sliding_window_pattern")
        if listed is not None:
            return [i < len(listed) and listed[i] for i in range(n_layer)]
        period = _stated(facts, "attention.sliding_window_pattern", period)
    if period is None:
        return None
    if period == 0:
        return [True] * n_layer
    if rule.dense_first:
        return [i % period != 0 for i in range(n_layer)]
    return [i % period < period - 1 for i in range(n_layer)]


def _find_shared(facts: Facts, n_layer: int, n_all: int) -> list[bool]:
    arch = facts.prefix
    if arch not in rules.SHARES_KV:
        return [False] * n_layer
    own = rules.GEMMA3N_OWN_KV if arch == "gemma3n" else n_all - (facts.count("attention.shared_kv_layers") or 0)
    return [i >= own for i in range(n_layer)]


def _recurrent_state(facts: Facts, heads: Heads, found: _Findings) -> tuple[int, int]:
    """(convolution, state) elements of one recurrent block for one sequence."""
    n_embd = facts.count("embedding_length")
    wkv, short = facts.count("wkv.head_size"), facts.count("shortconv.l_cache")
    if (wkv or short) and n_embd is not None:
        shift = _stated(facts, "token_shift_count", 2) or 0
        return (shift * n_embd, n_embd * wkv) if wkv else (n_embd * max((short or 0) - 1, 0), 0)
    conv = facts.count("ssm.conv_kernel") or 0
    kda = facts.count("kda.head_dim")
    if kda:
        first = heads.n_head[0] or 0
        return 3 * (conv - 1 if conv else 3) * first * kda, kda * kda * first
    inner, width = facts.count("ssm.inner_size") or 0, facts.count("ssm.state_size") or 0
    groups = 0 if facts.prefix in rules.UNGROUPED_STATE else facts.count("ssm.group_count") or 0
    r = max(conv - 1, 0) * (inner + 2 * groups * width)
    if facts.prefix == "minimax-01":
        key = heads.key or 0
        return r, key * key * (heads.n_head[0] or 0)
    if not inner * width:
        found.add("The file does not say how large its recurrent state is.", "unknown")
    return r, width * inner


def _add_index_caches(facts: Facts, layers: list[LayerSpec], found: _Findings) -> list[LayerSpec]:
    """Sparse attention keeps a second, narrow cache beside the main one."""
    arch, length = facts.prefix, facts.count("attention.indexer.key_length") or 0
    unused = arch == "hy_v4" and not facts.count("attention.indexer.top_k")
    if arch not in rules.INDEXED or not length or unused:
        return layers
    width = 3 * length if arch == "glm5-next" and facts.count("attention.indexer.kpool") else length
    full = facts.flags("attention.indexer.types")
    dense = (facts.count("leading_dense_block_count") or 0) if arch == "minimax-m3" else 0
    found.add(
        "Sparse attention: a second cache of index keys is counted.",
        "upper_bound" if arch == "glm-dsa" and full is None else "exact",
    )
    wide = []
    for i, layer in enumerate(layers):
        owns = layer.kind in {"attention", "sliding"} and i >= dense and (full is None or (i < len(full) and full[i]))
        values = (layer.value_length or 0) if owns and layer.caches_values and arch == "minimax-m3" else 0
        keys = (layer.key_length or 0) if layer.kind == "sliding" else width
        wide.append(msgspec.structs.replace(layer, index_k_elements=keys, index_v_elements=values) if owns else layer)
    return wide


def _repeat_loops(facts: Facts, layers: list[LayerSpec], found: _Findings) -> list[LayerSpec]:
    """Blocks that run several times appear once more for each run; their weights are there only once."""
    loops = (facts.count("num_loops") or 1) if facts.prefix in rules.LOOPED else 1
    if loops == 1:
        return layers
    if loops * len(layers) > rules.MOST_LAYERS:
        raise facts.refusal(
            "num_loops", f"is {loops}, which makes more blocks than the {rules.MOST_LAYERS} that llama.cpp takes"
        )
    found.add(f"Its {len(layers)} blocks run {loops} times, each time with a cache of their own.")
    again = [msgspec.structs.replace(layer, weight_bytes=0, expert_bytes=0) for layer in layers]
    return layers + again * (loops - 1)


def _widest_v(heads: Heads, sliding: list[bool], n_all: int) -> int | None:
    """Over all blocks, draft and recurrent ones too, as llama.cpp takes it."""
    widths = []
    for i in range(n_all):
        length = heads.value_swa if i < len(sliding) and sliding[i] else heads.value
        n_head_kv = heads.n_head_kv[i]
        if n_head_kv is None or length is None:
            return None
        widths.append(n_head_kv * length)
    return max(widths, default=None)
