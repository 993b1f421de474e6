"""Recording as CSV files: what was played comes back, whole episodes alone have names, and failures are told."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import episodes
import models
import numpy as np
import pytest

import relevo
from relevo.trajectories import EpisodeData, from_csv

SIGKILL = getattr(signal, "SIGKILL", None)


def builder(folder: Path, width: int = 2) -> relevo.AgentBuilder:
    model = models.linear(folder / "policy.onnx", np.eye(width, 2))
    return relevo.AgentBuilder().default_model(model).actor_count(2).seed(1)


def assert_recorded(agent: relevo.Agent, run: Path) -> None:
    expected = {episode.number: EpisodeData.of(episode) for episode in agent.trajectories()}
    for episode in from_csv(run):
        episodes.assert_same(expected.pop(episode.number or 0), episode)
    assert not expected


def test_what_was_played_comes_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with builder(tmp_path).extra("note", "utf8").record(run, format="csv").build() as agent:
        actors = agent.actors()
        for step in range(22):
            actors.act(np.full((2, 2), step, np.float32), extra={"note": [f"{step}, ü", '"']})
            ends = step % 4 == 3
            final = np.full((2, 2), 0.1, np.float32) if ends else None
            actors.observe(np.array([0.1, np.nan]), terminated=ends, final_obs=final)
        agent.flush()
        stats = agent.stats()
        assert (stats["episodes_recorded"], stats["steps_written"], stats["episodes_lost"]) == (10, 40, 0)
        assert stats["bytes_written"] == sum(path.stat().st_size for path in run.glob("*.csv"))
        agent.shutdown()
        assert_recorded(agent, run)
    assert [path.name for path in sorted(run.glob("episode_*"))] == [f"episode_{n:06d}.csv" for n in range(12)]
    info = json.loads((run / "run.json").read_text())
    assert (info["seed"], info["config"]["record"]["format"]) == (1, "csv")


def test_long_episodes_are_written_in_parts(tmp_path: Path) -> None:
    with builder(tmp_path, width=100_000).record(tmp_path / "run", format="csv").build() as agent:
        actors = agent.actors()
        for step in range(40):
            actors.act(np.full((2, 100_000), step, np.float32))
            actors.observe(None if step == 15 else float(step))
        time.sleep(0)
        agent.flush()
        assert len(list((tmp_path / "run").glob("*.part"))) == 2
        assert list((tmp_path / "run").glob("*.csv")) == []
        agent.shutdown()
        assert_recorded(agent, tmp_path / "run")
    assert len(list((tmp_path / "run").glob("*.csv"))) == 2


@pytest.mark.skipif(SIGKILL is None, reason="this system has no SIGKILL")
def test_a_killed_process_leaves_whole_episodes(tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", np.eye(2))
    program = f"""
        import numpy as np, relevo
        builder = relevo.AgentBuilder().default_model({str(policy)!r}).actor_count(2)
        with builder.record({str(tmp_path / "run")!r}, format="csv").build() as agent:
            for step in range(10**9):
                agent.actors().act(np.full((2, 2), step % 5, np.float32))
                agent.actors().observe(float(step % 5), terminated=step % 5 == 4)
                if step % 100 == 99:
                    agent.flush()
                    print(step, flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        flushed = [int(child.stdout.readline()) for _ in range(5)][-1] + 1
        child.kill()
    read = list(from_csv(tmp_path / "run"))
    assert len(read) >= flushed // 5 * 2
    for episode in read:
        assert np.asarray(episode.observations)[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert episode.rewards.tolist() == [0, 1, 2, 3, 4]


def test_a_folder_that_goes_is_told_once(tmp_path: Path) -> None:
    def play(steps: int) -> None:
        for _ in range(steps):
            actors.act(np.zeros((2, 2), np.float32))
            actors.observe(1.0, terminated=True)

    agent = builder(tmp_path).record(tmp_path / "run", format="csv").build()
    agent.start()
    actors = agent.actors()
    play(3)
    agent.flush()
    shutil.rmtree(tmp_path / "run")
    play(3)
    with pytest.raises(relevo.TrajectoryError, match="cannot write the episode"):
        agent.flush()
    with pytest.raises(relevo.TrajectoryError, match="cannot write the episode"):
        play(1)
    play(3)
    with pytest.raises(relevo.TrajectoryError):
        agent.shutdown()
    assert agent.stats()["episodes_lost"] > 0


def test_a_run_that_is_there_is_refused(tmp_path: Path) -> None:
    with builder(tmp_path).record(tmp_path / "run", format="csv").build():
        pass
    with pytest.raises(relevo.TrajectoryError, match="holds a run already"):
        builder(tmp_path).record(tmp_path / "run", format="csv").build().start()


def test_a_reader_of_arrow_says_what_reads_it(tmp_path: Path) -> None:
    with builder(tmp_path).record(tmp_path / "run", format="csv").build():
        pass
    with pytest.raises(relevo.TrajectoryError, match="from_csv"):
        relevo.open_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"format": "xlsx"}, "format must be one of"),
        ({"format": "csv", "compression": "lz4"}, "CSV files are not compressed"),
        ({"format": "csv", "resume": True}, "a run of CSV files cannot be gone on with"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(relevo.ConfigError, match=expected):
        builder(tmp_path).record(tmp_path / "run", **settings).build()


def test_types_that_relayrl_has_not_are_refused_at_once(tmp_path: Path) -> None:
    made = builder(tmp_path).extra("word", "uint16").record(tmp_path / "run", format="csv")
    with pytest.raises(relevo.ConfigError, match="has no tensors of uint16"):
        made.build()
