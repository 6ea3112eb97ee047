"""Golden files with their real extensions; ROOFTUNE_WRITE_GOLDEN=1 writes them anew, for a reader to look through."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent


def check_golden(name: str, text: str) -> None:
    path = HERE / name
    if os.environ.get("ROOFTUNE_WRITE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; if the change is meant, write it anew"
