"""Fixtures that all tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from relevo.envs import ProcessVectorEnv

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


@pytest.fixture
def faulty() -> Iterator[Callable[..., "ProcessVectorEnv"]]:
    """Makes five environments in two workers that fail when they are told to; closed at the end."""
    import worlds

    from relevo.envs import ProcessVectorEnv

    made: list[ProcessVectorEnv] = []

    def make(**options: Any) -> ProcessVectorEnv:
        made.append(ProcessVectorEnv(worlds.Faulty, worlds.ENVS, worlds.WORKERS, **options))
        return made[-1]

    yield make
    for envs in made:
        envs.close()
