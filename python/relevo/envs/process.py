"""`ProcessVectorEnv`: environments in processes of their own."""

from __future__ import annotations

import enum
import functools
import itertools
import logging
import os
import pickle
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper, batch_space

from relevo.checks import seconds, whole_number
from relevo.envs import worker
from relevo.envs.seeds import seeds_of
from relevo.envs.shared_arrays import Layout, SharedArrays, allocate, copy_into, copy_of, row_of, rows_of
from relevo.envs.vector import autoreset_name, unmade
from relevo.envs.worker_process import (
    CLOSE_SECONDS,
    CONTEXT,
    Timeouts,
    WorkerFailureError,
    WorkerProcess,
    deadline_in,
)
from relevo.errors import ConfigError, EnvironmentWorkerError, UnsuitableEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relevo.envs.worker import Report

MakeEnv: TypeAlias = "Callable[[], gymnasium.Env[Any, Any]]"
StepResult: TypeAlias = (
    "tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]"
)

logger = logging.getLogger("relevo.envs")


class _State(enum.Enum):
    RESET_NEEDED = enum.auto()
    READY = enum.auto()
    STEPPING = enum.auto()


class ProcessVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environments in worker processes, stepped side by side, some in each; a Gymnasium `VectorEnv`.

    Actions, observations, rewards and ends of episodes lie in memory that the processes share. Infos, which are Python
    objects, are pickled, and only where an environment gives one. With the same seeds and actions the results are those
    of `gymnasium.vector.SyncVectorEnv`; only that final observations come in the type that the space names.

    A worker that crashes, hangs or whose environment raises an exception is started again, `max_restarts` times in all.
    The step in which that happens gives for its environments a reward of 0, `truncated`, `info["worker_restarted"]`,
    and the first observation of a new episode. There is no final observation of the episode that was cut:
    `info["final_obs"]` has None for it, and in the autoreset modes NEXT_STEP and DISABLED the observation must not be
    taken for one. The environments are seeded with other numbers than before. What happens outside of a step, in
    a `call` or a reset of some environments, is told by the next step, which then steps none of the worker's
    environments. `relevo.collect` knows all this.

    The processes are started by multiprocessing's *spawn*: a program makes this class below
    `if __name__ == "__main__":`.
    """

    def __init__(
        self,
        make_env: str | MakeEnv | Sequence[MakeEnv],
        num_envs: int,
        workers: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        copy: bool = True,
        step_timeout: float | None = 60.0,
        start_timeout: float = 300.0,
        max_restarts: int = 10,
    ) -> None:
        """Makes one environment in this process, to see its spaces, closes it, and starts the workers.

        Args:
            make_env: an id that Gymnasium knows, a function that makes one environment, or a list with a function for
                each. Functions travel by cloudpickle, so that a lambda will do.
            num_envs: how many environments.
            workers: how many processes; as many as processors may be used, by default.
            autoreset_mode: Gymnasium's `AutoresetMode`, or its name.
            copy: whether `reset` and `step` give copies of the observations. Without, they give views of the shared
                memory, which the next step overwrites.
            step_timeout: seconds that a step, reset or call may take; a worker that takes longer is killed, and so is
                one that takes in nothing of what it is sent, or goes on with nothing of its answer, for so long. None
                waits for ever.
            start_timeout: seconds that a worker may take to start, and again to make its environments.
            max_restarts: how many times workers are started again, over all of them and the life of this object.

        Raises:
            ConfigError: a number is impossible, or `make_env` makes no environment.
            UnsuitableEnvironmentError: an environment cannot be made, or has spaces that do not fit into shared memory.
            EnvironmentWorkerError: a worker ended before its environments were made.
        """
        num_envs = whole_number("num_envs", num_envs, 1)
        workers = whole_number("workers", _usable_processors() if workers is None else workers, 1)
        max_restarts = whole_number("max_restarts", max_restarts, 0)
        if step_timeout is not None:
            step_timeout = seconds("step_timeout", step_timeout, otherwise=", or None for no limit")
        timeouts = Timeouts(seconds("start_timeout", start_timeout), step_timeout)
        made_by = _functions(make_env, num_envs)
        mode = autoreset_name(autoreset_mode)
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode[mode.upper()]
        self._same_step = mode == "same_step"
        self._copy = copy
        self._step_timeout = step_timeout
        self._max_restarts = max_restarts
        self._restarts = 0
        self._episodes_cut = 0
        self._owner = os.getpid()
        self._learn_from(made_by[0], make_env)
        layout = Layout(self.single_observation_space, self.single_action_space, num_envs, self._same_step)
        memory = allocate(layout, CONTEXT)
        self._arrays = SharedArrays(layout, memory)

        self._state = _State.RESET_NEEDED
        # Whether the environments were reset once.
        self._begun = False
        self._seeds: list[int | None] = [None] * num_envs
        # Episodes that ended: those that NEXT_STEP resets with the next step, or that DISABLED must not step.
        self._ended = np.zeros(num_envs, np.bool_)
        # Workers that were started again outside of a step, which the next one has to tell.
        self._untold: set[WorkerProcess] = set()

        workers = min(workers, num_envs)
        self._workers: list[WorkerProcess] = []
        self._end = weakref.finalize(self, _end_workers, self._workers, self._owner)
        bounds = [num_envs * index // workers for index in range(workers + 1)]
        try:
            for index, (first, end) in enumerate(itertools.pairwise(bounds)):
                assignment = worker.Assignment(index, range(first, end), made_by[first:end], layout, mode)
                self._workers.append(WorkerProcess(assignment, memory, timeouts))
            # All at the same time.
            for each in self._workers:
                _or_not_started(each, each.assign)
            for each in self._workers:
                _or_not_started(each, each.await_start)
        except BaseException:
            self._end()
            raise

    def _learn_from(self, make: MakeEnv, given: object) -> None:
        """Takes spaces and metadata from an environment that is made for that."""
        try:
            env = make()
        except Exception as error:
            raise unmade(given, error) from error
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"make_env must make a gymnasium.Env, but {given!r} gave {env!r}")
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = env.render_mode
        env.close()

    # --- what Gymnasium asks for ---

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those in `options["reset_mask"]`, a bool array; ends a step that was interrupted.

        Args:
            seed: environment i gets `seed + i`; or a list or array with a seed, or None, for each. Seeds are whole
                numbers from 0 on.
            options: handed to each environment, without the mask.

        Returns:
            Observations, and infos in Gymnasium's form.

        An exception of an environment's is raised here, with the traceback as a note, if it comes once more after the
        worker was started again: then the reset asks for what cannot be done. All must be reset after it.

        Raises:
            ConfigError: a seed or a mask is impossible. Then nothing has happened.
            EnvironmentWorkerError: workers failed more often than `max_restarts`.
        """
        self._check_usable()
        seeds = seeds_of(seed, self.num_envs)
        mask = None
        if options is not None and "reset_mask" in options:
            mask = self._checked_mask(options["reset_mask"])
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        whole = mask is None or bool(mask.all())
        if self._state is not _State.READY and not whole:
            raise gymnasium.error.ResetNeeded("reset all environments before resetting some of them")
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else mask
        asked = [each for each in self._workers if chosen[_rows(each)].any()]
        messages = [
            pickle.dumps(("reset", seeds[_rows(each)], options, None if whole else chosen[_rows(each)].tolist()))
            for each in asked
        ]
        self._settle()
        self._begun = True
        self._seeds = [new if hit else old for hit, new, old in zip(chosen, seeds, self._seeds, strict=True)]
        self._ended[chosen] = False
        self._state = _State.RESET_NEEDED
        if whole:
            self._untold.clear()
        for each, message in zip(asked, messages, strict=True):
            each.send(message)
        deadline = deadline_in(self._step_timeout)
        restarted = np.zeros(self.num_envs, np.bool_)
        reports: list[Report] = []
        for each in asked:
            try:
                told = each.reports(each.receive(self._step_timeout, deadline))
            except WorkerFailureError as failure:
                told = self._restart(each, failure, options)
                restarted[_rows(each)] = True
                if not whole:
                    self._untold.add(each)
            reports += told
        self._state = _State.READY
        return self._observations(), self._infos(reports, None, restarted)

    def step(self, actions: Any) -> StepResult:  # noqa: ANN401 : a batch of the action space
        """Steps all environments.

        Args:
            actions: a batch of the action space: a row for each environment.

        Returns:
            Observations, rewards (float64), terminated, truncated (bool), each with a row for each environment, and
            infos in Gymnasium's form.

        Raises:
            UnsuitableEnvironmentError: the actions are of another shape or type than the action space.
            EnvironmentWorkerError: workers failed more often than `max_restarts`.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:  # noqa: ANN401 : as above
        """Begins a step, which `step_wait` ends; the caller may do something else in between."""
        self._check_usable()
        if self._state is _State.STEPPING:
            raise gymnasium.error.AlreadyPendingCallError(
                "a step is under way; call step_wait for its result, or reset", "step"
            )
        if self._state is _State.RESET_NEEDED:
            raise gymnasium.error.ResetNeeded(
                "call reset first: it was not called yet, or what was called last was interrupted or failed"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise gymnasium.error.ResetNeeded(
                f"the episodes of the environments {np.flatnonzero(self._ended).tolist()} have ended; reset them by "
                'reset(options={"reset_mask": ended})'
            )
        copy_into(self._arrays.actions, actions)
        # Until all are asked: an interruption in between leaves a step that nobody can end.
        self._state = _State.RESET_NEEDED
        for each in self._workers:
            each.send(self._end_message(each) if each in self._untold else worker.STEP)
        self._state = _State.STEPPING

    def step_wait(self) -> StepResult:
        """Waits for the step that `step_async` began; gives what `step` gives."""
        self._check_usable()
        if self._state is not _State.STEPPING:
            raise gymnasium.error.NoAsyncCallError("no step is under way; call step_async first", "step")
        self._state = _State.RESET_NEEDED
        deadline = deadline_in(self._step_timeout)
        reports: list[Report] = []
        restarted = None
        for each in self._workers:
            try:
                reply = each.receive(self._step_timeout, deadline)
                if reply != worker.DONE:
                    reports += each.understand(reply)[1]
                if each not in self._untold:
                    continue
            except WorkerFailureError as failure:
                reports += self._restart(each, failure, then=self._end_message(each))
            restarted = np.zeros(self.num_envs, np.bool_) if restarted is None else restarted
            restarted[_rows(each)] = True
            self._cut_episodes(each)
        self._untold.clear()
        arrays = self._arrays
        rewards, terminated, truncated = arrays.rewards.copy(), arrays.terminated.copy(), arrays.truncated.copy()
        np.logical_or(terminated, truncated, out=self._ended)
        finals = self._ended if self._same_step and self._ended.any() else None
        infos = {} if finals is None and restarted is None and not reports else self._infos(reports, finals, restarted)
        self._state = _State.READY
        return self._observations(), rewards, terminated, truncated, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 : whatever the method takes
        """Calls a method of each environment, or reads an attribute; gives what came, in the environments' order.

        An exception of the method is raised here, with the traceback as a note; arguments, results and exceptions are
        pickled.

        Raises:
            EnvironmentWorkerError: a worker did not survive it. It has been started again, and the next step tells so.
        """
        return self._ask_all([pickle.dumps(("call", name, args, kwargs))] * len(self._workers), name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment; as `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:  # noqa: ANN401 : of any type
        """Sets an attribute of each environment, until its worker is started again.

        Args:
            name: the attribute.
            values: a list or tuple with a value for each, or else one value for all.

        Raises:
            ConfigError: a list or tuple of another length.
        """
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ConfigError(f"set_attr needs a value for each of {self.num_envs} environments, but got {len(values)}")
        self._ask_all([pickle.dumps(("set_attr", name, values[_rows(each)])) for each in self._workers], name)

    def render(self) -> tuple[Any, ...]:
        """What each environment's `render` gives."""
        return self.call("render")

    # Read-only and for each environment, as in Gymnasium's own vectors.
    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of each environment's random number generator."""
        return self.get_attr("np_random")

    def close_extras(self, **_: Any) -> None:  # noqa: ANN401 : whatever Gymnasium's `close` was given
        """Ends the workers, which close their environments; those that do not within five seconds are killed.

        What Gymnasium's other vectors take (`timeout`, `terminate`) changes nothing in that.
        """
        self._end()

    # --- what is its own ---

    @property
    def workers(self) -> int:
        """How many worker processes there are."""
        return len(self._workers)

    @property
    def restarts(self) -> int:
        """How many times workers were started again."""
        return self._restarts

    @property
    def episodes_cut(self) -> int:
        """How many episodes were closed as truncated for that."""
        return self._episodes_cut

    def _check_usable(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("the environments are closed; make them anew")
        if os.getpid() != self._owner:
            raise EnvironmentWorkerError(
                f"the environments belong to the process {self._owner}, and this is a fork of it; make them here"
            )

    def _checked_mask(self, mask: Any) -> npt.NDArray[np.bool_]:  # noqa: ANN401 : whatever came
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            came = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise ConfigError(f"reset_mask must be a bool array of shape ({self.num_envs},), but {came} came")
        if not mask.any():
            raise ConfigError("reset_mask must choose at least one environment, but chooses none")
        return mask

    def _settle(self) -> None:
        """Takes in answers that an interrupted call has left, so that none is taken for that of another question."""
        for each in self._workers:
            if each.asked:
                try:
                    each.understand(each.receive(self._step_timeout, deadline_in(self._step_timeout)))
                except WorkerFailureError as failure:
                    self._restart(each, failure)

    def _ask_all(self, messages: list[bytes], name: str) -> tuple[Any, ...]:
        """Asks each worker; gives the environments' values."""
        self._check_usable()
        if self._state is _State.STEPPING:
            raise gymnasium.error.AlreadyPendingCallError("a step is under way; call step_wait first", "step")
        state, self._state = self._state, _State.RESET_NEEDED
        self._settle()
        for each, message in zip(self._workers, messages, strict=True):
            each.send(message)
        deadline = deadline_in(self._step_timeout)
        values: list[Any] = []
        error: Exception | None = None
        for each in self._workers:
            try:
                kind, content = each.understand(each.receive(self._step_timeout, deadline))
            except WorkerFailureError as failure:
                self._restart(each, failure)
                self._untold.add(each)
                came: Exception | None = EnvironmentWorkerError(
                    f"{each.name} {failure}, when `{name}` was asked for; it has been started again, and the next step "
                    f"tells that its episodes were cut{_appended(failure.traceback)}"
                )
            else:
                came = content.noted() if kind == worker.RAISED else None
                if came is None:
                    values += content
            error = came if error is None else error
        self._state = state
        if error is not None:
            raise error
        return tuple(values)

    def _restart(
        self,
        each: WorkerProcess,
        failure: WorkerFailureError,
        options: dict[str, Any] | None = None,
        then: bytes | None = None,
    ) -> list[Report]:
        """Starts a worker that failed again, and resets its environments if they had begun; gives their infos.

        Raises:
            EnvironmentWorkerError: the budget is used up; then everything is closed.
            Exception: an environment raised it in a reset, as it did before the restart, or where none is left. The
                worker is still of use.
        """
        while True:
            if failure.raised is not None and self._restarts >= self._max_restarts:
                raise failure.raised.noted()
            if self._restarts >= self._max_restarts:
                self.close()
                raise EnvironmentWorkerError(
                    f"{each.name} {failure}, and the budget of max_restarts={self._max_restarts} is used up; mend the "
                    f"environment, or give a larger budget{_appended(failure.traceback)}"
                )
            self._restarts += 1
            logger.warning(
                "%s %s; it is started again, restart %d of %d%s",
                each.name, failure, self._restarts, self._max_restarts, _appended(failure.traceback),
            )  # fmt: skip
            before = failure
            try:
                each.hang_up()
                each.kill(time.monotonic() + 1.0)
                each.start()
                each.assign()
                each.await_start()
                if not self._begun:
                    return []
                # The same seeds would lead to where it failed.
                change = self.num_envs * self._restarts
                seeds = [None if seed is None else seed + change for seed in self._seeds[_rows(each)]]
                reports = each.reports(each.ask(pickle.dumps(("reset", seeds, options, None)), self._step_timeout))
                if then is not None:
                    each.understand(each.ask(then, self._step_timeout))
            except WorkerFailureError as again:
                if before.raised is not None and again.raised is not None:
                    raise again.raised.noted() from None
                failure = again
            else:
                return reports

    def _end_message(self, each: WorkerProcess) -> bytes:
        """Tells a worker what to do next with environments whose episodes were cut: NEXT_STEP resets them."""
        to_reset = self._cut_in(each) & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        return pickle.dumps(("end episodes", to_reset.tolist()))

    def _cut_in(self, each: WorkerProcess) -> npt.NDArray[np.bool_]:
        """Which episodes a worker's failure cuts: those under way, so not where NEXT_STEP was to reset."""
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            return ~self._ended[_rows(each)]
        return np.ones(len(each.assignment.rows), np.bool_)

    def _cut_episodes(self, each: WorkerProcess) -> None:
        """Closes the episodes of a worker that was started again, in the results of this step."""
        rows, cut = _rows(each), self._cut_in(each)
        self._arrays.rewards[rows] = 0.0
        self._arrays.terminated[rows] = False
        self._arrays.truncated[rows] = cut
        self._episodes_cut += int(cut.sum())

    def _observations(self) -> Any:  # noqa: ANN401 : a batch of the observation space
        # Without copying, in containers that are the caller's own.
        return copy_of(self._arrays.observations) if self._copy else rows_of(self._arrays.observations, slice(None))

    def _infos(
        self,
        reports: list[Report],
        ended: npt.NDArray[np.bool_] | None,
        restarted: npt.NDArray[np.bool_] | None,
    ) -> dict[str, Any]:
        """Infos in Gymnasium's form, with the final observations of the `ended`."""
        infos: dict[str, Any] = {}
        if ended is not None and self._arrays.final_observations is not None:
            known = ended if restarted is None else ended & ~restarted
            final_obs = np.full(self.num_envs, None, np.object_)
            rows = known.nonzero()[0]
            kept = rows_of(self._arrays.final_observations, rows)
            for index, row in enumerate(rows.tolist()):
                final_obs[row] = row_of(kept, index)
            infos = {"final_obs": final_obs, "_final_obs": known, "final_info": {}, "_final_info": known.copy()}
        for row, final_info, info in reports:
            if final_info:
                infos["final_info"] = self._add_info(infos["final_info"], final_info, row)
            infos = self._add_info(infos, info, row)
        if restarted is not None and restarted.any():
            infos |= {"worker_restarted": restarted, "_worker_restarted": restarted.copy()}
        return infos


def _or_not_started(each: WorkerProcess, do: Callable[[], None]) -> None:
    """Does a part of a worker's first start, in which a failure is an error at once."""
    try:
        do()
    except WorkerFailureError as failure:
        if failure.traceback is not None:
            raise UnsuitableEnvironmentError(f"{each.name} {failure}{_appended(failure.traceback)}") from None
        raise EnvironmentWorkerError(
            f"{each.name} {failure} before its environments were made; see what it has printed. A program makes its "
            'ProcessVectorEnv below `if __name__ == "__main__":`, as each worker imports the program'
        ) from None


def _rows(each: WorkerProcess) -> slice:
    return slice(each.assignment.rows.start, each.assignment.rows.stop)


def _appended(traceback: str | None) -> str:
    return "" if traceback is None else f":\n{traceback.rstrip()}"


def _functions(make_env: str | MakeEnv | Sequence[MakeEnv], num_envs: int) -> list[MakeEnv]:
    """A function for each environment, in a form that travels."""
    if isinstance(make_env, str):
        make_env = cast("MakeEnv", functools.partial(gymnasium.make, make_env))
    if not callable(make_env):
        if not isinstance(make_env, list | tuple) or not all(map(callable, make_env)):
            raise ConfigError(
                "make_env must be an id, a function that makes an environment, or a list of functions, but "
                f"{make_env!r} came"
            )
        if len(make_env) != num_envs:
            raise ConfigError(f"make_env must have a function for each of {num_envs}, but has {len(make_env)}")
        functions = [CloudpickleWrapper(make) for make in make_env]
    else:
        # One object, which is pickled once.
        functions = [CloudpickleWrapper(make_env)] * num_envs
    for wrapped in {id(wrapped): wrapped for wrapped in functions}.values():
        try:
            wrapped.__getstate__()
        except Exception as error:
            raise UnsuitableEnvironmentError(
                f"the function {wrapped.fn!r} cannot travel to another process ({error}); make what it holds inside it"
            ) from error
    return list(functions)


def _usable_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _end_workers(workers: list[WorkerProcess], owner: int) -> None:
    """Lets all workers end by themselves, and kills those that do not."""
    if os.getpid() != owner:
        # A fork, whose workers they are not.
        return
    for each in workers:
        each.hang_up()
    deadline = time.monotonic() + CLOSE_SECONDS
    for each in workers:
        each.kill(deadline)
