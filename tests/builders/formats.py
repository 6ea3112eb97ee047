"""Other formats of a real model, made by llama.cpp itself in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAKE = (
    "import json, sys\n"
    "from tuner.engines import find_engine\n"
    "engine = find_engine('llama-cpp-python')()\n"
    "engine.run_task('quantise', json.loads(sys.argv[1]))\n"
)


def make_format(source: Path, target: Path, ftype: str) -> Path:
    """`source` requantised as `ftype` ("F16", "Q8_0", "Q4_K_M", …) at `target`, made once."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        arguments = json.dumps({"source": str(source), "target": str(target), "ftype": ftype})
        subprocess.run([sys.executable, "-c", MAKE, arguments], check=True, capture_output=True, timeout=300)
    return target
