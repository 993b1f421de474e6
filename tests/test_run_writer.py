"""`RunWriter` and `to_run`: episodes that were played elsewhere become a run."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import Any, get_args

import episodes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli import relevo_command
from test_export_trajectories import AWKWARD, made

import relevo
from relevo import trajectories
from relevo.record_settings import Compression
from relevo.trajectories import EpisodeData


@pytest.fixture
def run(tmp_path: Path) -> relevo.Run:
    return episodes.recorded(tmp_path)


def back(folder: Path) -> list[EpisodeData]:
    run = relevo.open_run(folder)
    assert run.verify()["sound"]
    return [EpisodeData.of(episode) for episode in run.episodes()]


def test_arrays_become_a_run(tmp_path: Path) -> None:
    observations = np.arange(8, dtype=np.float32).reshape(4, 2)
    with relevo.RunWriter(tmp_path / "run", seed=7, config={"from": "ä test"}) as writer:
        assert writer.add(observations, [1, 0, 1], [1.0, 2.0, 3.0], terminated=True) == 0
        assert writer.add(observations[:3], np.zeros((3, 2)), np.ones(3, np.int8)) == 1
        assert (len(writer), writer.step_count, writer.path) == (2, 6, tmp_path / "run")
    run = relevo.open_run(tmp_path / "run")
    assert (run.info["seed"], run.info["config"], run.info["models"]) == (7, {"from": "ä test"}, [])
    one, other = run.episodes()
    np.testing.assert_array_equal(one.observations, observations)
    assert np.asarray(one.actions).dtype == np.int64
    assert one.rewards.tolist() == [1.0, 2.0, 3.0]
    assert (one.terminated, one.truncated, one.complete, one.has_final_observation) == (True, False, True, True)
    assert (one.policy_runs, one.actor_id, one.rewards_known) == ([(0, "", 0)], uuid.UUID(int=0), None)
    assert str(one.timestamps[0]) == "1970-01-01T00:00:00.000000000"
    assert (other.number, other.complete, other.has_final_observation) == (1, False, False)
    assert np.asarray(other.actions).dtype == np.float64
    assert run.verify()["sound"]


@pytest.mark.parametrize("compression", get_args(Compression))
def test_every_kind_of_episode_is_held(tmp_path: Path, compression: Compression) -> None:
    given = [
        episode if number is None else EpisodeData(**(vars(episode) | {"number": number}))
        for number, episode in enumerate(AWKWARD.values())
    ]
    result = trajectories.to_run(given, tmp_path / "run", compression=compression)
    assert (result.paths, result.episodes) == ((tmp_path / "run",), len(AWKWARD))
    assert result.steps == sum(map(len, given))
    read = {episode.number: episode for episode in back(tmp_path / "run")}
    for episode in given:
        episodes.assert_same(episode, read.pop(episode.number))
    assert not read


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rewards": ({"rewards": [1.0]}, r"rewards must have the shape \(3,\), one row for each action, but \(1,\) came"),
    "rewards of two axes": ({"rewards": np.ones((3, 1))}, r"rewards must have the shape \(3,\), .* \(3, 1\) came"),
    "texts": ({"observations": np.array(["a"] * 4)}, "observations must be numbers, but <U1 came"),
    "objects": ({"rewards": [object()] * 3}, "rewards must be float64, but object came"),
    "no observations": ({"observations": np.zeros((0, 2))}, "3 actions take 3 observations, or 4 .*, but 0 came"),
    "too many": ({"observations": np.zeros((5, 2))}, "or 4 with the final one, but 5 came"),
    "a scalar": ({"observations": 3.0}, "observations must have an axis that counts the steps"),
    "no steps": ({"actions": []}, "one step or more"),
    "no end": ({"terminated": False}, "the episode did not end; say terminated=True or truncated=True"),
    "parts that differ": ({"observations": {"a": np.zeros(4), "b": np.zeros(3)}}, "observations b has 3 rows"),
    "no parts": ({"actions": {}}, "actions by name take one array or more"),
    "a name that is none": ({"actions": {1: np.zeros(3)}}, "take names that are texts, but 1 came"),
    "masks of one axis": ({"action_masks": np.ones(3)}, r"action_masks must have the shape \(3, actions\)"),
    "masks of numbers": ({"action_masks": np.full((3, 2), 7)}, "action_masks must be ones and zeros"),
    "times": ({"timestamps": [1, 2, 3]}, "timestamps must be datetime64, but int64 came"),
    "too few times": ({"timestamps": np.zeros(2, "M8[s]")}, r"timestamps must have the shape \(3,\)"),
    "log-probabilities": ({"log_probs": np.zeros(4)}, r"log_probs must have the shape \(3,\)"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_what_is_no_episode(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {
        "observations": np.zeros((4, 2)),
        "actions": np.zeros(3),
        "rewards": np.zeros(3),
        "terminated": True,
    }
    with relevo.RunWriter(tmp_path / "run") as writer:
        with pytest.raises(relevo.ContractError, match=message):
            writer.add(**(sound | given))
        # The writer goes on.
        assert writer.add(**sound) == 0
    assert len(relevo.open_run(tmp_path / "run")) == 1


def test_numbers_and_policies(tmp_path: Path) -> None:
    sound = np.zeros((3, 2)), np.zeros(3), np.zeros(3)
    with relevo.RunWriter(tmp_path / "run") as writer:
        assert writer.add(*sound, number=5) == 5
        assert writer.add(*sound) == 6
        for number in (5, 2**64 - 1):
            with pytest.raises(relevo.ContractError, match=f"there is an episode {number} already"):
                writer.add(*sound, number=number)
        for runs in ([], [(1, "a", 1)], [(0, "a", 1), (3, "b", 1)], [(0, "a", 1), (0, "b", 1)]):
            with pytest.raises(relevo.TrajectoryError, match="policy runs do not cover its steps in order"):
                writer.add(*sound, policy_runs=runs)
        assert writer.add(*sound, policy_runs=[(0, "a", 1), (2, "b", 9)], number=0) == 0
    run = relevo.open_run(tmp_path / "run")
    assert sorted(episode.number for episode in run.episodes()) == [0, 5, 6]
    assert run.episode(0).policy_runs == [(0, "a", 1), (2, "b", 9)]


def test_a_writer_of_its_own(tmp_path: Path) -> None:
    sound = np.zeros((3, 2)), np.zeros(3), np.zeros(3)
    with pytest.raises(relevo.ConfigError, match='compression must be one of "none", "lz4", "zstd"'):
        relevo.RunWriter(tmp_path / "run", compression="gzip")  # type: ignore[arg-type]
    writer = relevo.RunWriter(tmp_path / "run")
    with pytest.raises(relevo.TrajectoryError, match="another writer records into the folder"):
        relevo.RunWriter(tmp_path / "run")
    writer.add(*sound)
    child = os.fork()
    if not child:
        status = 1
        try:
            writer.add(*sound)
        except relevo.AgentStateError:
            writer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    writer.close()
    writer.close()
    with pytest.raises(relevo.AgentStateError, match="is closed"):
        writer.add(*sound)
    assert len(relevo.open_run(tmp_path / "run")) == 1
    with pytest.raises(relevo.TrajectoryError, match="the folder holds a run already"):
        relevo.RunWriter(tmp_path / "run")
    # What nobody closed is closed with the writer; what came before an error is kept.
    relevo.RunWriter(tmp_path / "other").add(*sound)
    assert len(relevo.open_run(tmp_path / "other")) == 1
    with contextlib.suppress(KeyError), relevo.RunWriter(tmp_path / "third") as writer:
        writer.add(*sound)
        raise KeyError
    assert len(relevo.open_run(tmp_path / "third")) == 1


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    for given in ([], [made(0), made(1), made(0)], [made(rewards=np.zeros(2), rewards_known=np.ones(2, np.bool_))]):
        with pytest.raises(relevo.TrajectoryError, match=r"no episodes|episode 0 cannot be written"):
            trajectories.to_run(given, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(relevo.ConfigError, match="is there already"):
        trajectories.to_run([made()], tmp_path / "there")


def test_an_end_of_no_kind_counts_as_truncated(tmp_path: Path) -> None:
    trajectories.to_run([made(terminated=False), made(1, terminated=False, complete=False)], tmp_path / "run")
    assert [(episode.truncated, episode.has_final_observation) for episode in back(tmp_path / "run")] == [
        (True, True),
        (True, True),
    ]


@pytest.mark.parametrize("compression", get_args(Compression))
def test_there_and_back_by_the_commands(
    run: relevo.Run, tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari", reason="Minari is not installed")
    pytest.importorskip("h5py", reason="h5py is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    expected = {episode.number: EpisodeData.of(episode) for episode in run.episodes()}
    for kind, target in (("parquet", tmp_path / "a.parquet"), ("csv", tmp_path / "a-csv"), ("minari", "back/a-v0")):
        assert relevo_command("trajectories", "export", run.path, target, "--to", kind).returncode == 0
        folder = tmp_path / f"from-{kind}"
        done = relevo_command(
            "trajectories", "import", target, folder, "--from", kind, "--compression", compression, "--json"
        )
        assert (done.returncode, done.stderr) == (0, "")
        read = {episode.number: episode for episode in back(folder)}
        # Minari holds those whose final observation is known.
        held = {number: own for number, own in expected.items() if kind != "minari" or own.has_final_observation}
        assert read.keys() == held.keys()
        for number, episode in held.items():
            episodes.assert_same(episode, read[number])
        shown = json.loads(done.stdout)
        assert (shown["episodes"], shown["steps"]) == (len(held), sum(map(len, held.values())))
        info = relevo.open_run(folder).info
        assert (info["config"]["imported_from"], info["config"]["sources"]) == (kind, [str(target)])
        if kind == "parquet":
            assert (info["config"]["run"], info["seed"]) == (run.info, run.info["seed"])
        # Nothing is overwritten.
        done = relevo_command("trajectories", "import", target, folder, "--from", kind)
        assert (done.returncode, "is there already" in done.stderr) == (1, True)


def test_several_sources(tmp_path: Path) -> None:
    for number in range(2):
        table = pa.table(
            {
                "episode": [number, number],
                "step": [0, 1],
                "observation": pa.array([[0.0, 1.0], [2.0, 3.0]], pa.list_(pa.float32(), 2)),
                "action": [1, number],
                "reward": [1.0, None],
                "terminated": [False, True],
                "truncated": [False, False],
            }
        )
        pq.write_table(table, tmp_path / f"{number}.parquet")
    sources = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    done = relevo_command("trajectories", "import", *sources, tmp_path / "run", "--from", "parquet")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 episodes, 4 steps" in done.stdout
    one, other = back(tmp_path / "run")
    assert (one.number, one.terminated, one.episode_return, one.policies) == (0, True, 1.0, ["", ""])
    assert np.asarray(other.actions).tolist() == [1, 1]
    done = relevo_command("trajectories", "import", sources[0], sources[0], tmp_path / "twice", "--from", "parquet")
    assert (done.returncode, "there is an episode 0 already" in done.stderr) == (1, True)
    assert not (tmp_path / "twice").exists()
