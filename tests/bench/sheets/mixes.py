"""What the labels of quantisation mixes stand for: tensor types by their share of the bytes (`llama-quantize`, rounded)."""

from __future__ import annotations

from tuner.model.ggml import TENSOR_TYPES

BITS = {each.name: 8 * each.size / each.block for each in TENSOR_TYPES.values()}
"""Bits per value."""

MIXES: dict[str, dict[str, float]] = {
    "Q4_K_M": {"Q4_K": 0.7, "Q6_K": 0.3},
    "Q4_K_S": {"Q4_K": 0.88, "Q6_K": 0.12},
    "Q4_K": {"Q4_K": 1},
    "Q5_K_M": {"Q5_K": 0.7, "Q6_K": 0.3},
    "Q5_K_S": {"Q5_K": 0.9, "Q6_K": 0.1},
    "Q3_K_M": {"Q3_K": 0.6, "Q4_K": 0.3, "Q6_K": 0.1},
    "Q3_K_S": {"Q3_K": 0.88, "Q6_K": 0.12},
    "Q3_K_L": {"Q3_K": 0.5, "Q5_K": 0.4, "Q6_K": 0.1},
    "Q2_K": {"Q2_K": 0.55, "Q3_K": 0.33, "Q6_K": 0.12},
    "Q2_K_S": {"Q2_K": 0.8, "Q3_K": 0.08, "Q6_K": 0.12},
    "Q6_K": {"Q6_K": 1},
    "Q8_0": {"Q8_0": 1},
    "Q4_0": {"Q4_0": 0.91, "Q6_K": 0.09},
    "Q4_1": {"Q4_1": 0.92, "Q6_K": 0.08},
    "Q5_0": {"Q5_0": 0.92, "Q6_K": 0.08},
    "Q5_1": {"Q5_1": 0.92, "Q6_K": 0.08},
    "F16": {"F16": 1},
    "BF16": {"BF16": 1},
    "F32": {"F32": 1},
    "Q8_K_XL": {"Q8_0": 0.8, "BF16": 0.2},
    "Q4_K_XL": {"Q4_K": 0.7, "Q6_K": 0.3},
    "Q5_K_XL": {"Q5_K": 0.7, "Q6_K": 0.3},
    "MXFP4": {"MXFP4": 0.6, "Q8_0": 0.4},
    "IQ4_NL": {"IQ4_NL": 0.9, "Q6_K": 0.1},
    "IQ4_XS": {"IQ4_XS": 0.88, "Q6_K": 0.12},
    "IQ3_S": {"IQ3_S": 0.88, "Q6_K": 0.12},
    "IQ3_XXS": {"IQ3_XXS": 0.85, "Q6_K": 0.15},
    "IQ2_XXS": {"IQ2_XXS": 0.8, "Q6_K": 0.2},
    "IQ2_XS": {"IQ2_XS": 0.82, "Q6_K": 0.18},
    "IQ2_M": {"IQ2_S": 0.85, "Q6_K": 0.15},
}


def find_mix(label: str) -> dict[str, float] | None:
    """None for a label that stands for no known mix."""
    return MIXES.get(label.replace("UD-", "").replace(" MoE", ""))


def mean_bits(mix: dict[str, float]) -> float:
    """Bits per value of the whole."""
    return 1 / sum(share / BITS[form] for form, share in mix.items())
