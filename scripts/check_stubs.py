"""Checks the stub files in python/relevo/_core against the extension module, by `mypy.stubtest`.

The extension is one module; its stubs are one file for each Rust file, of the same name. So that stubtest can hold each
file against something, every one of them gets a module that holds the classes and functions it declares.
"""

import ast
import sys
from pathlib import Path
from types import ModuleType

from mypy import stubtest

import relevo._core

REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> int:
    """Runs the check; gives the exit status."""
    stubs = sorted(path for path in (REPOSITORY / "python/relevo/_core").glob("*.pyi") if path.stem != "__init__")
    if not stubs:
        print("error: there are no stub files in python/relevo/_core, so nothing would be checked")
        return 1
    for stub in stubs:
        if not (REPOSITORY / "crates/relevo-py/src" / f"{stub.stem}.rs").is_file():
            print(f"error: {stub.name} has no Rust file of its name in crates/relevo-py/src")
            return 1
        module = ModuleType(f"relevo._core.{stub.stem}")
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and hasattr(relevo._core, node.name):  # noqa: SLF001  (our own)
                setattr(module, node.name, getattr(relevo._core, node.name))  # noqa: SLF001
        sys.modules[module.__name__] = module
    configuration = ["--mypy-config-file", str(REPOSITORY / "pyproject.toml")]
    return stubtest.test_stubs(stubtest.parse_options(["relevo._core", *configuration, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
