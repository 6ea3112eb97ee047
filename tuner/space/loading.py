"""Space files: which dimensions are searched, over which values. YAML that a user can copy from a preset and edit.

A file is data from anywhere: its size, nesting and types are bounded, aliases are refused, and whatever is wrong with it is
said in one line that names the file, the key and what is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tuner.errors import BadInputError, UsageError, reading_flag, suggest_name
from tuner.hardware import HardwareProfile
from tuner.space.base import Dimension
from tuner.space.catalogue import find_dimension, suggest_dimension
from tuner.space.parsing import show_value

if TYPE_CHECKING:
    import yaml

Spec = Literal["auto", "off"] | tuple[Any, ...]
"""auto: the values that make sense here; off: left at its default; otherwise the values themselves."""

MOST_BYTES: Final = 65_536
MOST_VALUES: Final = 1024
_FORMS: Final = "auto, off, a list of values, or {min, max, step}"


class SpaceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One space as written down, checked against the dimensions but not yet against a machine."""

    name: str
    """What it calls itself."""
    source: str
    """File or preset it comes from, for messages."""
    dimensions: dict[str, Spec]
    """By name; a dimension that is not here stays at its default."""


NO_SPACE: Final = SpaceFile(name="none", source="none", dimensions={})
"""Nothing is searched: the space of one point."""


def load_space(name_or_path: str) -> SpaceFile:
    """A preset by its name, or a user's YAML file.

    Raises UsageError for a name that is none, BadInputError for a file that is no space.
    """
    from search_spaces import preset_names, read_preset

    if name_or_path in preset_names():
        return read_space(read_preset(name_or_path), source=name_or_path)
    if Path(name_or_path).suffix.lower() not in {".yaml", ".yml"}:
        hint = suggest_name(name_or_path, preset_names(), others="or a YAML file of your own")
        raise UsageError(f"There is no search space {show_value(name_or_path)}.", hint)
    return read_space(_read_bounded(name_or_path), source=name_or_path)


def choose_space(hardware: HardwareProfile, *, goals: Collection[str] = (), rpc_devices: int = 0) -> str:
    """The preset for a user who names none: by the goal where it is the context, else by the machine."""
    if "context" in goals:
        return "long_context"
    return "gpu" if hardware.has_device or rpc_devices else "cpu"


def read_space(text: str | bytes, *, source: str) -> SpaceFile:
    """A space from YAML text. Raises BadInputError."""
    document = _parse_yaml(text, source)
    if not isinstance(document, dict):
        raise BadInputError(f"{source} is not a search space.", "It needs a map with `dimensions` and may have `name`.")
    for key in document:
        if key not in ("name", "dimensions"):
            raise BadInputError(f"{source} has an unknown key {show_value(key)}.", "A search space has name and dimensions.")
    name = document.get("name", Path(source).stem)
    if not isinstance(name, str) or not name.strip() or len(name) > 100 or not name.isprintable():
        raise BadInputError(f"{source}: name cannot be {show_value(name)}.", "It takes a short text.")
    given = document.get("dimensions")
    if not isinstance(given, dict) or not given:
        raise BadInputError(f"{source}: dimensions is missing or no map.", "Write lines such as `threads: auto` below it.")
    return SpaceFile(name=name, source=source, dimensions=dict(_read_entry(source, *entry) for entry in given.items()))


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """What --set was given, as checked values by name; the last of equal keys counts.

    Raises UsageError for an unknown key, a missing value, or one that the setting does not take.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        name = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not name or not value.strip():
            raise UsageError(f"--set {show_value(setting)} lacks a name or a value.", "Write it like --set threads=4.")
        with reading_flag("--set"):
            found[name] = _require_dimension(name).parse_value(value.strip())
    return found


def _require_dimension(name: str) -> Dimension:
    dimension = find_dimension(name)
    if dimension is None:
        raise UsageError(f"There is no setting {show_value(name)}.", suggest_dimension(name))
    return dimension


def _read_entry(source: str, key: object, spec: object) -> tuple[str, Spec]:
    dimension = find_dimension(key) if isinstance(key, str) else None
    if dimension is None:
        raise BadInputError(f"{source} has an unknown dimension {show_value(key)}.", suggest_dimension(str(key)[:60]))
    try:
        return dimension.name, _read_spec(dimension, spec)
    except BadInputError as error:
        raise BadInputError(f"{source}: {error.message}", error.hint) from None


def _read_spec(dimension: Dimension, spec: object) -> Spec:
    match spec:
        case "auto":
            return "auto"
        case "off" | False:
            return "off"
        case list():
            return _read_values(dimension, spec)
        case dict():
            return _read_values(dimension, _unroll_range(dimension.name, spec))
        case _:
            hint = f"It takes {_FORMS}; one value is written in brackets."
            raise BadInputError(f"{dimension.name} cannot be {show_value(spec)}.", hint)


def _read_values(dimension: Dimension, values: Sequence[object]) -> tuple[Any, ...]:
    if not values:
        raise BadInputError(f"{dimension.name} has no values.", f"It takes {_FORMS}.")
    if len(values) > MOST_VALUES:
        raise BadInputError(f"{dimension.name} has {len(values)} values.", f"At most {MOST_VALUES} can be listed.")
    return tuple(dict.fromkeys(dimension.parse_value(value) for value in values))


def _unroll_range(name: str, spec: Mapping[Any, Any]) -> Sequence[int]:
    unknown = [key for key in spec if key not in ("min", "max", "step")]
    if unknown or "min" not in spec or "max" not in spec:
        raise BadInputError(f"{name} has a range without min and max, or with other keys.", "Write {min: 1, max: 8, step: 1}.")
    low, high, step = spec["min"], spec["max"], spec.get("step", 1)
    if any(isinstance(bound, bool) or not isinstance(bound, int) for bound in (low, high, step)):
        raise BadInputError(f"{name} has a range that is not of whole numbers.", "Write {min: 1, max: 8, step: 1}.")
    if step < 1 or high < low:
        raise BadInputError(f"{name} has an empty range.", "min must not exceed max, and step must be 1 or more.")
    values = range(low, high + 1, step)
    if (high - low) // step >= MOST_VALUES:
        raise BadInputError(f"{name} has a range of too many values.", f"Choose a step that leaves at most {MOST_VALUES}.")
    return values


def _read_bounded(path: str) -> bytes:
    """The file's bytes; more than a space can need is not read."""
    try:
        if not Path(path).is_file():
            raise BadInputError(f"There is no file {show_value(path)}.", "Check the path.")
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BadInputError(f"Cannot read the search space {show_value(path)}.", "Check the path and its rights.") from error
    if len(data) > MOST_BYTES:
        raise BadInputError(f"{path} is larger than a search space can be.", f"Keep it below {MOST_BYTES // 1024} KiB.")
    return data


def _parse_yaml(text: str | bytes, source: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_make_loader())  # noqa: S506 - a SafeLoader that accepts less
    except RecursionError:
        raise BadInputError(f"{source} is nested too deeply.", "A search space is two levels deep.") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())[:160]
        raise BadInputError(f"{source} is not valid YAML: {problem}{place}.", "See a preset for an example.") from None


def _make_loader() -> type[yaml.SafeLoader]:
    """A SafeLoader that refuses aliases, which can swell without bound, and keys that are given twice."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise yaml.composer.ComposerError(None, None, "aliases are not taken", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise yaml.constructor.ConstructorError(None, None, f"{twice[:60]!r} is given twice", node.start_mark)
            return super().construct_mapping(node, deep)

    return StrictLoader
