def other_backends() -> list[tuple[str, str, str | None, str | None]]:
    """Model backends of other packages: name, package, version or None, and why it does not work or None."""
