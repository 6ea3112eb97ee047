#!/bin/sh
# Tuned by rooftune for the objective latency: 128 tokens to read, 64 to write @ depth 0.
# Measured with llama.cpp b0: time to first token 100 ms, time per token 5 ms, decode 200 tok/s, memory 200 MiB.
# Gain in latency over llama.cpp's own settings: 2.00× [1.90, 2.10].
# Not carried over: ctx_size 512: llama-bench sizes the context itself, by prompt, answer and depth.

# Prefill: 1280 tok/s were measured.
llama-bench -m '/models/smol lm2.gguf' -p 128 -n 0 -d 0 -t 3 -b 512 -ub 256 -ctk q8_0 -ctv f16 -fa off -lm auto -ngl 0

# Decode: 200 tok/s were measured.
llama-bench -m '/models/smol lm2.gguf' -p 0 -n 64 -d 128 -t 2 -b 512 -ub 256 -ctk q8_0 -ctv f16 -fa off -lm auto -ngl 0
