"""The example of a training loop learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_example_learns(repository: Path, tmp_path: Path) -> None:
    example = repository / "examples" / "torch" / "hot_swap.py"
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "verified: 20 versions served" in done.stdout
