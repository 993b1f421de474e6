"""Episodes as a run folder."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from relevo._core import Episode, RunWriter
from relevo.errors import ConfigError, ContractError, TrajectoryError
from relevo.trajectories.episode_data import EpisodeData
from relevo.trajectories.export_result import ExportResult
from relevo.trajectories.files import Counter, refuse_existing, removed_on_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from relevo.record_settings import Compression


def write(
    episodes: Iterable[EpisodeData | Episode],
    path: Path,
    *,
    compression: Compression,
    seed: int,
    config: dict[str, Any] | None,
    progress: Callable[[int, int], None] | None,
) -> ExportResult:
    """See `relevo.trajectories.to_run`."""
    refuse_existing(path)
    counter = Counter(progress)
    with removed_on_failure(path):
        with RunWriter(path, compression=compression, seed=seed, config=config) as writer:
            for episode in counter.counted(map(_data, episodes)):
                _add(writer, episode)
        if not counter.episodes:
            raise TrajectoryError(f"there are no episodes to write into {path}")
    return ExportResult((path,), counter.episodes, counter.steps)


def _data(episode: EpisodeData | Episode) -> EpisodeData:
    return EpisodeData.of(episode) if isinstance(episode, Episode) else episode


def _add(writer: RunWriter, episode: EpisodeData) -> None:
    # A run folder has a closing row only where the end has a kind; how it ended is an outside reason, then.
    ended = episode.complete or episode.has_final_observation
    try:
        writer.add(
            episode.observations,
            episode.actions,
            episode.rewards,
            terminated=episode.terminated,
            truncated=episode.truncated or (ended and not episode.terminated),
            rewards_known=episode.rewards_known,
            log_probs=episode.log_probs,
            values=episode.values,
            action_masks=episode.action_masks,
            policy_runs=_policy_runs(episode),
            timestamps=episode.timestamps,
            actor_id=episode.actor_id,
            number=episode.number,
            extras=episode.extras,
            texts=episode.texts,
        )
    except (ContractError, ConfigError) as error:
        which = f"the episode after {len(writer)} others" if episode.number is None else f"episode {episode.number}"
        raise TrajectoryError(f"{which} cannot be written: {error}") from error


def _policy_runs(episode: EpisodeData) -> list[tuple[int, str, int]]:
    """From which step on which policy acted."""
    acting = list(zip(episode.policies, episode.policy_versions.tolist(), strict=True))
    starts = [0, *(step for step, (before, after) in enumerate(pairwise(acting), 1) if before != after)]
    return [(start, *acting[start]) for start in starts]
