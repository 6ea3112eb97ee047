"""Attention in one pass."""

from __future__ import annotations

from typing import ClassVar, get_args

from tuner.runconfig import FlashAttn as Setting
from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_word
from tuner.space.traits import can_use_flash_attn, has_cache, settle_auto_flash_attn


class FlashAttn(Dimension):
    """Whether attention is computed in one fused pass, without the table of scores in memory.

    On saves memory (n_head × ubatch_size × n_ctx × 4 bytes of scores) and usually makes prefill faster, more so the longer
    the prompt. Decode on a GPU changes little; on a processor without fast arithmetic for the cache's f16 it can take two to
    three times as long behind a long history (see the rule DEC10), so that off is worth a try. A quantised V cache needs on.

    auto, the default, lets llama.cpp look whether the device has the kernel and is the safe choice: on, said by name, is
    not checked, and a missing kernel moves attention to the CPU without a warning. On a CPU, auto is on. A few
    architectures (grok) run without it whatever is asked. The value must be written: on, off or auto.
    """

    name: ClassVar[str] = "flash_attn"
    title: ClassVar[str] = "Flash attention"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode", "memory"})
    cost: ClassVar[Cost] = "context"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        if not has_cache(situation):
            return Absent(reason="this model has no attention")
        if not can_use_flash_attn(situation):
            return Absent(reason="llama.cpp turns flash attention off for this architecture, whatever is asked")
        return Domain(values=(settle_auto_flash_attn(situation), "off"), ordered=False)

    def find_default(self, situation: SpaceSituation) -> str:
        del situation
        return "auto"

    def parse_value(self, value: object) -> str:
        word = {"1": "on", "true": "on", "0": "off", "false": "off"}.get(value, value) if isinstance(value, str) else value
        return read_word(self.name, word, get_args(Setting))
