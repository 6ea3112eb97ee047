"""What the build is asked, and the name that its libraries get."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.engines.llama_cpp_python import describe
from tuner.engines.llama_cpp_python.describe import describe_build, digest_libraries


def write(folder: Path, **content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / f"lib{name}.so").write_bytes(text)
    return folder


def test_a_copy_has_the_same_name_and_another_content_another(tmp_path: Path) -> None:
    """Whenever the files were written, and whatever lies beside them."""
    first = digest_libraries(write(tmp_path / "a", llama=b"x", ggml=b"y"))
    (write(tmp_path / "b", llama=b"x", ggml=b"y") / "README.txt").write_text("no library")
    assert digest_libraries(tmp_path / "b") == first
    assert digest_libraries(write(tmp_path / "c", llama=b"x", ggml=b"z")) != first
    assert digest_libraries(write(tmp_path / "d", llama=b"x")) != first


def test_of_large_libraries_both_ends_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of megabytes of kernels must not slow every command down."""
    monkeypatch.setattr(describe, "_WHOLE_BYTES", 8)
    monkeypatch.setattr(describe, "_END_BYTES", 2)
    names = {name: digest_libraries(write(tmp_path / name, llama=text)) for name, text in {
        "plain": b"aa......bb", "start": b"xa......bb", "end": b"aa......bx", "longer": b"aa.......bb", "middle": b"aa..xx..bb",
    }.items()}  # fmt: skip
    assert len({names[each] for each in ("plain", "start", "end", "longer")}) == 4
    assert names["middle"] == names["plain"]


def test_a_folder_without_a_library_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert "no llama library" in describe_build()["import_error"]


def test_a_library_that_does_not_load_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(write(tmp_path, llama=b"no library at all")))
    assert "OSError" in describe_build()["import_error"]
