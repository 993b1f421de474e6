from types import TracebackType
from typing import Self, final

from relevo._core.episode import Episode

@final
class Subscription:
    """Finished trajectories as they end; `agent.subscribe` makes it.

    Iteration waits, and ends when the agent has shut down.

    One that is closed, left by its `with`, or no longer held wants no more.
    """

    def get(self, timeout: float | None = None) -> Episode | None:
        """The next trajectory.

        Args:
            timeout: seconds to wait for one; for ever by default.

        Returns:
            `None` where none came in time, or the agent has shut down and all were read.

        Raises:
            AgentStateError: trajectories came faster than they were read, and `when_full` is `"error"`.
        """

    @property
    def dropped(self) -> int:
        """Trajectories that were dropped because the reader was behind."""

    def __len__(self) -> int:
        """Trajectories that wait to be read."""

    def close(self) -> None:
        """Wants no more; those that wait are let go."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Episode: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
