"""Print the path of the shared library in the installed `onnxruntime` package, for the Rust tests that load it."""

import importlib.util
import sys
from pathlib import Path

PATTERNS = ("libonnxruntime.so*", "libonnxruntime.*dylib", "onnxruntime.dll")


def main() -> None:
    """Print the path, or end with an error that says what to install."""
    package = importlib.util.find_spec("onnxruntime")
    if package is None or package.origin is None:
        sys.exit("error: the package onnxruntime is not installed in this environment: run `make venv`")
    folder = Path(package.origin).parent / "capi"
    found = sorted(path for pattern in PATTERNS for path in folder.glob(pattern))
    if not found:
        sys.exit(f"error: {folder} holds none of {', '.join(PATTERNS)}: reinstall onnxruntime")
    print(found[0])


if __name__ == "__main__":
    main()
