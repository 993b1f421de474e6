"""Vector environments: making them, how they reset, and whether a policy's observations and actions fit them."""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from relevo.checks import whole_number
from relevo.errors import ConfigError, UnsuitableEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    import gymnasium

    from relevo._core import Actors

Autoreset: TypeAlias = Literal["same_step", "next_step", "disabled"]
"""When an environment resets by itself: in the step that ends an episode, in the one after, or never."""

VectorEnv: TypeAlias = "gymnasium.vector.VectorEnv[Any, Any, Any]"
ActionArray: TypeAlias = npt.NDArray[Any]
Heads: TypeAlias = "dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]"
"""As `Actors.heads` has them."""
Observations: TypeAlias = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]


def make_vector(
    env: str | Callable[..., gymnasium.Env[Any, Any]] | VectorEnv,
    num_envs: int,
    workers: int | None = None,
    *,
    start_timeout: float = 300.0,
    **options: object,
) -> VectorEnv:
    """`num_envs` copies of an environment that reset in the step that ends an episode.

    Args:
        env: an id that Gymnasium knows, or a function that makes one environment. A `VectorEnv` is given back as it is.
        num_envs: how many.
        workers: how many processes of their own step them, a `ProcessVectorEnv`; None steps them in this one, one after
            the other.
        start_timeout: seconds that a process may take to start and make its environments.
        **options: handed to the environment.

    Raises:
        UnsuitableEnvironmentError: the id is not known, the environment cannot be made, or Gymnasium is not installed.
        ConfigError: a number is impossible.
    """
    gymnasium = import_gymnasium()
    if isinstance(env, gymnasium.vector.VectorEnv):
        if env.num_envs != num_envs or workers is not None or options:
            raise UnsuitableEnvironmentError(
                f"the vector environment is made already, with {env.num_envs} environments; neither {num_envs} of them "
                "nor other options can be asked for here"
            )
        return cast("VectorEnv", env)
    num_envs = whole_number("num_envs", num_envs, 1)
    if workers is not None:
        from relevo.envs.process import ProcessVectorEnv

        make = functools.partial(gymnasium.make, env) if isinstance(env, str) else cast("Callable[..., Any]", env)
        return ProcessVectorEnv(functools.partial(make, **options), num_envs, workers, start_timeout=start_timeout)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    try:
        if isinstance(env, str):
            made = gymnasium.make_vec(
                env, num_envs, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **options
            )
        else:
            make = functools.partial(cast("Callable[..., Any]", env), **options)
            made = gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    except Exception as error:
        raise unmade(env, error) from error
    return cast("VectorEnv", made)


def unmade(env: object, error: Exception) -> UnsuitableEnvironmentError:
    """What is raised where making an environment raised `error`."""
    gymnasium = import_gymnasium()
    if isinstance(env, functools.partial) and env.func is gymnasium.make:
        # As `make_vector` hands an id with options to workers.
        env = env.args[0]
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        return UnsuitableEnvironmentError(_unknown_id(str(env), str(error), gymnasium.registry))
    # Whatever its author's code raised, with the hint at what to install where Gymnasium gives one.
    return UnsuitableEnvironmentError(f"the environment {env!r} cannot be made: {error}")


def import_gymnasium() -> ModuleType:
    """Gymnasium, which only environments need.

    Raises:
        UnsuitableEnvironmentError: it is not installed.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise UnsuitableEnvironmentError(
            f'making environments needs Gymnasium ({error}); install it by: pip install "relevo[envs]"'
        ) from error
    return gymnasium


def _unknown_id(env: str, reason: str, known: dict[str, Any]) -> str:
    import difflib

    # Names are compared without case: `cartpole-v1` is a slip of the shift key.
    by_lower = {name.lower(): name for name in known}
    close = [by_lower[name] for name in difflib.get_close_matches(env.lower(), by_lower, n=3)]
    advice = f"did you mean {', '.join(close)}?" if close else "gymnasium.pprint_registry() lists those that are."
    return (
        f'the environment "{env}" is not known; {advice} For one that another package registers, give its module as '
        f"well, as module:id. Gymnasium says: {reason}"
    )


def autoreset_mode(envs: VectorEnv, given: gymnasium.vector.AutoresetMode | str | None = None) -> Autoreset:
    """How `envs` reset, from their metadata; `given`, Gymnasium's `AutoresetMode` or its name, goes before.

    Raises:
        UnsuitableEnvironmentError: they do not say it.
    """
    mode: object = given
    if mode is None:
        mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    if mode is None and hasattr(envs, "all_env_ids"):
        return "next_step"  # EnvPool, whose older versions do not say it
    if mode is None:
        raise UnsuitableEnvironmentError(
            "the environments' metadata do not tell their autoreset mode; say it by "
            "collect(…, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP), or what it is"
        )
    return autoreset_name(mode)


def autoreset_name(mode: object) -> Autoreset:
    """Our name of Gymnasium's `AutoresetMode`, given as it is or by name.

    Raises:
        UnsuitableEnvironmentError: it is none of them.
    """
    # Enumeration members, their names and their values: NEXT_STEP, "next_step", "NextStep".
    name = str(getattr(mode, "value", mode)).replace("_", "").lower()
    modes: dict[str, Autoreset] = {"samestep": "same_step", "nextstep": "next_step", "disabled": "disabled"}
    if name not in modes:
        raise UnsuitableEnvironmentError(
            f"the autoreset mode must be SAME_STEP, NEXT_STEP or DISABLED, but {mode!r} came"
        )
    return modes[name]


def number_of(envs: VectorEnv) -> int:
    """How many environments `envs` are.

    Raises:
        UnsuitableEnvironmentError: they are no vector environment, or one that steps a part of them at a time.
    """
    config = getattr(envs, "config", None)
    count = getattr(envs, "num_envs", None) or (config.get("num_envs") if isinstance(config, dict) else None)
    if not isinstance(count, int):
        raise UnsuitableEnvironmentError(
            f"collect needs a vector environment, but {type(envs).__name__} came, which has no num_envs; "
            "relevo.envs.make_vector makes one of an environment"
        )
    if isinstance(config, dict) and config.get("batch_size", count) != count:
        raise UnsuitableEnvironmentError(
            f"the EnvPool environments are asynchronous: {config['batch_size']} of {count} answer at a time; make them "
            "without batch_size"
        )
    return count


def reset(envs: VectorEnv, seed: int | None) -> Observations:
    """Resets all of `envs`; gives their observations.

    Raises:
        UnsuitableEnvironmentError: they observe a tuple.
        ConfigError: a seed was given to EnvPool environments, which take theirs when they are made.
    """
    if seed is not None and hasattr(envs, "all_env_ids"):
        raise ConfigError("EnvPool takes its seed when it makes the environments: envpool.make_gymnasium(…, seed=…)")
    obs, _ = envs.reset() if seed is None else envs.reset(seed=seed)
    if isinstance(obs, tuple):
        raise UnsuitableEnvironmentError(
            "the environments observe a tuple, which has no names to give to the policy's inputs; wrap them so that "
            "they observe a dict by the inputs' names"
        )
    return cast("Observations", obs)


def observation_cast(dtypes: dict[str, str], obs: Observations) -> Callable[[Observations], Observations] | None:
    """The cast that `obs` need before the policy can take them; None where they go in as they are.

    Floats of another width (MuJoCo gives float64) and uint8 (images) are cast to the policy's floats. Everything else
    is left to `act`, which says what does not fit.

    Args:
        dtypes: the policy's `Actors.observation_dtypes`.
        obs: observations, `[N, …]`, or a dict of those by name.
    """
    if not isinstance(obs, dict):
        target = next(iter(dtypes.values()))
        return functools.partial(_cast_array, dtype=target) if _may_cast(obs, target) else None
    targets = {
        name: dtypes.get(name, str(array.dtype)) if len(obs) > 1 else next(iter(dtypes.values()))
        for name, array in obs.items()
    }
    if not any(_may_cast(array, targets[name]) for name, array in obs.items()):
        return None
    targets = {name: target for name, target in targets.items() if _may_cast(obs[name], target)}
    return functools.partial(_cast_dict, dtypes=targets)


def _may_cast(array: npt.NDArray[Any], target: str) -> bool:
    wanted = np.dtype(target)
    return array.dtype != wanted and wanted.kind == "f" and (array.dtype.kind == "f" or array.dtype == np.uint8)


def _cast_array(obs: Observations, dtype: str) -> Observations:
    return cast("npt.NDArray[Any]", obs).astype(dtype)


def _cast_dict(obs: Observations, dtypes: dict[str, str]) -> Observations:
    arrays = cast("dict[str, npt.NDArray[Any]]", obs)
    return {name: array.astype(dtypes[name]) if name in dtypes else array for name, array in arrays.items()}


def fill_final(
    cast_obs: Observations, final_obs: npt.NDArray[np.object_] | None, ended: npt.NDArray[np.intp]
) -> Observations | npt.NDArray[np.object_] | None:
    """Gymnasium's final observations as arrays of the types of `cast_obs`; only the rows in `ended` mean something.

    Where one of those is not known, an object array, with None for it.

    Single environments often give float64 where their space says float32, and the vector hands that on as it came.
    """
    if final_obs is None:
        return None
    known = [row for row in ended if final_obs[row] is not None]
    filled: Observations
    if isinstance(cast_obs, dict):
        filled = {name: np.empty_like(array) for name, array in cast_obs.items()}
        for row in known:
            for name, array in filled.items():
                array[row] = final_obs[row][name]
    else:
        filled = np.empty_like(cast_obs)
        for row in known:
            filled[row] = final_obs[row]
    return filled if len(known) == len(ended) else known_final(filled, known)


def known_final(obs: Observations, known: Iterable[np.intp]) -> npt.NDArray[np.object_]:
    """The final observations in the rows `known` of `obs`, in Gymnasium's form: an object array, None elsewhere."""
    rows = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    objects = np.full(rows, None, np.object_)
    for row in known:
        objects[row] = {name: array[row] for name, array in obs.items()} if isinstance(obs, dict) else obs[row]
    return objects


def fit_actions(envs: VectorEnv, actors: Actors) -> Callable[[Any], Any]:
    """A function that makes of a policy's actions what `envs.step` takes.

    Discrete actions are checked, and shifted by the space's `start`. Those for a `Box` are cast to its type and
    otherwise left alone: the environment decides what becomes of a value outside its bounds. A policy that gives
    actions of several kinds fits a `Dict` with the same keys, or a `Dict` or `Tuple` with one place for each kind.

    Args:
        envs: the environments.
        actors: who acts in them.

    Raises:
        UnsuitableEnvironmentError: the actions do not fit the action space, or this kind of space is not known.
    """
    space: Any = getattr(envs, "single_action_space", None)
    if space is None:
        space = envs.action_space  # older versions of EnvPool
    columns = {key: (np.dtype(dtype), shape) for key, (dtype, shape) in actors.action_columns.items()}
    kind = type(space).__name__
    if kind in {"Dict", "Tuple"}:
        parts = dict(space.spaces if kind == "Dict" else enumerate(space.spaces))
        fits = {
            key: (column, _fit_column(parts[key], *columns[column], actors))
            for key, column in _matched(space, parts, columns).items()
        }
        if kind == "Dict":
            return lambda actions: {key: fit(actions[column]) for key, (column, fit) in fits.items()}
        return lambda actions: tuple(fits[index][1](actions[fits[index][0]]) for index in range(len(fits)))
    if len(columns) != 1:
        raise UnsuitableEnvironmentError(
            f"the policy gives actions of several kinds ({', '.join(columns)}), but the environment takes {space}; "
            'name those that it shall not take by roles={"…": "other"}'
        )
    return _fit_column(space, *columns["action"], actors)


def _matched(space: object, parts: dict[Any, Any], columns: dict[str, Any]) -> dict[Any, str]:
    """Which of the policy's action columns each part of the action space takes."""
    if parts.keys() == columns.keys():
        return {key: key for key in parts}
    wanted = {key: type(part).__name__ == "Box" for key, part in parts.items()}
    given = {key: dtype.kind == "f" for key, (dtype, _) in columns.items()}
    # One of floats and one of whole numbers on either side.
    unique = sorted(wanted.values()) == sorted(given.values()) == [False, True]
    if not unique:
        kinds = ", ".join(f"{key} ({dtype})" for key, (dtype, _) in columns.items())
        raise UnsuitableEnvironmentError(
            f"the environment takes actions of the parts {', '.join(map(str, parts))} ({space}), but the policy gives "
            f"{kinds}; name its outputs as the environment names the parts"
        )
    return {key: next(name for name in given if given[name] == floats) for key, floats in wanted.items()}


def _fit_column(
    space: Any,  # noqa: ANN401 : Gymnasium's, by the name of its class
    dtype: np.dtype[Any],
    row_shape: tuple[int, ...],
    actors: Actors,
) -> Callable[[ActionArray], ActionArray]:
    kind, branches = type(space).__name__, actors.branches
    integers = dtype.kind in "iu"
    choices = branches[0] if len(branches) == 1 and integers else None
    came = f"the policy gives {dtype} of shape {row_shape} for each actor"
    if kind == "Discrete":
        if choices not in {None, space.n}:
            raise UnsuitableEnvironmentError(
                f"the environment takes one of {space.n} actions ({space}), but the policy chooses from {choices}; "
                f"choose a policy with {space.n} logits"
            )
        if not (integers and row_shape in {(), (1,)}):
            raise UnsuitableEnvironmentError(
                f"the environment takes one of {space.n} actions ({space}), but {came}; "
                + _advice_for_discrete(int(space.n), branches, actors.heads)
            )
        if choices is not None and row_shape == ():
            # The head chooses from as many actions as there are: none of them can be outside.
            return functools.partial(_shifted, start=int(space.start))
        return functools.partial(_discrete, choices=int(space.n), start=int(space.start), squeeze=row_shape == (1,))
    if kind in {"MultiDiscrete", "MultiBinary"}:
        limits = space.nvec if kind == "MultiDiscrete" else np.full(space.shape, 2)
        if not (integers and row_shape == space.shape):
            raise UnsuitableEnvironmentError(
                f"the environment takes whole numbers of shape {space.shape} ({space}), but {came}; "
                + _advice_for_branches(limits.reshape(-1).tolist(), branches, actors.heads)
            )
        return functools.partial(_multi_discrete, choices=limits, start=getattr(space, "start", None))
    if kind == "Box":
        if dtype.kind != space.dtype.kind or _without_ones(row_shape) != _without_ones(space.shape):
            raise UnsuitableEnvironmentError(
                f"the environment takes {space.dtype} of shape {space.shape} ({space}), but {came}; "
                + _advice_for_box(space, actors.heads)
            )
        return _Box(space, dtype, None if row_shape == space.shape else space.shape)
    raise UnsuitableEnvironmentError(
        f"the action space {space} is of a kind that collect does not know; it takes Discrete, MultiDiscrete, "
        "MultiBinary and Box. Wrap the environment, or write the loop with actors.act and actors.observe"
    )


_log = logging.getLogger("relevo.collect")

_ANOTHER_POLICY = "choose a policy that was made for this environment"


def _advice_for_discrete(choices: int, branches: tuple[int, ...], heads: Heads) -> str:
    if len(branches) > 1 and sum(branches) == choices:
        return f"the branches {list(branches)} do not fit; leave them out"
    if len(branches) > 1:
        return f"the branches {list(branches)} do not fit, as this is one choice; choose a policy with {choices} logits"
    fitting = [head for head, (_, _, own) in heads.items() if own == (choices,)]
    if fitting and branches == ():
        return f"choose a head that gives whole numbers: {_named(fitting)}"
    return f"choose a policy with {choices} logits"


def _advice_for_branches(sizes: list[int], branches: tuple[int, ...], heads: Heads) -> str:
    if list(branches) == sizes:
        return f"wrap the environment so that it takes its actions in one row of {len(sizes)}"
    if not any(sum(own) == sum(sizes) for _, _, own in heads.values()):
        return _ANOTHER_POLICY
    return f'where these are logits of all branches, choose head="categorical", branches={sizes}'


def _advice_for_box(space: Any, heads: Heads) -> str:  # noqa: ANN401 : as above
    fitting = [
        head
        for head, (dtype, shape, _) in heads.items()
        if np.dtype(dtype).kind == space.dtype.kind and _without_ones(shape) == _without_ones(space.shape)
    ]
    if not fitting:
        return _ANOTHER_POLICY
    size = math.prod(space.shape)
    pairs = f" where these are {size} means and as many log-stds," if fitting == ["gaussian"] else ""
    return f"{pairs} choose another head: {_named(fitting)}".lstrip()


def _named(heads: list[str]) -> str:
    return " or ".join(f'head="{head}"' for head in heads)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _shifted(actions: ActionArray, start: int) -> ActionArray:
    return actions + start if start else actions


def _discrete(actions: ActionArray, choices: int, start: int, squeeze: bool) -> ActionArray:
    if squeeze:
        actions = actions[:, 0]
    highest = int(actions.max())
    if highest >= choices or int(actions.min()) < 0:
        raise UnsuitableEnvironmentError(
            f"the environment takes one of {choices} actions, numbered from 0, but the policy chose "
            f"{highest if highest >= choices else int(actions.min())}; choose a policy with {choices} logits"
        )
    return _shifted(actions, start)


def _multi_discrete(actions: ActionArray, choices: npt.NDArray[Any], start: npt.NDArray[Any] | None) -> ActionArray:
    outside = (actions < 0) | (actions >= choices)
    if outside.any():
        row = int(np.flatnonzero(outside.reshape(len(actions), -1).any(axis=1))[0])
        raise UnsuitableEnvironmentError(
            f"the environment takes actions below {choices.tolist()}, but the policy chose {actions[row].tolist()}; "
            "choose a policy that was made for this environment"
        )
    return actions if start is None else actions + start


class _Box:
    """Makes actions for a `Box`, and tells once that they leave it."""

    def __init__(self, space: Any, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> None:  # noqa: ANN401 : as above
        """`dtype` is the policy's; `shape` is that of one action where the policy gives another."""
        self._space, self._shape, self._dtype = space, shape, space.dtype
        # In the policy's type, to which a bound may have been rounded.
        self._low, self._high = space.low.astype(dtype), space.high.astype(dtype)
        self._is_watched = dtype.kind == "f" and bool(np.isfinite([space.low, space.high]).any())

    def __call__(self, actions: ActionArray) -> ActionArray:
        if self._shape is not None:
            actions = actions.reshape(len(actions), *self._shape)
        if self._is_watched and ((actions < self._low) | (actions > self._high)).any():
            self._is_watched = False
            outside = actions[(actions < self._low) | (actions > self._high)]
            _log.warning(
                "the policy's actions leave the action space %s: %.4g is one; what becomes of that is the environment's"
                " rule. Bring them into it by bounds=Bounds.of(env.action_space), with how= as the policy was trained: "
                "clip, rescale or tanh",
                self._space,
                outside[0],
            )
        return actions.astype(self._dtype, copy=False)
