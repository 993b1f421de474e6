"""Says by its skip that the tests of TorchScript did not run."""

import importlib.util

import pytest


def test_the_package_is_here() -> None:
    absent = [name for name in ("torch", "relevo_torch") if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(
            f"not installed: {', '.join(absent)}; `make test-torch` installs them and runs what is in this folder"
        )
