"""What lies in memory beside the model: a projector for images or sound.

Its tensors are counted from its header. What encoding an input takes on top is llama.cpp's to know;
a stated headroom stands for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tuner.errors import BadInputError
from tuner.model.gguf import read_header

HEADROOM_BYTES: Final = 256 * 2**20
"""For encoding one input with a projector of a known type, bytes; an assumption, and said so."""

_KNOWN_TYPES: Final = (
    "mlp ldp ldpv2 resampler adapter gemma3 gemma3nv gemma3na idefics3 pixtral qwen2vl_merger qwen2.5vl_merger qwen3vl_merger "
    "ultravox internvl llama4 qwen2a glma qwen2.5o voxtral lfm2 kimivl lightonocr cogvlm"
)


class ProjectorMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a projector file takes."""

    tensor_bytes: int
    """Its tensors, exact."""
    headroom_bytes: int
    """Assumed for encoding an input; 0 for a type that is not known."""
    note: str
    """What was assumed, or why nothing was."""

    @property
    def total_bytes(self) -> int:
        """Both together: at least this much, bytes."""
        return self.tensor_bytes + self.headroom_bytes


def read_projector(path: str | Path) -> ProjectorMemory:
    """Memory of a projector file. Raises BadInputError for a file that is damaged or no projector."""
    header = read_header(Path(path))
    is_projector = header.metadata.get("general.architecture") == "clip" or header.metadata.get("general.type") == "mmproj"
    if not is_projector:
        raise BadInputError(f"{path} is no projector.", "Give the mmproj file that belongs to the model.")
    size = sum(tensor.n_bytes for tensor in header.tensors)
    names = [header.metadata.get(f"clip.{part}projector_type") for part in ("", "vision.", "audio.")]
    kinds = [name for name in names if isinstance(name, str)]
    if kinds and all(kind in _KNOWN_TYPES.split() for kind in kinds):
        note = f"The projector ({', '.join(kinds)}) is counted with {HEADROOM_BYTES >> 20} MiB assumed for encoding an input."
        return ProjectorMemory(tensor_bytes=size, headroom_bytes=HEADROOM_BYTES, note=note)
    note = "The projector's type is not known here: only its tensors are counted, and encoding an input will take more."
    return ProjectorMemory(tensor_bytes=size, headroom_bytes=0, note=note)
