"""Messages of the library in the words of the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "NAME"
"""In the place of a name that a message leaves open."""


def for_command_line(text: str) -> str:
    """A message that speaks of arguments in Python, such as `resume=True`, with the options that do the same."""
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
    return text


def _pairs(option: str, default: str) -> Callable[[re.Match[str]], str]:
    """An option for each pair of a dict: `{"obs": "observation"}`."""

    def options(found: re.Match[str]) -> str:
        pairs = re.findall(r'"([^"]+)": (?:"([^"]*)"|\(([^)]*)\))', found[1])
        given = [
            f"{option} {NAME if name == '…' else name}={role or shape.replace(' ', '').rstrip(',')}"
            for name, role, shape in pairs
        ]
        return " ".join(given) or f"{option} {default}"

    return options


def _numbers(found: re.Match[str]) -> str:
    return f"--branches {found[1].replace(' ', '')}"


_OPTIONS: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"\broles=\{([^}]*)\}", _pairs("--role", "NAME=ROLE")),
    (r"\bshapes=\{([^}]*)\}", _pairs("--shape", "NAME=SIZES")),
    (r'\bhead="(\w+)"', r"--head \1"),
    (r"\bthe head (argmax|categorical|gaussian|raw)\b", r"--head \1"),
    (r"\bbranches=\[([^\]]*)\]", _numbers),
    (r'\bdevice="([^"]+)"', r"--device \1"),
    (r"\bresume=True\b", "--resume"),
    (r"\bbounds=Bounds\.of\(env\.action_space\), with how= as", "--bounds HOW, as"),
    (r"\bdeterministic=True\b", "--deterministic"),
]
