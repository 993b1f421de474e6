"""Runs as Minari datasets, and back."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from relevo.errors import ConfigError, RelevoError, TrajectoryError
from relevo.trajectories.episode_data import Arrays, EpisodeData, read_run
from relevo.trajectories.export_result import ExportResult
from relevo.trajectories.files import Counter, refuse_existing, removed_on_failure
from relevo.trajectories.minari_spaces import Spaces, flattened
from relevo.trajectories.packages import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from relevo._core import Run

OURS = "relevo"
"""The key of what is ours, in the dataset's metadata and before each name in `infos`."""


@dataclass(frozen=True)
class Given:
    """What `to_minari` was asked for."""

    env: Any
    observation_space: Any
    action_space: Any
    policy: str | None
    description: str | None


def write(run: Run, dataset_id: str, given: Given, progress: Callable[[int, int], None] | None) -> ExportResult:
    """See `relevo.trajectories.to_minari`."""
    minari = _minari("writing Minari datasets")
    path = _path(minari, dataset_id)
    refuse_existing(path)
    spaces = Spaces.of(lambda: _played(run, given.policy), given.env, given.observation_space, given.action_space)
    counter = Counter(progress)
    written: list[tuple[UUID | None, int | None]] = []
    left_out = 0

    def buffers() -> Iterator[Any]:
        nonlocal left_out
        for episode in counter.counted(_played(run, given.policy)):
            if not episode.has_final_observation:
                left_out += 1
                counter.episodes -= 1
                counter.steps -= len(episode)
                continue
            spaces.check(episode)
            written.append((episode.actor_id, episode.number))
            yield _buffer(minari, episode)

    with removed_on_failure(path), _told(), warnings.catch_warnings():
        # It asks for an author, a link and more, which a run does not know.
        warnings.simplefilter("ignore", UserWarning)
        dataset = minari.create_dataset_from_buffers(
            dataset_id,
            buffers(),
            env=given.env,
            observation_space=spaces.observation,
            action_space=spaces.action,
            description=given.description,
            data_format="hdf5",
            jpeg_encoding=False,
        )
        if not written:
            raise TrajectoryError(
                "no episode has a final observation, which Minari needs; tell it by actors.observe(…, final_obs=…)"
            )
        facts = {name: run.info[name] for name in ("run_id", "created", "seed", "library_version")}
        dataset.storage.update_metadata({OURS: facts})
        ours = (_facts(actor, number) for actor, number in written)
        dataset.storage.update_episode_metadata(ours, range(len(written)))
    return ExportResult((path,), counter.episodes, counter.steps, left_out)


def read(dataset_id: str) -> Iterator[EpisodeData]:
    """See `relevo.trajectories.from_minari`."""
    minari = _minari("reading Minari datasets")
    if not _path(minari, dataset_id).exists():
        raise ConfigError(f"there is no Minari dataset {dataset_id} here; `minari list local` tells those that are")
    try:
        dataset = minari.load_dataset(dataset_id)
    except Exception as error:
        raise TrajectoryError(f"Minari cannot load {dataset_id}: {error}") from error
    facts = dataset.storage.get_episode_metadata(dataset.episode_indices)
    for episode, own in zip(dataset.iterate_episodes(), facts, strict=True):
        yield _episode(episode, own)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What Minari, or HDF5 under it, cannot hold becomes an error of ours."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, RelevoError):
            raise
        raise TrajectoryError(f"Minari cannot hold the run: {error}; export to parquet, which can") from error


def _minari(purpose: str) -> Any:  # noqa: ANN401  (a module)
    needed("h5py", "minari", purpose)
    return needed("minari", "minari", purpose)


def _path(minari: Any, dataset_id: str) -> Path:  # noqa: ANN401  (a module)
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        # It fails with a TypeError where the version is missing.
        raise ConfigError(
            f"{dataset_id!r} is no name of a Minari dataset; expected one such as cartpole/expert-v0"
        ) from None
    return Path(minari.storage.get_dataset_path(dataset_id))


def _played(run: Run, policy: str | None) -> Iterator[EpisodeData]:
    return (episode for episode in read_run(run) if policy is None or policy in episode.policies)


def _buffer(minari: Any, episode: EpisodeData) -> Any:  # noqa: ANN401  (Minari's)
    last = np.arange(len(episode)) == len(episode) - 1
    infos: dict[str, Any] = {
        f"{OURS}_reward_known": episode.rewards_known,
        f"{OURS}_policy_version": episode.policy_versions,
    }
    optional = {
        "action_mask": episode.action_masks,
        "log_prob": episode.log_probs,
        "value": episode.values,
        "timestamp": None if episode.timestamps is None else episode.timestamps.view(np.int64),
    }
    infos |= {f"{OURS}_{name}": array for name, array in optional.items() if array is not None}
    # As many as observations: Minari has an info for the reset too. The last one is no step's.
    padded: dict[str, Any] = {name: np.concatenate([array, array[-1:]]) for name, array in infos.items()}
    padded[f"{OURS}_policy"] = [*episode.policies, episode.policies[-1]]
    for name, given in episode.extras.items():
        closed = [*given, given[-1]] if isinstance(given, list) else np.concatenate([given, given[-1:]])
        padded[f"{OURS}_extra_{name}"] = closed
    padded |= {f"{OURS}_text_{name}": given for name, given in episode.texts.items()}
    return minari.data_collector.EpisodeBuffer(
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=last & episode.terminated,
        truncations=last & episode.truncated,
        infos=padded,
    )


def _facts(actor: UUID | None, number: int | None) -> dict[str, str | int]:
    return {f"{OURS}_actor": str(actor or ""), f"{OURS}_number": -1 if number is None else number}


def _episode(episode: Any, facts: dict[str, Any]) -> EpisodeData:  # noqa: ANN401  (Minari's)
    steps = len(episode.rewards)
    infos = episode.infos or {}

    def info(name: str) -> npt.NDArray[Any] | None:
        return np.asarray(infos[f"{OURS}_{name}"])[:steps] if f"{OURS}_{name}" in infos else None

    versions, known, times = info("policy_version"), info("reward_known"), info("timestamp")
    names = infos.get(f"{OURS}_policy", [""] * steps)[:steps]
    terminated, truncated = bool(np.any(episode.terminations)), bool(np.any(episode.truncations))
    actor, number = facts.get(f"{OURS}_actor"), facts.get(f"{OURS}_number", -1)
    return EpisodeData(
        observations=_arrays("observations", episode.observations),
        actions=_arrays("actions", episode.actions),
        rewards=np.asarray(episode.rewards, np.float64),
        rewards_known=np.ones(steps, np.bool_) if known is None else known.astype(np.bool_),
        terminated=terminated,
        truncated=truncated,
        complete=terminated or truncated,
        policies=_strings(names),
        policy_versions=np.zeros(steps, np.uint64) if versions is None else versions.astype(np.uint64),
        timestamps=None if times is None else times.astype(np.int64).view("datetime64[ns]"),
        action_masks=info("action_mask"),
        log_probs=info("log_prob"),
        values=info("value"),
        actor_id=UUID(actor) if actor else None,
        number=int(number) if number is not None and number >= 0 else None,
        extras={name: _extra(given[:steps]) for name, given in _ours("extra", infos)},
        texts={name: _strings(given) for name, given in _ours("text", infos)},
    )


def _ours(kind: str, infos: dict[str, Any]) -> list[tuple[str, Any]]:
    """Our infos of a kind, by the names behind it."""
    prefix = f"{OURS}_{kind}_"
    return [(name[len(prefix) :], given) for name, given in infos.items() if name.startswith(prefix)]


def _extra(given: Any) -> npt.NDArray[Any] | list[str]:  # noqa: ANN401  (Minari's)
    array = np.asarray(given)
    return array if array.dtype.kind in "biuf" else _strings(given)


def _strings(given: Any) -> list[str]:  # noqa: ANN401  (Minari's)
    return [text.decode() if isinstance(text, bytes) else str(text) for text in given]


def _arrays(what: str, given: Any) -> Arrays:  # noqa: ANN401  (of any space)
    parts = {name: np.asarray(part) for name, part in flattened("", given).items()}
    for name, part in parts.items():
        if part.dtype.kind not in "biuf":
            where = f"{what} {name}".rstrip()
            raise TrajectoryError(f"{where} are {part.dtype}; episodes hold numbers alone")
    return parts[""] if list(parts) == [""] else parts
