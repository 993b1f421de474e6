"""Optional packages, imported where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from relevo.errors import ConfigError


def needed(name: str, extra: str, purpose: str) -> Any:  # noqa: ANN401  (a module)
    """The module `name`.

    Raises:
        ConfigError: it is not installed; the message has the command.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f'{purpose} takes a package that cannot be imported ({error}); pip install "relevo[{extra}]"'
        ) from error
