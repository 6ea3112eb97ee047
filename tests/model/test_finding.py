"""Where models are looked for, which files count as one, and what stands in the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.builders.gguf_files import write_llama, write_shards
from tuner.errors import BadInputError, ExitCode, UsageError
from tuner.model import FoundModel, demo_model_path, find_models, finding, read_model, resolve_models, search_models


def put_model(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_llama(path)


def search_home(home: Path, **environ: str) -> dict[str, FoundModel]:
    found = search_models(environ=environ, home=home, here=home / "nowhere")
    return {model.name: model for model in found.models}


STORES = {
    ".cache/huggingface/hub/models--a--b/snapshots/1/x.gguf": "Hugging Face cache",
    ".cache/llama.cpp/a_b_x.gguf": "llama.cpp cache",
    ".lmstudio/models/a/b/x.gguf": "LM Studio",
    ".cache/lm-studio/models/a/b/x.gguf": "LM Studio",
}


@pytest.mark.parametrize("place", STORES)
def test_known_stores(place: str, tmp_path: Path) -> None:
    """Each program's own folder is searched without being named."""
    path = put_model(tmp_path / place)
    assert search_home(tmp_path) == {
        path.name: FoundModel(path=path, name=path.name, place=STORES[place], n_bytes=path.stat().st_size)
    }


VARIABLES = {
    "HF_HUB_CACHE": ("hub/models--a--b/x.gguf", "hub"),
    "HF_HOME": ("hf/hub/models--a--b/x.gguf", "hf"),
    "LLAMA_CACHE": ("llama/x.gguf", "llama"),
    "XDG_CACHE_HOME": ("xdg/llama.cpp/x.gguf", "xdg"),
}


@pytest.mark.parametrize("variable", VARIABLES)
def test_environment_moves_a_store(variable: str, tmp_path: Path) -> None:
    file, root = VARIABLES[variable]
    put_model(tmp_path / file)
    assert set(search_home(tmp_path, **{variable: str(tmp_path / root)})) == {"x.gguf"}
    assert search_home(tmp_path) == {}


def put_ollama(root: Path, manifest: str, digest: str = "a" * 64) -> None:
    path = root / "manifests" / "registry.ollama.ai" / manifest
    path.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "b" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    path.write_text(json.dumps({"layers": layers}))
    put_model(root / "blobs" / f"sha256-{'a' * 64}")


@pytest.mark.parametrize(
    ("manifest", "name"), [("library/llama3/8b", "llama3:8b"), ("someone/tiny/latest", "someone/tiny:latest")]
)
def test_ollama(manifest: str, name: str, tmp_path: Path) -> None:
    """Ollama's files have digests for names; the manifest gives the name that people know."""
    put_ollama(tmp_path / ".ollama" / "models", manifest)
    found = search_home(tmp_path)
    assert set(found) == {name}
    assert found[name].place == "Ollama"
    assert read_model(found[name].path).n_layer == 2


def test_ollama_elsewhere(tmp_path: Path) -> None:
    put_ollama(tmp_path / "store", "library/llama3/8b")
    assert set(search_home(tmp_path, OLLAMA_MODELS=str(tmp_path / "store"))) == {"llama3:8b"}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"layers": 3}', '{"layers": [{"mediaType": 1}]}', "[" * 100_000])
def test_damaged_manifests_are_passed_over(content: str, tmp_path: Path) -> None:
    path = tmp_path / ".ollama/models/manifests/r/library/m/t"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert search_home(tmp_path) == {}


def test_a_manifest_leads_nowhere_else(tmp_path: Path) -> None:
    """A digest is a name in the blobs folder, not a path out of it."""
    put_model(tmp_path / "outside.gguf")
    put_ollama(tmp_path / ".ollama" / "models", "library/x/y", digest="/../../../../outside.gguf")
    assert search_home(tmp_path) == {}


def test_what_counts_as_a_model(tmp_path: Path) -> None:
    """First shards stand for all; projectors, importance matrices, other files and fakes do not count."""
    shards = write_shards(tmp_path, "big", count=3)
    put_model(tmp_path / "small.gguf")
    put_model(tmp_path / "mmproj-small.gguf")
    put_model(tmp_path / "imatrix.gguf")
    (tmp_path / "fake.gguf").write_text("no model")
    (tmp_path / "notes.txt").write_text("GGUF")
    found = {model.name: model.n_bytes for model in find_models([tmp_path])}
    assert found == {
        shards[0].name: sum(path.stat().st_size for path in shards),
        "small.gguf": (tmp_path / "small.gguf").stat().st_size,
    }


def test_links_do_not_loop_or_repeat(tmp_path: Path) -> None:
    """A link to a file is followed, once; a link to a folder never."""
    put_model(tmp_path / "a" / "x.gguf")
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a" / "y.gguf").symlink_to(tmp_path / "a" / "x.gguf")
    (tmp_path / "a" / "dead.gguf").symlink_to(tmp_path / "nothing")
    assert [model.name for model in find_models([tmp_path])] == ["x.gguf"]


def test_the_walk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vast folder ends the search with a note instead of taking all day."""
    monkeypatch.setattr(finding, "_MOST_ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    assert any("stopped after" in note for note in search_models([tmp_path]).notes)
    deep = tmp_path.joinpath(*["d"] * 12)
    put_model(deep / "x.gguf")
    assert find_models([tmp_path / "d"]) == []


def test_unreadable_folders_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_model(tmp_path / "open" / "x.gguf")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(folder: Path) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    found = search_models([tmp_path])
    assert [model.name for model in found.models] == ["x.gguf"]
    assert any("closed" in note and "Permission denied" in note for note in found.notes)


def test_an_incomplete_set_of_shards_is_noted(tmp_path: Path) -> None:
    write_shards(tmp_path, count=3)[2].unlink()
    found = search_models([tmp_path])
    assert (found.models, len(found.notes)) == ((), 1)


def test_searching_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no folder"):
        find_models([tmp_path / "nothing"])


def test_resolving_arguments(tmp_path: Path) -> None:
    """Files in the order given, folders by name, shards as their first, nothing twice."""
    folder = tmp_path / "quants"
    b, a = put_model(folder / "b.gguf"), put_model(folder / "a.gguf")
    put_model(folder / "deeper" / "c.gguf")
    put_model(folder / "mmproj-b.gguf")
    shards = write_shards(tmp_path, count=2)
    assert resolve_models([folder]) == [a, b]
    assert resolve_models([shards[1], str(b), folder, shards[0]]) == [shards[0], b, a]


@pytest.mark.parametrize("argument", ["nothing.gguf", "empty", "text", "pipe"])
def test_arguments_that_are_no_models(argument: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "readme.md").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInputError) as caught:
        resolve_models([tmp_path / argument])
    assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_the_demo_model(smollm2: Path) -> None:
    assert demo_model_path() == smollm2


def test_the_demo_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "DEMO_PACKAGE", "no_such_package_at_all")
    with pytest.raises(UsageError, match="pip install"):
        demo_model_path()
