"""Vector environments: in this process, in processes of their own, and what `relevo.collect` must know about either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relevo.envs.vector import autoreset_mode, import_gymnasium, make_vector

if TYPE_CHECKING:
    from relevo.envs.process import ProcessVectorEnv

__all__ = ["ProcessVectorEnv", "autoreset_mode", "make_vector"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 : a module's attribute
    # Its class derives from Gymnasium's, which `import relevo` must not need.
    if name == "ProcessVectorEnv":
        import_gymnasium()
        from relevo.envs.process import ProcessVectorEnv

        return ProcessVectorEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
