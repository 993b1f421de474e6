"""Run folders: what is written is what was played, whatever ends the process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import models
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import relevo


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.actor_critic(tmp_path / "policy.onnx")


def play(agent: relevo.Agent, steps: int, length: int = 10) -> None:
    actors = agent.actors()
    count = len(actors)
    for step in range(steps):
        obs = np.stack([np.arange(count), np.full(count, step)], axis=1).astype(np.float32)
        actors.act(obs)
        ended = step % length == length - 1
        actors.observe(np.arange(count) + step, terminated=ended, final_obs=obs + 0.5 if ended else None)


def check(episodes: list[relevo.Episode], length: int = 10) -> None:
    for episode in episodes:
        observations = episode.observations
        assert isinstance(observations, np.ndarray)
        actor, start = observations[0]
        steps = np.arange(start, start + len(episode))
        np.testing.assert_array_equal(observations[: len(episode), 0], actor)
        np.testing.assert_array_equal(observations[: len(episode), 1], steps)
        np.testing.assert_array_equal(episode.rewards, actor + steps)
        assert episode.values is not None
        np.testing.assert_array_equal(episode.values, actor + steps)
        if episode.complete:
            assert len(episode) == length
            assert episode.terminated
            np.testing.assert_array_equal(observations[-1], observations[-2] + 0.5)
        else:
            assert not episode.has_final_observation


def test_a_run_reads_back_as_it_was_played(policy: Path, tmp_path: Path) -> None:
    agent = relevo.AgentBuilder().default_model(policy).actor_count(7).seed(5).record(tmp_path / "run").build()
    with agent:
        play(agent, 95)
        agent.flush()
        # Readable while it is written.
        assert len(list(relevo.open_run(tmp_path / "run").episodes())) == 63
    run = relevo.open_run(tmp_path / "run")
    episodes = list(run.episodes())
    check(episodes)
    assert sorted(episode.number for episode in episodes) == list(range(70))
    assert sum(len(episode) for episode in episodes) == 7 * 95
    assert [episode.complete for episode in episodes].count(False) == 7
    assert {episode.actor_id for episode in episodes} == set(agent.get_actor_ids())
    assert run.info["seed"] == 5
    assert run.info["models"][0]["sha256"] == relevo.ModelModule.load_from_path(policy).sha256
    assert run.info["models"][0]["head"] == "categorical"
    assert run.info["config"]["actor_count"] == 7
    in_memory = {episode.number: episode for episode in agent.trajectories()}
    for episode in episodes:
        twin = in_memory[episode.number]
        for name in ("observations", "actions", "rewards", "log_probs", "values", "policy_versions", "timestamps"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(twin, name))


def test_pyarrow_reads_the_columns_of_the_design(policy: Path, tmp_path: Path) -> None:
    with relevo.AgentBuilder().default_model(policy).actor_count(3).record(tmp_path / "run").build() as agent:
        play(agent, 20)
    with pa.ipc.open_file(tmp_path / "run" / "segments" / "000000.arrow") as file:
        table = file.read_all()
    assert table.num_rows == 3 * 2 * 11
    assert table.schema.names == [
        "actor_id",
        "episode",
        "step",
        "observation",
        "action",
        "reward",
        "terminated",
        "truncated",
        "log_prob",
        "value",
        "policy",
        "policy_version",
        "timestamp",
    ]
    closing = table.filter(pc.is_null(table["action"]))
    assert closing.num_rows == 6
    assert closing["step"].to_pylist() == [10] * 6
    observations = table["observation"].combine_chunks()
    assert observations.to_numpy_ndarray().shape == (66, 2)


def test_two_policies_with_other_columns_lie_in_segments_of_their_own(policy: Path, tmp_path: Path) -> None:
    wide = models.linear(tmp_path / "wide.onnx", np.ones((5, 3)))
    builder = relevo.AgentBuilder().default_model(policy).policy("wide", wide).actor_count(2)
    with builder.record(tmp_path / "run").build() as agent:
        narrow = agent.actors()
        wide_actors = agent.actors(agent.new_actors(2, policy="wide"))
        for step in range(4):
            narrow.act(np.zeros((2, 2), np.float32))
            narrow.observe(1.0, terminated=step == 3)
            wide_actors.act(np.zeros((2, 5), np.float32))
            wide_actors.observe(2.0, terminated=step == 3)
        with pytest.raises(relevo.ContractError, match="different tensors"):
            agent.actors().act(np.zeros((4, 2), np.float32))
    assert len(list((tmp_path / "run" / "segments").glob("*.arrow"))) == 2
    episodes = list(relevo.open_run(tmp_path / "run").episodes())
    assert sorted((episode.policies[0], episode.episode_return) for episode in episodes) == [
        ("default", 4.0),
        ("default", 4.0),
        ("wide", 8.0),
        ("wide", 8.0),
    ]


def test_folders_that_cannot_be_recorded_into(policy: Path, tmp_path: Path) -> None:
    def start(folder: Path) -> None:
        relevo.AgentBuilder().default_model(policy).record(folder).build().start()

    with relevo.AgentBuilder().default_model(policy).record(tmp_path / "run").build() as agent:
        play(agent, 10)
    with pytest.raises(relevo.TrajectoryError, match="holds a run already"):
        start(tmp_path / "run")
    check(list(relevo.open_run(tmp_path / "run").episodes()))
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(relevo.TrajectoryError, match="file"):
        start(tmp_path / "file" / "run")
    with pytest.raises(relevo.TrajectoryError, match=r"proc.*; record into a folder that can be written"):
        start(Path("/proc/relevo"))


def test_reading_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(relevo.TrajectoryError, match=r"run\.json.*; give the folder that was recorded into"):
        relevo.open_run(tmp_path)
    with pytest.raises(relevo.TrajectoryError, match="nowhere"):
        relevo.open_run(tmp_path / "nowhere")


def test_a_disk_that_fails_is_told_and_inference_goes_on(policy: Path, tmp_path: Path) -> None:
    agent = relevo.AgentBuilder().default_model(policy).actor_count(2).record(tmp_path / "run").build()
    agent.start()
    play(agent, 10)
    agent.flush()
    assert agent.stats()["steps_written"] == 20
    # The segment is made at the first episode of another schema; a folder in its place stops that.
    segments = tmp_path / "run" / "segments"
    (segments / "000001.arrow").mkdir()
    actors = agent.actors()
    actors.act(np.zeros((2, 2), np.float32), mask=np.ones((2, 2), bool))
    actors.observe(0.0, terminated=True)
    # Whoever flushes is told, each time; whoever acts is told once.
    for _ in range(2):
        with pytest.raises(relevo.TrajectoryError, match="000001"):
            agent.flush()
    with pytest.raises(relevo.TrajectoryError, match="000001"):
        actors.act(np.zeros((2, 2), np.float32))
    play(agent, 10)
    with pytest.raises(relevo.TrajectoryError, match="4 episodes are not on disk"):
        agent.shutdown()
    stats = agent.stats()
    assert (stats["episodes_lost"], stats["steps_written"], stats["steps_recorded"]) == (4, 20, 42)
    assert "000001" in stats["recording_error"]
    (segments / "000001.arrow").rmdir()
    check(list(relevo.open_run(tmp_path / "run").episodes()))


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_run_folder_that_is_removed_is_told(policy: Path, tmp_path: Path) -> None:
    agent = relevo.AgentBuilder().default_model(policy).actor_count(2).record(tmp_path / "run").build()
    agent.start()
    play(agent, 10)
    agent.flush()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(relevo.TrajectoryError, match="removed"):
        agent.flush()
    with pytest.raises(relevo.TrajectoryError, match="removed"):
        agent.shutdown()


@pytest.mark.parametrize("seconds", [0.2, 0.7])
def test_a_killed_run_keeps_every_flushed_episode(policy: Path, tmp_path: Path, seconds: float) -> None:
    script = """
        import sys
        import numpy as np, relevo
        sys.path.insert(0, sys.argv[3])
        from test_recording import play
        agent = relevo.AgentBuilder().default_model(sys.argv[1]).actor_count(16).record(sys.argv[2]).build()
        agent.start()
        actors = agent.actors()
        for step in range(10**9):
            obs = np.stack([np.arange(16), np.full(16, step)], axis=1).astype(np.float32)
            actors.act(obs)
            ended = step % 10 == 9
            actors.observe(np.arange(16) + step, terminated=ended, final_obs=obs + 0.5 if ended else None)
            if step % 1000 == 999:
                agent.flush()
                print(step, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), policy, tmp_path / "run", Path(__file__).parent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        flushed = int(child.stdout.readline())
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                flushed = int(line)
    episodes = list(relevo.open_run(tmp_path / "run").episodes())
    check(episodes)
    assert all(episode.complete for episode in episodes)
    numbers = sorted(episode.number for episode in episodes)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 16 * (flushed + 1) // 10


@pytest.mark.parametrize("kept", [True, False])
def test_a_long_episode_is_written_in_parts_and_whole_again(tmp_path: Path, kept: bool) -> None:
    width, steps = 5_000, 900
    model = models.linear(tmp_path / "policy.onnx", np.zeros((width, 2)))
    builder = relevo.AgentBuilder().default_model(model, head="argmax").actor_count(1).record(tmp_path / "run")
    # 18 MB: four parts and a rest. What may not be kept in memory is let go once it is written.
    with builder.keep_in_memory(10, bytes=(64 if kept else 1) << 20).build() as agent:
        actors = agent.actors()
        for step in range(steps):
            actors.act(np.full((1, width), step, np.float32))
            actors.observe(float(step), terminated=step == steps - 1, final_obs=np.full((1, width), -1.0, np.float32))
        agent.flush()
        in_memory = agent.trajectories()
        assert agent.stats()["steps_written"] == steps
    on_disk = relevo.open_run(tmp_path / "run").episode(0)
    assert len(in_memory) == kept
    for episode in [on_disk, *in_memory]:
        assert len(episode) == steps
        assert episode.terminated
        np.testing.assert_array_equal(episode.observations[:, 7], [*range(steps), -1])
        np.testing.assert_array_equal(episode.rewards, np.arange(steps))
