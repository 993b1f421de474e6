"""What the tests of TorchScript share. They need the package relevo-torch, which `make test-torch` builds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import relevo

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # torch 2.13 calls TorchScript deprecated whenever a test makes a module.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    absent = [name for name in ("torch", "relevo_torch") if importlib.util.find_spec(name) is None]
    return True if absent and collection_path.name != "test_absent.py" else None


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., relevo.ModelModule]:
    """Scripts a module, saves it, loads the file by Relevo."""
    import torch

    def load(module: Any, **options: Any) -> relevo.ModelModule:
        path = tmp_path / "policy.pt"
        torch.jit.script(module.eval()).save(str(path))
        return relevo.ModelModule.load_from_path(path, **options)

    return load
