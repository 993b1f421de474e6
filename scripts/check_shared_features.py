"""Check that the wheel and the Rust tests can share every compiled dependency.

The wheel is built from `relevo-py` alone, the tests from the whole workspace. Cargo gives a crate the features that the
selected packages ask for, so a feature that only a test dependency wants compiles that crate, and everything above it,
a second time.
"""

import subprocess
import sys


def features(*selection: str) -> dict[str, set[str]]:
    """Give the feature sets of each crate ("name version") in the dependency tree of a selection of packages."""
    command = ["cargo", "tree", "--prefix", "none", "--format", "{p}|{f}", *selection]
    tree = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, set[str]] = {}
    for line in tree.splitlines():
        package, separator, listed = line.removesuffix(" (*)").partition("|")
        if separator:
            found.setdefault(" ".join(package.split()[:2]), set()).add(listed.strip())
    return found


def main() -> None:
    """Compare the two trees, and name what to add where they differ."""
    wheel = features("--package", "relevo-py", "--edges", "no-dev")
    workspace = features("--workspace")
    differences = [
        f"  {crate}: the wheel has [{' | '.join(sorted(sets))}], the workspace [{' | '.join(sorted(workspace[crate]))}]"
        for crate, sets in sorted(wheel.items())
        if not sets <= workspace[crate]
    ]
    if differences:
        sys.exit(
            "error: these crates would be compiled twice, once for the wheel and once for the Rust tests:\n"
            + "\n".join(differences)
            + "\nAsk for the missing features in crates/relevo-py/Cargo.toml."
        )


if __name__ == "__main__":
    main()
