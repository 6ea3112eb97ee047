"""What "fast" is about: one turn of a conversation, and how many people hold one at a time.

A turn has D tokens of history already in the KV cache, P new prompt tokens to read and n_out tokens to write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tuner.errors import BadInputError, UsageError, suggest_name

_MOST_TOKENS: Final = 16_777_216
_MOST_USERS: Final = 256


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn, as `tune` optimises it."""

    name: str
    """What the user calls it."""
    prompt_tokens: int
    """P: new prompt tokens to read, tokens."""
    output_tokens: int
    """n_out: tokens to write, tokens."""
    depth_tokens: int = 0
    """D: tokens of history already in the cache, tokens."""
    users: int = 1
    """People served at the same time."""

    @property
    def tokens_per_slot(self) -> int:
        """D + P + n_out: what one user's context must hold, tokens."""
        return self.depth_tokens + self.prompt_tokens + self.output_tokens

    @property
    def middle_history(self) -> int:
        """D + P + half of the answer after its first token: the history that its average step looks at, tokens."""
        return self.depth_tokens + self.prompt_tokens + (self.output_tokens - 1) // 2


PRESETS: Final = {
    preset.name: preset
    for preset in (
        Workload(name="chat", prompt_tokens=512, output_tokens=256, depth_tokens=2048),
        Workload(name="rag", prompt_tokens=4096, output_tokens=256),
        Workload(name="code", prompt_tokens=8192, output_tokens=512),
        Workload(name="quick", prompt_tokens=128, output_tokens=64),
        Workload(name="batch", prompt_tokens=512, output_tokens=128, users=8),
    )
}


def load_workload(name_or_file: str) -> Workload:
    """A preset by name, or a user's own from a YAML file.

    Raises UsageError for an unknown name, BadInputError for a file that is no workload.
    """
    if name_or_file in PRESETS:
        return PRESETS[name_or_file]
    path = Path(name_or_file)
    if path.suffix.lower() not in {".yaml", ".yml"}:
        hint = suggest_name(name_or_file, PRESETS, others="or a YAML file of your own")
        raise UsageError(f"There is no workload {name_or_file!r}.", hint)
    return _read_workload(path)


def check_workload(workload: Workload) -> Workload:
    """The same workload, or BadInputError where a number makes no sense."""
    bounds = (
        ("prompt_tokens", workload.prompt_tokens, 1, _MOST_TOKENS),
        ("output_tokens", workload.output_tokens, 2, _MOST_TOKENS),
        ("depth_tokens", workload.depth_tokens, 0, _MOST_TOKENS),
        ("users", workload.users, 1, _MOST_USERS),
    )
    for key, value, least, most in bounds:
        if not least <= value <= most:
            raise BadInputError(f"The workload's {key} is {value}.", f"Give a number from {least} to {most}.")
    return workload


def _read_workload(path: Path) -> Workload:
    import yaml

    try:
        data = yaml.safe_load(path.read_bytes()[:65_536])
        if isinstance(data, dict):
            data.setdefault("name", path.stem)
        return check_workload(msgspec.convert(data, Workload))
    except OSError as error:
        raise BadInputError(f"Cannot read the workload {path}: {error.strerror}.", "Check the path.") from error
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInputError(
            f"{path} is not a workload: {reason}.",
            "It needs prompt_tokens and output_tokens, and may have name, depth_tokens and users.",
        ) from error
