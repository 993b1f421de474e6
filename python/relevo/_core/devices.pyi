def devices() -> dict[str, list[tuple[str, str | None]]]:
    """The devices of every model backend, by its format: each device's name, and why it cannot be used, or None.

    Raises:
        DeviceUnavailableError: the library that runs a backend's models cannot be loaded.
    """
