"""A run that is gone on with: numbers and random streams stand where they stood; one writer has the folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import models
import numpy as np
import pytest

import relevo

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Four choices, all alike: the action is what the random stream says."""
    return models.linear(tmp_path / "policy.onnx", np.zeros((2, 4)))


def play(agent: relevo.Agent, steps: int) -> npt.NDArray[Any]:
    """The actions of so many steps, of which the last ends the episode."""
    actors, drawn = agent.actors(), []
    with agent:
        for step in range(steps):
            drawn.append(np.array(actors.act(np.zeros((len(actors), 2), np.float32))))
            actors.observe(0.0, terminated=step == steps - 1)
    return np.array(drawn)


def builder(policy: Path) -> relevo.AgentBuilder:
    return relevo.AgentBuilder().default_model(policy, head="categorical").actor_count(8)


def test_actions_go_on_as_if_the_run_had_never_stopped(policy: Path, tmp_path: Path) -> None:
    whole = play(builder(policy).seed(5).build(), 30)
    assert len(np.unique(whole)) == 4
    folder = tmp_path / "run"
    first = play(builder(policy).seed(5).record(folder, resume=True).build(), 10)
    # Without a seed, that of the run is taken.
    then = play(builder(policy).record(folder, resume=True).build(), 20)
    np.testing.assert_array_equal(np.concatenate([first, then]), whole)
    run = relevo.open_run(folder)
    assert [episode.number for episode in run.episodes()] == list(range(16))
    assert run.info["seed"] == 5
    assert len(run.info["resumed"]) == 1
    assert len(run.info["models"]) == 2
    recorded = np.stack([run.episode(number).actions for number in range(8, 16)])
    np.testing.assert_array_equal(np.sort(recorded, axis=0), np.sort(then.T, axis=0))


def test_another_seed_is_refused(policy: Path, tmp_path: Path) -> None:
    play(builder(policy).seed(5).record(tmp_path / "run").build(), 2)
    with pytest.raises(relevo.ConfigError, match="has the seed 5, and 6 was given"):
        builder(policy).seed(6).record(tmp_path / "run", resume=True).build()


def test_one_writer_has_the_folder(policy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    agent = builder(policy).record(folder).build()
    with agent:
        with pytest.raises(relevo.TrajectoryError, match="another writer records into the folder"):
            builder(policy).record(folder, resume=True).build()
        with pytest.raises(relevo.TrajectoryError, match="another writer records into the folder"):
            builder(policy).record(folder).build().start()
    with pytest.raises(relevo.TrajectoryError, match="resume=True"):
        builder(policy).record(folder).build().start()
    play(builder(policy).record(folder, resume=True).build(), 1)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"compression": "gzip"}, 'compression must be one of "none", "lz4", "zstd"'),
        ({"fsync": "always"}, 'fsync must be one of "never", "segment", "batch"'),
        ({"on_failure": "panic"}, 'on_failure must be one of "continue", "stop"'),
        ({"segment_bytes": 0}, "segment_bytes"),
        ({"segment_seconds": 0}, "segment_seconds"),
    ],
)
def test_settings_are_checked_when_they_are_given(setting: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(relevo.ConfigError, match=told):
        relevo.AgentBuilder().record(tmp_path / "run", **setting)
