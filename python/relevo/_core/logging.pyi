from typing import TypeAlias

_Event: TypeAlias = tuple[str, int, str, dict[str, bool | int | float | str], str | None, int, str | None]

def next_event() -> _Event | None:
    """Waits for an event of the engine's threads; gives the arguments of `relevo.log.deliver`, or None at the end."""

def close_events() -> None:
    """Ends the queue of events: `next_event` gives what is in it, and then None."""
