"""The shapes of the models in published results, by name: what a results table does not say and a prediction needs.

From the models' published configuration files, from memory; a share of layers with full attention below 1 stands for sliding
windows and recurrent layers. Where a model is newer than that memory (Gemma 4, Qwen 3.5 and 3.6, MiniMax, GLM, Kimi), the
shape is that of its closest known relative with the stated number of parameters.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Shape(NamedTuple):
    pattern: str
    """Of the name as result tables spell it, case ignored."""
    parameters: float
    """10⁹, all tensors."""
    active: float | None
    """10⁹ that one token multiplies with; None: dense."""
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    tied: int
    """1: the output reuses the embedding."""
    full: float
    """Share of layers that attend to all positions."""
    window: int
    """Positions that the other layers see; 0: they are recurrent."""
    experts: int = 0
    """Experts of a layer that a router chooses from."""
    used: int = 0
    """How many of them one token passes."""

    @property
    def routed(self) -> float:
        """10⁹ parameters of all those experts: what `active` leaves out, and the chosen ones."""
        if self.active is None:
            return 0.0
        looked_up = 0 if self.tied else self.vocabulary * self.width / 1e9
        return (self.parameters - self.active - looked_up) / (1 - self.used / self.experts)


# fmt: off
SHAPES = (
    Shape(r"llama.?(2.?)?7b", 6.74, None, 32, 4096, 32, 32, 128, 32000, 0, 1, 0),
    Shape(r"llama 13b", 13.02, None, 40, 5120, 40, 40, 128, 32000, 0, 1, 0),
    Shape(r"midnight miqu", 69, None, 80, 8192, 64, 8, 128, 32000, 0, 1, 0),
    Shape(r"llama.?3\.[13].?70b|llama.3\.3.70b", 70.55, None, 80, 8192, 64, 8, 128, 128256, 0, 1, 0),
    Shape(r"llama.?3\.1.8b|^llama 8b", 8.03, None, 32, 4096, 32, 8, 128, 128256, 0, 1, 0),
    Shape(r"llama 3\.2 1b", 1.24, None, 16, 2048, 32, 8, 64, 128256, 1, 1, 0),
    Shape(r"llama 3\.2 3b", 3.21, None, 28, 3072, 24, 8, 128, 128256, 1, 1, 0),
    Shape(r"tinyllama", 1.1, None, 22, 2048, 32, 4, 64, 32000, 0, 1, 0),
    Shape(r"mistral 7b", 7.25, None, 32, 4096, 32, 8, 128, 32768, 0, 1, 0),
    Shape(r"mistral nemo", 12.25, None, 40, 5120, 32, 8, 128, 131072, 0, 1, 0),
    Shape(r"mistral.small|devstral small", 23.57, None, 40, 5120, 32, 8, 128, 131072, 0, 1, 0),
    Shape(r"(mistral3|ministral.3).3b", 3.43, None, 26, 3072, 32, 8, 128, 131072, 1, 1, 0),
    Shape(r"(mistral3|ministral.3).8b", 8.49, None, 34, 4096, 32, 8, 128, 131072, 0, 1, 0),
    Shape(r"(mistral3|ministral.3).14b", 13.51, None, 40, 5120, 32, 8, 128, 131072, 0, 1, 0),
    Shape(r"gemma 2b", 2.51, None, 18, 2048, 8, 1, 256, 256000, 1, 1, 0),
    Shape(r"gemma 2 27b", 27.2, None, 46, 4608, 32, 16, 128, 256000, 1, 0.5, 4096),
    Shape(r"gemma.3.1b", 1.0, None, 26, 1152, 4, 1, 256, 262144, 1, 1 / 6, 512),
    Shape(r"gemma.3.4b", 3.88, None, 34, 2560, 8, 4, 256, 262144, 1, 1 / 6, 1024),
    Shape(r"gemma.3.12b", 11.77, None, 48, 3840, 16, 8, 256, 262144, 1, 1 / 6, 1024),
    Shape(r"gemma.3.27b", 27.01, None, 62, 5376, 32, 16, 128, 262144, 1, 1 / 6, 1024),
    Shape(r"gemma 4 12b", 12.0, None, 48, 3840, 16, 8, 256, 262144, 1, 1 / 6, 1024),
    Shape(r"gemma.4.31b", 30.7, None, 60, 5376, 32, 16, 256, 262144, 1, 1 / 6, 1024),
    Shape(r"gemma.4.26b", 25.23, 3.8, 30, 2816, 16, 8, 256, 262144, 1, 1 / 6, 1024, 128, 8),
    Shape(r"phi 4 mini", 3.84, None, 32, 3072, 24, 8, 128, 200064, 1, 1, 0),
    Shape(r"phi 4", 14.66, None, 40, 5120, 40, 10, 128, 100352, 0, 1, 0),
    Shape(r"qwq 32b|qwen ?2\.5.*32b|r1 distill.*32b", 32.76, None, 64, 5120, 40, 8, 128, 152064, 0, 1, 0),
    Shape(r"qwen ?2\.5.*14b|r1 distill.*14b", 14.77, None, 48, 5120, 40, 8, 128, 152064, 0, 1, 0),
    Shape(r"qwen ?2(\.5)?.*7b|r1.distill.*7b", 7.62, None, 28, 3584, 28, 4, 128, 152064, 0, 1, 0),
    Shape(r"qwen ?3.?coder.next|qwen3.next", 79.67, 3.5, 48, 2048, 16, 2, 256, 151936, 0, 0.25, 0, 512, 10),
    Shape(r"qwen ?3.*30b.a3b", 30.53, 3.04, 48, 2048, 32, 4, 128, 151936, 0, 1, 0, 128, 8),
    Shape(r"qwen3.235b", 235.09, 21.6, 94, 4096, 64, 4, 128, 151936, 0, 1, 0, 128, 8),
    Shape(r"qwen ?3\.[56].*35b.a3b", 34.66, 3.0, 40, 2048, 16, 2, 256, 248320, 0, 0.25, 0, 256, 8),
    Shape(r"qwen3\.5.122b", 122.1, 10, 48, 3072, 32, 2, 256, 248320, 0, 0.25, 0, 256, 8),
    Shape(r"qwen ?3\.[56].27b", 27.32, None, 64, 5120, 24, 4, 256, 248320, 0, 0.25, 0),
    Shape(r"qwen ?3\.5 9b", 8.95, None, 32, 4096, 16, 4, 256, 248320, 0, 0.25, 0),
    Shape(r"qwen ?3\.5 4b", 4.21, None, 32, 2560, 16, 4, 256, 248320, 1, 0.25, 0),
    Shape(r"qwen35 2b", 1.88, None, 24, 2048, 8, 2, 256, 248320, 1, 0.25, 0),
    Shape(r"qwen ?3 0\.6b", 0.596, None, 28, 1024, 16, 8, 128, 151936, 1, 1, 0),
    Shape(r"qwen ?3 1\.7b", 1.72, None, 28, 2048, 16, 8, 128, 151936, 1, 1, 0),
    Shape(r"qwen ?3 4b", 4.02, None, 36, 2560, 32, 8, 128, 151936, 1, 1, 0),
    Shape(r"qwen ?3 8b", 8.19, None, 36, 4096, 32, 8, 128, 151936, 0, 1, 0),
    Shape(r"qwen ?3 14b", 14.77, None, 40, 5120, 40, 8, 128, 151936, 0, 1, 0),
    Shape(r"qwen ?3.32b", 32.76, None, 64, 5120, 64, 8, 128, 151936, 0, 1, 0),
    Shape(r"gpt-oss.20b", 20.91, 3.61, 24, 2880, 64, 8, 64, 201088, 0, 0.5, 128, 32, 4),
    Shape(r"gpt-oss.120b", 116.83, 5.13, 36, 2880, 64, 8, 64, 201088, 0, 0.5, 128, 128, 4),
    Shape(r"glm-4\.5-air", 110.47, 11.4, 46, 4096, 96, 8, 128, 151552, 0, 1, 0, 128, 8),
    Shape(r"glm-4\.7-flash", 29.94, 2.8, 47, 2048, 20, 1, 576, 154880, 0, 1, 0, 64, 4),
    Shape(r"glm-5\.2", 754, 38, 78, 6144, 64, 1, 576, 154880, 0, 1, 0, 256, 8),
    Shape(r"hunyuan-a13b", 80.39, 12.5, 32, 4096, 32, 8, 128, 128167, 1, 1, 0, 64, 8),
    Shape(r"llama.4.scout", 107.77, 16.1, 48, 5120, 40, 8, 128, 202048, 0, 0.25, 8192, 16, 1),
    Shape(r"minimax.m2.1-reap", 139.15, 10, 62, 3072, 48, 8, 128, 200064, 0, 1, 0, 154, 8),
    Shape(r"minimax.m2", 228.69, 10, 62, 3072, 48, 8, 128, 200064, 0, 1, 0, 256, 8),
    Shape(r"nemotron-3-super", 120.67, 12, 88, 4096, 32, 2, 128, 131072, 0, 0.1, 0, 512, 22),
    Shape(r"dots\.llm1", 142.77, 13.4, 62, 4096, 32, 32, 128, 152064, 0, 1, 0, 128, 6),
    Shape(r"kimi k2", 1026.4, 31, 61, 7168, 64, 1, 576, 163840, 0, 1, 0, 384, 8),
    Shape(r"lfm2\.5 8b", 8.47, 1.4, 24, 2048, 32, 8, 64, 65536, 1, 0.25, 0, 32, 4),
    Shape(r"mixtral 8x7b", 46.7, 12.75, 32, 4096, 32, 8, 128, 32000, 0, 1, 0, 8, 2),
)
# fmt: on


def find_shape(name: str) -> Shape | None:
    """The first that matches."""
    return next((shape for shape in SHAPES if re.search(shape.pattern, name, re.IGNORECASE)), None)
