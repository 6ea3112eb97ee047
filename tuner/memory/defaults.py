"""Where a front end starts from: its own defaults, at a context that somebody chose.

The training context is never taken as a default: for many models it would ask for more memory than any machine has.
"""

from __future__ import annotations

from typing import Final

from tuner.memory.record import FrontEnd
from tuner.model.spec import ModelSpec
from tuner.runconfig import RunConfig

TARGET_CONTEXT: Final = 8192
"""Context that is shown when nobody asked for another, tokens."""


def choose_context(model: ModelSpec) -> int:
    """The target context, or the training context where that is smaller, tokens."""
    return min(TARGET_CONTEXT, model.context_length or TARGET_CONTEXT)


def default_config(front_end: FrontEnd, model: ModelSpec) -> RunConfig:
    """The front end's own defaults that matter to memory, at `choose_context`.

    llama-cpp-python's `Llama()` keeps whole caches for sliding windows, switches flash attention off, offloads nothing and
    uses batches of 512; llama-server does the opposite of each.
    """
    config = RunConfig(model=model.path, ctx_size=choose_context(model))
    if front_end == "llama-server":
        return config
    return config.replace(n_gpu_layers=0, batch_size=512, ubatch_size=512, flash_attn="off", swa_full=True)
