"""Run as a child: finds by trial which metadata and tensors llama.cpp wants for an architecture, then prints its cache sizes.

llama.cpp names each missing key and tensor and the shape it expects, so that a loadable header of any architecture can be grown
from a few facts without knowing its tensors. Nothing is allocated, and the weights are holes in a sparse file.

    llama_child.py PATH ARCHITECTURE FACTS_AS_JSON   →   lines "size CELLS LAYERS K_MIB V_MIB" and "state R_MIB S_MIB"

Some architectures abort after the caches are made, for want of sensible numbers; the lines are out by then.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from tests.builders.gguf_files import F16, F32, write_gguf

MOST_TRIES = 1500
KEY = re.compile(r"key not found in model: (\S+)")
TYPE = re.compile(r"key (\S+) has wrong type \w+ but expected type (\w+)")
TENSOR = re.compile(r"tensor '([^']+)' (?:not found|has wrong)|missing tensor '([^']+)'")
SHAPE = re.compile(r"wrong shape; expected ([\d, ]+?), got")
CACHE = re.compile(r"llama_kv_cache: size = .*?\( *(\d+) cells, +(\d+) layers.*?K \(\w+\): +([\d.]+) MiB, V \(\w+\): +([\d.]+)")
STATE = re.compile(r"llama_memory_recurrent: size = .*?R \(f32\): +([\d.]+) MiB, S \(f32\): +([\d.]+)")
BY_TYPE = {"f32": 1.0, "bool": True, "str": "x", "u32": 64, "i32": 64}


def guess_value(key: str) -> object:
    for word, value in (
        ("epsilon", 1e-5),
        ("gating_func", 2),
        ("lower_bound", -5.0),
        ("hyper_connection.count", 4),
        ("weights_norm", True),
    ):
        if word in key:
            return value
    return 1.0 if any(word in key for word in ("scale", "freq_base", "softcapping", "clamp")) else 64


def grow_shape(tensors: dict[str, tuple[int, ...]], name: str, complaint: str, n_layer: int) -> None:
    """Takes over the shape that llama.cpp expects, for later blocks' tensors of the same name too."""
    found = SHAPE.search(complaint)
    if found is None:
        tensors[name] = (1,)
        return
    shape = [int(size) for size in found[1].split(",")]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    tensors[name] = tuple(shape)
    block = re.fullmatch(r"blk\.(\d+)\.(.*)", name)
    for i in range(int(block[1]) + 1 if block else n_layer, n_layer):
        if block and tensors.get(f"blk.{i}.{block[2]}") == (1,):
            tensors[f"blk.{i}.{block[2]}"] = tuple(shape)


def main(path: Path, architecture: str, facts: dict[str, object]) -> None:
    import llama_cpp as llama

    log: list[str] = []
    answering = False

    @llama.llama_log_callback
    def listen(level: int, text: bytes, data: object) -> None:
        line = text.decode(errors="replace")
        log.append(line)
        for word, pattern in (("size", CACHE), ("state", STATE)):
            if answering and (found := pattern.search(line)):
                print(word, *found.groups(), flush=True)

    llama.llama_log_set(listen, None)
    options = llama.llama_model_default_params()
    options.no_alloc, options.load_mode = True, 0
    metadata = {"general.architecture": architecture, "tokenizer.ggml.model": "no_vocab"}
    metadata |= {f"{architecture}.{key}": value for key, value in facts.items()}  # type: ignore[dict-item]
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (1,)}
    model = None
    for _ in range(MOST_TRIES):
        log.clear()
        write_gguf(path, metadata, [(name, shape, F16 if len(shape) > 1 else F32) for name, shape in tensors.items()])
        model = llama.llama_model_load_from_file(str(path).encode(), options)
        if model:
            break
        complaint = "".join(log)
        if found := KEY.search(complaint):
            metadata[found[1]] = guess_value(found[1])  # type: ignore[assignment]
        elif found := TYPE.search(complaint):
            metadata[found[1]] = BY_TYPE[found[2]]  # type: ignore[assignment]
        elif found := TENSOR.search(complaint):
            grow_shape(tensors, found[1] or found[2], complaint, int(str(facts["block_count"])))
        else:
            sys.exit(f"cannot grow {architecture}: {complaint[-500:]}")
    if not model:
        sys.exit(f"gave up on {architecture}: {''.join(log)[-500:]}")
    context = llama.llama_context_default_params()
    context.n_ctx, context.n_ubatch, context.n_seq_max, context.swa_full, context.flash_attn_type = 8192, 512, 1, False, 1
    answering = True
    llama.llama_init_from_model(model, context)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
