"""The search spaces that come with rooftune: YAML files to use by name, or to copy and edit."""

from __future__ import annotations

from importlib.resources import files


def preset_names() -> tuple[str, ...]:
    """Names that --space takes, in alphabetical order."""
    found = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml")))


def read_preset(name: str) -> str:
    """The text of a preset. Raises FileNotFoundError for a name that is none."""
    return files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
