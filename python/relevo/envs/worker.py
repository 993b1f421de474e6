"""A worker process: it makes its environments and obeys the process that started it, until that closes the pipe.

A message in either direction is one of the two single bytes below, or a pickle. A pickled reply is a pair: its kind
(`REPORTS`, `VALUES`, `RAISED` or `FAILED`), and what belongs to that.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeAlias

from gymnasium.vector.utils import batch_space, iterate

from relevo.envs.shared_arrays import Layout, SharedArrays, copy_of, row_writer, rows_of
from relevo.errors import UnsuitableEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium

    from relevo.envs.shared_arrays import Memory
    from relevo.envs.vector import Autoreset

STEP = b"s"
"""To a worker: the actions lie in the shared memory."""
DONE = b"d"
"""From a worker: what came of it lies there, and there is nothing else to say."""

REPORTS = "reports"
"""A list of `Report`s."""
VALUES = "values"
"""A value for each environment."""
RAISED = "raised"
"""A `Raised`."""
FAILED = "failed"
"""What the worker did last and the traceback of it, as text; it ends."""

PARENT_SECONDS = 1.0
"""How often a worker looks whether the process that started it is still there."""
GRACE_SECONDS = 2.0
"""How long environments may take to close when it is not."""

Report: TypeAlias = "tuple[int, dict[str, Any] | None, dict[str, Any]]"
"""Row, info of the step that ended an episode if one did, info."""


@dataclass(frozen=True)
class Assignment:
    """What a worker is to do: the first message that it gets."""

    worker: int
    rows: range
    make_envs: list[Callable[[], gymnasium.Env[Any, Any]]]
    """A function for each row."""
    layout: Layout
    autoreset: Autoreset


@dataclass(frozen=True)
class Raised:
    """An exception of an environment's in a call or a reset, after which the worker goes on."""

    error: Exception
    doing: str
    traceback: str

    def noted(self) -> Exception:
        """The exception, which tells where it comes from."""
        self.error.add_note(f"raised in a worker process by {self.doing}:\n{self.traceback}")
        return self.error


def main(connection: Connection, memory: Memory) -> None:
    """The body of the process.

    What may be large comes as a message. Where it came when the process is started, one that dies early would leave the
    other side writing for ever into a pipe of multiprocessing's that holds no more.
    """
    # Ctrl-C reaches every process of a terminal; the one that started this one decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True, name="parent watch").start()
    # A pipe that breaks was closed by the other side, which has had enough.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionError):
        connection.send_bytes(DONE)
        message = connection.recv_bytes()
        worker = _Worker(memory)
        try:
            worker.begin(message)
            connection.send_bytes(DONE)
            while True:
                connection.send_bytes(worker.obey(connection.recv_bytes()))
        except (EOFError, BrokenPipeError, ConnectionError):
            # An environment may raise these as well: then the pipe still works, and this is a failure like any other.
            if worker.idle:
                raise
            _tell_failure(worker, connection)
        except Exception:  # noqa: BLE001 : whatever an environment's author did not catch
            _tell_failure(worker, connection)
        finally:
            worker.close()


def _tell_failure(worker: _Worker, connection: Connection) -> None:
    # The other side reports it: a traceback of this process besides would say the same twice.
    connection.send_bytes(pickle.dumps((FAILED, (worker.doing, traceback.format_exc()))))
    sys.exit(1)


def _end_with(parent: int) -> None:
    """Ends this process, whatever it is doing, when the process `parent` is gone.

    The broken pipe tells as much, but not to an environment that hangs, nor where a fork holds the pipe's other end.
    """
    process = multiprocessing.parent_process()
    sentinels = [] if process is None else [process.sentinel]
    while not wait(sentinels, PARENT_SECONDS) and os.getppid() == parent:
        pass
    # The main thread may have noticed, and be closing environments.
    time.sleep(GRACE_SECONDS)
    os._exit(1)


class _Worker:
    """Environments, and the rows of the shared memory that are theirs."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._first = self._row = 0
        self._verb = "making"
        self.idle = False

    @property
    def doing(self) -> str:
        """What it does, or did when it failed."""
        return f"{self._verb} environment {self._first + self._row}"

    def begin(self, message: bytes) -> None:
        """Makes the environments of an assignment.

        Raises:
            UnsuitableEnvironmentError: one has other spaces than the first of all.
        """
        # As in `obey`.
        assignment: Assignment = pickle.loads(message)  # noqa: S301
        layout, mine = assignment.layout, slice(assignment.rows.start, assignment.rows.stop)
        arrays = SharedArrays(layout, self._memory)
        self._first = mine.start
        self._action_space = batch_space(layout.action_space, len(assignment.rows))
        self._actions = rows_of(arrays.actions, mine)
        self._rewards = arrays.rewards[mine]
        self._terminated = arrays.terminated[mine]
        self._truncated = arrays.truncated[mine]
        self._write = row_writer(rows_of(arrays.observations, mine))
        finals = arrays.final_observations
        self._write_final = None if finals is None else row_writer(rows_of(finals, mine))
        self._next_step = assignment.autoreset == "next_step"
        # Those whose next step only resets them.
        self._to_reset = [False] * len(assignment.rows)
        for row, make in enumerate(assignment.make_envs):
            self._row = row
            env = make()
            self._envs.append(env)
            for came, expected in (
                (env.observation_space, layout.observation_space),
                (env.action_space, layout.action_space),
            ):
                if came != expected:
                    raise UnsuitableEnvironmentError(
                        f"all environments must have the same spaces, but this one has {came} where the first has "
                        f"{expected}"
                    )
        self.idle = True

    def obey(self, message: bytes) -> bytes:
        """Does what a message says; gives the reply."""
        self.idle = False
        if message == STEP:
            self._verb = "stepping"
            reply = self._reply(self._step())
        else:
            # From the process that started this one, through a pipe that no one else has.
            command, *arguments = pickle.loads(message)  # noqa: S301
            self._verb = f"doing `{command}` for"
            if command == "reset":
                self._verb = "resetting"
                reply = self._try_to_reset(*arguments)
            elif command == "end episodes":
                (self._to_reset,) = arguments
                reply = DONE
            else:
                reply = self._answer(command, *arguments)
        self.idle = True
        return reply

    @staticmethod
    def _reply(reports: list[Report]) -> bytes:
        return pickle.dumps((REPORTS, reports), pickle.HIGHEST_PROTOCOL) if reports else DONE

    def _step(self) -> list[Report]:
        reports: list[Report] = []
        rewards, terminations, truncations = self._rewards, self._terminated, self._truncated
        to_reset, write, write_final, next_step = self._to_reset, self._write, self._write_final, self._next_step
        # A copy: environments keep actions, and the next step's would overwrite them.
        actions = iterate(self._action_space, copy_of(self._actions))
        for row, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            self._row = row
            final_info = None
            if to_reset[row]:
                obs, info = env.reset()
                reward, terminated, truncated = 0.0, False, False
                to_reset[row] = False
            else:
                obs, reward, terminated, truncated, info = env.step(action)  # type: ignore[assignment]
                if terminated or truncated:
                    if write_final is not None:
                        write_final(row, obs)
                        final_info = info
                        obs, info = env.reset()
                    else:
                        to_reset[row] = next_step
            write(row, obs)
            rewards[row] = reward
            terminations[row] = terminated
            truncations[row] = truncated
            if info or final_info:
                reports.append((self._first + row, final_info, info))
        return reports

    def _try_to_reset(self, *arguments: Any) -> bytes:  # noqa: ANN401 : those of `_reset`
        """Resets; an exception may be the fault of what was asked, so that it ends nothing."""
        try:
            return self._reply(self._reset(*arguments))
        except Exception as error:  # noqa: BLE001 : whatever the environment raises
            return self._raised(error)

    def _reset(self, seeds: list[int | None], options: dict[str, Any] | None, mask: list[bool] | None) -> list[Report]:
        """Resets all, or those in `mask`."""
        reports: list[Report] = []
        for row, env in enumerate(self._envs):
            if mask is not None and not mask[row]:
                continue
            self._row = row
            obs, info = env.reset(seed=seeds[row], options=options)
            self._to_reset[row] = False
            self._write(row, obs)
            if info:
                reports.append((self._first + row, None, info))
        return reports

    def _answer(self, command: str, name: str, *arguments: Any) -> bytes:  # noqa: ANN401 : whatever a method takes
        """Calls a method of each environment, or sets an attribute; what that raises is told, and breaks nothing."""
        values: list[Any] = []
        try:
            for row, env in enumerate(self._envs):
                self._row = row
                if command == "set_attr":
                    env.set_wrapper_attr(name, arguments[0][row])
                else:
                    attribute = env.get_wrapper_attr(name)
                    positional, named = arguments
                    values.append(attribute(*positional, **named) if callable(attribute) else attribute)
            return pickle.dumps((VALUES, values))
        except Exception as error:  # noqa: BLE001 : whatever the method raises
            return self._raised(error)

    def _raised(self, error: Exception) -> bytes:
        """The exception, which is being handled, as a reply; in place of one that cannot travel, its text."""
        told = Raised(error, self.doing, traceback.format_exc())
        try:
            message = pickle.dumps((RAISED, told))
            pickle.loads(message)  # noqa: S301 : made in the line above
        except Exception:  # noqa: BLE001 : pickling runs the exception's own code
            return pickle.dumps((RAISED, replace(told, error=RuntimeError(repr(error)))))
        return message

    def close(self) -> None:
        """Closes the environments; what goes wrong in that concerns no one any more."""
        envs, self._envs = self._envs, []
        for env in envs:
            with contextlib.suppress(Exception):
                env.close()
