"""Promises about the package as it is installed and about the lock files."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import relevo._core

EXTENSION = Path(relevo._core.__file__)


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file's dynamic section")
def test_the_extension_links_neither_onnxruntime_nor_python() -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf (binutils) is not installed")
    dynamic = subprocess.run(
        [readelf, "--dynamic", "--wide", EXTENSION], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)
    assert any(name.startswith("libc.") for name in needed), dynamic
    assert [name for name in needed if "onnx" in name or "python" in name] == []


def test_the_extension_is_small() -> None:
    assert EXTENSION.stat().st_size < 20_000_000


def test_typing_information_is_installed() -> None:
    package = EXTENSION.parent
    assert (package / "py.typed").is_file()
    assert (package / "_core.pyi").is_file() or (package / "_core" / "__init__.pyi").is_file()


def test_the_version_is_that_of_the_workspace(repository: Path) -> None:
    workspace = tomllib.loads((repository / "Cargo.toml").read_text())["workspace"]
    assert importlib.metadata.version("relevo") == workspace["package"]["version"]


def test_base_dependencies_are_those_of_the_library_and_its_command_line() -> None:
    requirements = importlib.metadata.requires("relevo") or []
    base = {re.split(r"[^\w-]", line, maxsplit=1)[0] for line in requirements if "extra ==" not in line}
    assert base == {"numpy", "rich", "typer"}


def test_locked_packages_have_versions_and_hashes_and_no_addresses(repository: Path) -> None:
    lines = (repository / "requirements-dev.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert packages
    assert [line for line in packages if not re.match(r"[\w.-]+==\S+ .*\\$", line)] == []
    assert [line for line in lines if "://" in line] == []
