# Tuned by rooftune for the objective latency: 128 tokens to read, 64 to write @ depth 0.
# Measured with llama.cpp b0: time to first token 100 ms, time per token 5 ms, decode 200 tok/s, memory 200 MiB.
# Gain in latency over llama.cpp's own settings: 2.00× [1.90, 2.10].
# Not carried over: load_mode auto: Llama() always decides; mapping the file is written.

import sys

from llama_cpp import Llama

SETTINGS = {
    "model_path": "/models/smol lm2.gguf",
    "n_ctx": 512,
    "n_batch": 512,
    "n_ubatch": 256,
    "n_threads": 2,
    "n_threads_batch": 3,
    "flash_attn": False,
    "type_k": 8,
    "type_v": 1,
    "swa_full": False,
    "use_mmap": True,
    "use_mlock": False,
    "n_gpu_layers": 0,
    "numa": 0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "verbose": False,
}


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
