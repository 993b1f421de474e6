"""Which names of a module mean which names of a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from relevo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ContradictionError(ConfigError):
    """Names of a module that stand in other places than those of the file."""


ALIASES = {
    "observation": "obs",
    "observations": "obs",
    "action_masks": "action_mask",
    "mask": "action_mask",
    "hidden": "h",
    "hx": "h",
    "h0": "h",
    "h_0": "h",
    "cell": "c",
    "cell_state": "c",
    "cx": "c",
    "c0": "c",
    "c_0": "c",
    "actions": "action",
    "action_logits": "logits",
    "values": "value",
    "vf": "value",
    "mu": "mean",
    "action_mean": "mean",
    "logstd": "log_std",
    "action_logstd": "log_std",
}
"""Other names of the same thing."""

ENDINGS = re.compile(r"_(in|out|input|output)$")
"""What the names of states end with where they come and go."""


def places(own: Sequence[str], wanted: Sequence[str], needed: int, what: str) -> list[int] | None:
    """Where each wanted name is among a module's own; None for all where positions tell as much, or names tell nothing.

    One pair that remains without a name in common belongs together.

    Args:
        own: names of the module's arguments or results in order; empty where it gives none.
        wanted: those of the file.
        needed: how many of the first of `own` must be used.
        what: what they are, for messages: "inputs".

    Raises:
        ContradictionError: some names stand in other places, and it is not told by names where the rest belongs.
    """
    found = _pairs(own, wanted)
    if all(at == place for at, place in found.items()):
        return None
    rest = [place for place in range(len(own)) if place not in found.values()]
    loose = [at for at in range(len(wanted)) if at not in found]
    required = [place for place in rest if place < needed]
    if len(loose) == 1 and len(required or rest) == 1:
        found[loose[0]] = (required or rest)[0]
        loose, required = [], []
    if loose or required:
        raise ContradictionError(
            f"the {what} are {', '.join(wanted)}, and the module's {', '.join(name or '(no name)' for name in own)}: "
            f"names that both have stand in other places, so that positions cannot be trusted, and not all are told by "
            f"name; name all the module's {what} as {', '.join(wanted)}, or bring them into that order"
        )
    return [found[at] for at in range(len(wanted))]


def _pairs(own: Sequence[str], wanted: Sequence[str]) -> dict[int, int]:
    """Positions of wanted names with those of the module's that are the same, or else mean the same."""
    found: dict[int, int] = {}
    for key in (str.lower, canonical):
        ours, theirs = [key(name) for name in own], [key(name) for name in wanted]
        for at, name in enumerate(theirs):
            if at in found or not name or theirs.count(name) != 1 or ours.count(name) != 1:
                continue
            place = ours.index(name)
            if place not in found.values():
                found[at] = place
    return found


def canonical(name: str) -> str:
    """The name that stands for all its aliases."""
    bare = name.lower()
    if bare.startswith("hidden_") and bare != "hidden_state":
        # As `relevo.export` names states in TorchScript files.
        bare = bare.removeprefix("hidden_")
    bare = ENDINGS.sub("", bare) or bare
    return ALIASES.get(bare, bare)
