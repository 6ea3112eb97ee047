"""llama-cpp-python: a Python file that loads the model with the tuned settings and answers once."""

from __future__ import annotations

from typing import Any, Final

from tuner.errors import BadInputError
from tuner.export.base import Export, describe_origin, write_comments
from tuner.report import Report
from tuner.runconfig import QUANTISED_CACHE_TYPES, RunConfig

TYPE_IDS: Final = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
"""ggml's numbers of the cache types, which Llama() wants in place of names."""
_SPLIT_MODES: Final = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_NUMA: Final = {"off": 0, "distribute": 1, "isolate": 2, "numactl": 3}
_MAPPING: Final = {  # load_mode: (use_mmap, use_mlock)
    "auto": (True, False),
    "none": (False, False),
    "mmap": (True, False),
    "mlock": (False, True),
    "mmap+mlock": (True, True),
    "dio": (False, False),
}

_TEMPLATE: Final = '''{comments}
import sys

from llama_cpp import Llama

SETTINGS = {{
{settings}
}}


def load_model() -> Llama:
    """The model with the tuned settings."""
    return Llama(**SETTINGS)


def main() -> None:
    """Continue the prompt given on the command line, or a short one."""
    prompt = " ".join(sys.argv[1:]) or "The capital of France is"
    answer = load_model().create_completion(prompt, max_tokens=16, temperature=0.0)
    print(prompt + answer["choices"][0]["text"])


if __name__ == "__main__":
    main()
'''


class LlamaCppPython(Export):
    """A runnable Python file for `llama_cpp.Llama`.

    It sets what Llama() would otherwise set differently from llama.cpp (threads, flash attention, sliding-window cache, YaRN)
    and prints one short completion when run. Llama() swallows arguments it does not know, so what it cannot express is named
    in comments and not written as an argument.
    """

    name = "llama-cpp-python"
    title = "runnable Python file that uses llama_cpp.Llama"

    def render(self, report: Report) -> str:
        notes = [f"Not carried over: {each}" for each in self.dropped(report)]
        settings = "\n".join(f"    {_quote(key)}: {_quote(value)}," for key, value in build_arguments(report).items())
        return _TEMPLATE.format(comments=write_comments(describe_origin(report) + notes), settings=settings)

    def dropped(self, report: Report) -> list[str]:
        config = report.best.config
        checks = (
            (
                config.flash_attn == "auto",
                f"flash_attn auto: Llama() knows only on and off; {'on' if _uses_flash(config) else 'off'} is written.",
            ),
            (config.parallel > 1, f"parallel {config.parallel}: Llama() holds one sequence; one slot's context is written."),
            (config.n_cpu_moe > 0, f"n_cpu_moe {config.n_cpu_moe}: not available in Llama()."),
            (config.load_mode == "auto", "load_mode auto: Llama() always decides; mapping the file is written."),
            (config.load_mode == "dio", "load_mode dio: not available in Llama(); a plain read is written."),
            (bool(report.rpc), f"rpc {', '.join(report.rpc)}: not available in Llama()."),
        )
        return [sentence for applies, sentence in checks if applies]


def build_arguments(report: Report) -> dict[str, Any]:
    """Keyword arguments of `Llama`. Raises BadInputError for a cache type that has no number there."""
    config = report.best.config
    use_mmap, use_mlock = _MAPPING[config.load_mode]
    return {
        "model_path": report.model.path,
        "n_ctx": config.ctx_size // max(1, config.parallel),
        "n_batch": config.batch_size,
        "n_ubatch": config.ubatch_size,
        "n_threads": config.threads,
        "n_threads_batch": config.threads_batch or config.threads,
        "flash_attn": _uses_flash(config),
        "type_k": _find_type_id(config.cache_type_k),
        "type_v": _find_type_id(config.cache_type_v),
        "swa_full": config.swa_full,
        "use_mmap": use_mmap,
        "use_mlock": use_mlock,
        **_write_devices(config),
        "yarn_attn_factor": -1.0,
        "yarn_beta_fast": -1.0,
        "yarn_beta_slow": -1.0,
        "verbose": False,
    }


def _uses_flash(config: RunConfig) -> bool:
    """With a quantised V cache auto becomes on in llama.cpp, and Llama() fails with off."""
    return config.flash_attn == "on" or (config.flash_attn == "auto" and config.cache_type_v in QUANTISED_CACHE_TYPES)


def _write_devices(config: RunConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {"n_gpu_layers": config.n_gpu_layers, "numa": _NUMA[config.numa]}
    if config.n_gpu_layers == 0:
        return settings
    settings["split_mode"] = _SPLIT_MODES[config.split_mode]
    settings["main_gpu"] = config.main_gpu
    if config.tensor_split:
        settings["tensor_split"] = list(config.tensor_split)
    return settings | {"offload_kqv": not config.no_kv_offload, "op_offload": config.op_offload}


def _find_type_id(name: str) -> int:
    if name not in TYPE_IDS:
        raise BadInputError(f"{name!r} is no cache type that llama.cpp takes.", f"It takes {', '.join(TYPE_IDS)}.")
    return TYPE_IDS[name]


def _quote(value: object) -> str:
    """A Python literal; text in double quotes, as formatters want it."""
    if not isinstance(value, str):
        return repr(value)
    plain = value.isascii() and value.isprintable() and '"' not in value and "\\" not in value
    return f'"{value}"' if plain else repr(value)
