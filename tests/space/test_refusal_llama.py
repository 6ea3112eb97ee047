"""Our refusals are llama.cpp's: each is put to a real context, in a child that may die of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.runconfig import RunConfig
from tuner.space.refusal import RefusalFacts, find_refusal

FACTS = RefusalFacts(head_sizes_k=(64,), head_sizes_v=(64,))
"""SmolLM2 has heads of 64."""

TRY = """
import json, sys, llama_cpp as L
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
kinds = {"f16": 1, "q8_0": 8, "iq4_nl": 20, "q4_K": 12}
for config in json.loads(sys.argv[2]):
    p = L.llama_context_default_params()
    p.n_ctx, p.n_seq_max = config["ctx_size"], config["parallel"]
    p.n_batch, p.n_ubatch = config["batch_size"], config["ubatch_size"]
    p.type_k, p.type_v = kinds[config["cache_type_k"]], kinds[config["cache_type_v"]]
    p.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[config["flash_attn"]]
    context = L.llama_init_from_model(model, p)
    print("built" if context else "refused", flush=True)
    if context:
        L.llama_free(context)
"""

POINTS = {
    "the default": {},
    "V in blocks, flash attention off": {"cache_type_v": "q8_0", "flash_attn": "off"},
    "V in blocks, flash attention auto": {"cache_type_v": "q8_0"},
    "K in blocks, flash attention off": {"cache_type_k": "q8_0", "flash_attn": "off"},
    "K and V of different types": {"cache_type_k": "q8_0", "cache_type_v": "iq4_nl", "flash_attn": "on"},
    "K in blocks of 256": {"cache_type_k": "q4_K"},
    "257 slots": {"parallel": 257},
    "both batches 0": {"batch_size": 0, "ubatch_size": 0},
    "micro-batch 0": {"ubatch_size": 0},
    "batches beyond the context": {"batch_size": 4096, "ubatch_size": 8192},
    "batch 0, which ends the process": {"batch_size": 0},
}


@pytest.mark.llama
def test_llama_cpp_agrees(smollm2: Path) -> None:
    """It builds a context where we refuse nothing, and gives up, or in the last case dies, where we do."""
    configs = [RunConfig(ctx_size=512).replace(**settings) for settings in POINTS.values()]
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(smollm2), json.dumps([config.as_dict() for config in configs])],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={"GGML_NO_BACKTRACE": "1", "PATH": "/usr/bin:/bin"},
    )
    said = [line for line in done.stdout.splitlines() if line in ("built", "refused")]
    expected = ["refused" if find_refusal(config, FACTS) else "built" for config in configs]
    assert said == expected[:-1], done.stderr[-500:]
    assert done.returncode < 0
    assert expected[-1] == "refused"
