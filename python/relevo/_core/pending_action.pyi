import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Self, final

from relevo._core.action_batch import ActionBatch

@final
class PendingAction:
    """An action that is on its way: what `Actors.act_async` gives for one actor. It has `asyncio.Future`'s methods."""

    _asyncio_future_blocking: bool

    def __await__(self) -> Generator[Any, None, ActionBatch]: ...
    def __iter__(self) -> Generator[Any, None, ActionBatch]: ...
    def __next__(self) -> Self: ...
    def get_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop in which the call was made, while it is there."""

    def done(self) -> bool:
        """Whether the call has ended: with an action, an error, or by `cancel`."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""

    def result(self) -> ActionBatch:
        """The action; the call's error is raised.

        Raises:
            asyncio.InvalidStateError: it is not there yet.
            asyncio.CancelledError: the call was cancelled.
        """

    def exception(self) -> BaseException | None:
        """The call's error, None if it has an action. Raises as `result` does."""

    def add_done_callback(
        self, callback: Callable[[PendingAction], object], /, *, context: Context | None = None
    ) -> None:
        """Has the loop call `callback` when the call has ended."""

    def remove_done_callback(self, callback: Callable[[PendingAction], object], /) -> int:
        """Takes all callbacks away that are equal to `callback`; gives their number."""

    def cancel(self, msg: object = None) -> bool:
        """Takes the call back: nothing is recorded, and the actor may call again. False where it has ended before."""

    def _make_cancelled_error(self) -> asyncio.CancelledError: ...
