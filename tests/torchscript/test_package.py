"""The package relevo-torch: what it links, and what it says of the torch that it finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import relevo_torch
import torch

PROGRAM = """
import sys, relevo
try:
    relevo.ModelModule.load_from_path(sys.argv[1])
except relevo.ModelLoadError as error:
    print(error)
print([name for name in ("torch", "relevo_torch._native") if name in sys.modules])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.pt"
    torch.jit.script(torch.nn.Linear(4, 2).eval()).save(str(path))
    return path


def run(program: str, *arguments: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **({} if folder is None else {"PYTHONPATH": str(folder)})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_needs_libtorch_for_the_cpu_alone() -> None:
    readelf = shutil.which("readelf")
    if sys.platform != "linux" or readelf is None:
        pytest.skip("reads an ELF file's dynamic section by readelf (binutils)")
    from relevo_torch import _native

    dynamic = subprocess.run(
        [readelf, "--dynamic", "--wide", _native.__file__], capture_output=True, text=True, check=True
    )
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.stdout.splitlines() if "(NEEDED)" in line}
    assert {name for name in needed if "torch" in name or "c10" in name} == {"libtorch_cpu.so", "libc10.so"}
    assert not [name for name in needed if "cuda" in name or "python" in name]


@pytest.mark.parametrize("version", ["2.15.0", "2.1.3+cu121", "3.13.0"])
def test_another_torch_is_named_before_anything_is_loaded(tmp_path: Path, path: Path, version: str) -> None:
    metadata = tmp_path / "site" / f"torch-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    told, loaded = run(PROGRAM, str(path), folder=metadata.parent).splitlines()
    assert f"built for torch {relevo_torch.TORCH}, but torch {version} is installed" in told
    assert f'pip install "torch=={relevo_torch.TORCH}.*"' in told
    assert str(path) in told
    assert loaded == "[]"


def test_torch_may_be_missing(path: Path) -> None:
    hidden = """
import importlib.metadata
found = importlib.metadata.version
def version(name):
    if name == "torch":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
"""
    told, loaded = run(hidden + PROGRAM, str(path)).splitlines()
    assert "torch is not installed; pip install" in told
    assert loaded == "[]"


def test_the_package_may_be_missing(path: Path) -> None:
    hidden = """
import importlib.metadata
importlib.metadata.entry_points = lambda **options: ()
"""
    told, _ = run(hidden + PROGRAM, str(path)).splitlines()
    assert f"cannot load {path}: TorchScript is loaded by a package of its own" in told
    assert 'pip install "relevo[torch]"' in told


def test_import_relevo_loads_nothing_of_it() -> None:
    assert (
        run("import relevo, sys; print('torch' in sys.modules, 'relevo_torch' in sys.modules)").strip() == "False False"
    )


def test_the_doctor_tells_of_it() -> None:
    program = "import sys; sys.argv = ['relevo', 'doctor', '--json']; from relevo.cli import main; main()"
    found = {finding["name"]: finding for finding in json.loads(run(program))["findings"]}
    assert found["torchscript"]["state"] == "ok"
    assert f"torch {torch.__version__}" in found["torchscript"]["found"]


def test_the_version_is_that_of_the_native_part() -> None:
    from relevo_torch import _native

    assert _native.TORCH_VERSION == relevo_torch.TORCH
