"""Fixtures that all tests share."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root folder of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real policies beside the repository; tests that need it are skipped where it is absent."""
    folder = REPOSITORY.parent / "shared" / "policies"
    if not (folder / "manifest.json").is_file():
        pytest.skip(f"the shared policies are not here: {folder} has no manifest.json")
    return folder
