"""TorchScript as a model backend of Relevo. Relevo imports it when a file needs it."""

from importlib import metadata

TORCH = "2.13"
"""The minor version of torch that this package is built for; the libraries of another one would crash the process."""


def check_torch() -> str:
    """Checks the version of torch that is installed, before anything of it is loaded, and gives it.

    Raises:
        ImportError: torch is missing, or of another minor version.
    """
    remedy = f'pip install "torch=={TORCH}.*"'
    own = f"relevo-torch {metadata.version('relevo-torch')} is built for torch {TORCH}"
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise ImportError(f"{own}, and torch is not installed; {remedy}") from None
    if installed.split("+")[0].split(".")[:2] != TORCH.split("."):
        raise ImportError(
            f"{own}, but torch {installed} is installed; {remedy}, or a relevo-torch for the other: "
            "pip install --upgrade relevo-torch"
        )
    return installed


def backend() -> object:
    """Gives the capsule that Relevo loads the backend from: what the entry point names.

    Raises:
        ImportError: torch is missing, of another minor version, or cannot be loaded.
    """
    check_torch()
    # Before the native part, which uses the libraries that this loads.
    import torch

    from relevo_torch import _native

    has_cuda = torch.version.cuda is not None or torch.version.hip is not None
    return _native.backend(str(torch.__version__), has_cuda)
