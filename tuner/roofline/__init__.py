"""What a machine can do, and what a model therefore should: the arithmetic of prefill, decode, KV cache and batching."""
