def processors() -> int:
    """How many processors the engine may use: affinity and a container's quota are counted."""
