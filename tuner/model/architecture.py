"""What llama.cpp knows of an architecture beyond the file's metadata: window patterns, recurrent kinds, caches it never makes.

A GGUF file says how long a sliding window is; which layers use it is, for many families, written only in llama.cpp's source.
These tables hold those facts. An architecture that no table names is never guessed at: its cache is an upper bound,
and said so.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec

MOST_LAYERS: Final = 512
"""Blocks that llama.cpp takes at most."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How a family places its sliding-window layers when the metadata has no pattern."""

    period: int | None
    """Every `period`-th layer attends to everything; 0: none does; None: only the metadata can say."""
    dense_first: bool = False
    """True where the full layer opens each period instead of closing it."""
    default: int = 0
    """Window in tokens where the metadata has none; 0: then there is no window."""
    fixed: int = 0
    """Window in tokens whatever the metadata says; 0: the metadata counts."""
    only_n_layer: int = 0
    """The window is used by the size with this many layers only; 0: by all."""
    reads_pattern: bool = True
    """False where llama.cpp ignores a pattern in the metadata."""


WINDOWS: Final = MappingProxyType(
    {
        "afmoe": Window(period=4),
        "cohere2": Window(period=4),
        "cohere2moe": Window(period=4, dense_first=True),
        "deepseek4": Window(period=0, reads_pattern=False),
        "dflash": Window(period=None),
        "dots3note": Window(period=None),
        "exaone-moe": Window(period=4, default=128),
        "exaone4": Window(period=4, default=4096, only_n_layer=64),
        "gemma-embedding": Window(period=6),
        "gemma2": Window(period=2, default=4096),
        "gemma3": Window(period=6),
        "gemma3n": Window(period=5),
        "gemma4": Window(period=None),
        "gemma4-assistant": Window(period=None),
        "gpt-oss": Window(period=2),
        "granite_swa": Window(period=None),
        "laguna": Window(period=4, dense_first=True),
        "lfm2": Window(period=0, reads_pattern=False),
        "llama4": Window(period=4, default=8192, fixed=8192),
        "maple": Window(period=None),
        "mellum": Window(period=4),
        "mimo2": Window(period=None),
        "modern-bert": Window(period=3, dense_first=True),
        "muse-glimmer": Window(period=4),
        "olmo2": Window(period=4),
        "plamo3": Window(period=8),
        "smallthinker": Window(period=4, dense_first=True, fixed=4096),
        "spark2_5": Window(period=None),
        "step35": Window(period=None),
    }
)
"""Architectures whose sliding window llama.cpp uses; in every other one that it knows, the window is ignored."""

RECURRENT: Final = frozenset({"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"})
"""No layer has a KV cache."""

RECURRENT_WITHOUT_HEADS: Final = frozenset(
    {"bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"}
)
"""Hybrids: a layer is recurrent where its number of KV heads is 0."""

RECURRENT_WITHOUT_FFN: Final = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Hybrids: a layer is recurrent where it has neither KV heads nor a feed-forward part."""

RECURRENT_INTERVALS: Final = MappingProxyType({"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4})
"""Hybrids: every n-th layer attends, the rest is recurrent; the number is llama.cpp's where the metadata has none."""

RECURRENT_AND_ATTENDING: Final = frozenset({"falcon-h1"})
"""Each layer has a KV cache and a recurrent state."""

UNGROUPED_STATE: Final = frozenset({"jamba", "mamba"})
"""State-space models of the first kind: llama.cpp ignores a number of groups in their files."""

LOOPED: Final = frozenset({"nanbeige"})
"""The same blocks run several times, each time with a cache of their own."""

SHARES_KV: Final = frozenset({"gemma3n", "gemma4", "gemma4-assistant"})
"""Later layers read the KV cache of an earlier one."""

GEMMA3N_OWN_KV: Final = 20
"""Layers of gemma3n that own a KV cache; fixed in llama.cpp."""

MULTI_HEAD_LATENT: Final = frozenset(
    {
        "bailingmoe3",
        "deepseek2",
        "deepseek32",
        "dots3note",
        "glm-dsa",
        "glm5-next",
        "hy_v4",
        "kimi-k3",
        "kimi-linear",
        "mistral4",
    }
)
"""Architectures in which the *_mla keys turn the cache into keys only."""

INDEXED: Final = frozenset({"deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3", "qwen4exp"})
"""Sparse attention with a second cache of index keys."""

UNMODELLED_CACHE: Final = frozenset({"deepseek4", "dflash", "eagle3", "gemma4-assistant", "graniteswitch", "qwen4exp"})
"""llama.cpp gives these a cache of a shape of their own; what the layers say is only near it."""

ENCODERS: Final = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "t5encoder",
        "wavtokenizer-dec",
    }
)
"""Text in, vector out: no KV cache, nothing to decode."""

DIFFUSERS: Final = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""They write all positions at once and keep no KV cache."""

ENCODER_DECODERS: Final = frozenset({"t5"})

FLASH_ATTENTION_OFF: Final = frozenset({"grok"})
"""llama.cpp switches flash attention off whatever it is told."""

NOT_MODELS: Final = MappingProxyType(
    {
        "mmproj": ("a projector", "Give the text model; use --mmproj for this file."),
        "adapter": ("an adapter", "Give the model that it was made for; an adapter alone cannot run."),
        "imatrix": ("an importance matrix", "Give the model; an importance matrix is only used to quantise one."),
        "vocab": ("a vocabulary without weights", "Give the model that it belongs to."),
    }
)
"""general.type → what such a file is, and what to do."""

_DENSE: Final = (
    "llama deci falcon gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2 qwen2moe qwen2vl "
    "qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell orion internlm2 minicpm minicpm3 gemma "
    "starcoder2 xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2 deepseek2-ocr chatglm glm4 glm4moe "
    "bitnet jais jais2 nemotron exaone granite granitemoe chameleon plm bailingmoe bailingmoe2 dots1 arcee ernie4_5 "
    "ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 smollm3 seed_oss grovemoe apertus hrm_text minimax-m2 "
    "cogvlm pangu-embedded mistral3 mistral4 paddleocr llama-embed maincoder talkie nanbeige qwen3tts pockettts"
)

KNOWN: Final = (
    frozenset(_DENSE.split())
    | RECURRENT
    | RECURRENT_WITHOUT_HEADS
    | RECURRENT_WITHOUT_FFN
    | RECURRENT_AND_ATTENDING
    | INDEXED
    | UNMODELLED_CACHE
    | ENCODERS
    | DIFFUSERS
    | ENCODER_DECODERS
    | FLASH_ATTENTION_OFF
    | frozenset(WINDOWS)
    | frozenset(RECURRENT_INTERVALS)
)
"""Architectures that llama.cpp loads, and whose rules are therefore known here."""
