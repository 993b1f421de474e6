"""The page on exporting runs whole where torch is."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_docs


def test_the_page_on_exporting_runs(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_docs.test_the_code_of_a_page_runs(repository / "docs" / "exporting.md", tmp_path, monkeypatch)
