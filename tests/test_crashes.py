"""A process that is killed and a disk that is full lose nothing that was flushed, and make no row wrong."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import models
import numpy as np
import pytest

import relevo
from relevo.trajectories import repair

ROUNDS = int(os.environ.get("RELEVO_KILL_ROUNDS", "12"))
"""Kills in the test; 200 take about three minutes."""

ACTORS, WIDTH = 24, 64

RECORD = f"""
    import sys, time
    import numpy as np, relevo
    model, folder, compression, start = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    builder = relevo.AgentBuilder().default_model(model, head="argmax").actor_count({ACTORS}).keep_in_memory(0)
    # Segments of a few batches, so that kills meet the turn from one to the next.
    builder.record(folder, compression=compression, segment_bytes=300_000, resume=True)
    agent = builder.build()
    agent.start()
    actors = agent.actors()
    lengths = np.arange({ACTORS}) % 7 * 3 + 1
    for step in range(start, 10**9):
        obs = np.zeros(({ACTORS}, {WIDTH}), np.float32)
        obs[:, 0], obs[:, 1], obs[:, 2] = np.arange({ACTORS}), step, start
        actors.act(obs)
        ended = (step - start) % lengths == lengths - 1
        actors.observe(obs[:, 0] + step, terminated=ended, final_obs=obs + 0.5)
        # A pace at which a test can follow.
        time.sleep(0.0003)
        if step % 50 == 49:
            agent.flush()
            print(step, flush=True)
"""


def played(folder: Path, flushed: dict[int, int]) -> None:
    """Compares what a run holds with what was played.

    Args:
        folder: the run.
        flushed: the last flushed step of each process, by its first.
    """
    found: dict[int, np.ndarray] = {}
    numbers = []
    for episode in relevo.open_run(folder).episodes():
        numbers.append(episode.number)
        actor, first, start = episode.observations[0, :3].astype(int)
        length = len(episode)
        np.testing.assert_array_equal(episode.observations[:length, 0], np.full(length, actor))
        np.testing.assert_array_equal(episode.observations[:length, 1], np.arange(first, first + length))
        np.testing.assert_array_equal(episode.rewards, actor + np.arange(first, first + length))
        assert not episode.observations[:length, 3:].any()
        if episode.complete:
            assert episode.terminated
            assert length == actor % 7 * 3 + 1
            np.testing.assert_array_equal(episode.observations[-1, :2], [actor + 0.5, first + length - 0.5])
        known = found.setdefault(start, np.full((ACTORS, 10_000), -1))
        steps = slice(first - start, first - start + length)
        assert (known[actor, steps] == -1).all(), "a step came twice"
        known[actor, steps] = episode.number
    assert len(set(numbers)) == len(numbers), "two episodes have one number"
    for start, last in flushed.items():
        for actor in range(ACTORS):
            length = actor % 7 * 3 + 1
            whole = (last - start + 1) // length * length
            assert (found[start][actor, :whole] >= 0).all(), f"of actor {actor}, flushed steps are missing"


def test_a_killed_process_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    model = models.linear(tmp_path / "policy.onnx", np.eye(WIDTH))
    moments = random.Random(7)  # noqa: S311 : moments, not secrets
    folder, flushed, start = tmp_path / "run", dict[int, int](), 0
    for kill in range(ROUNDS):
        if kill % 10 == 0:
            shutil.rmtree(folder, ignore_errors=True)
            flushed, start = {}, 0
        compression = ("none", "lz4", "zstd")[kill % 3]
        command = [sys.executable, "-c", textwrap.dedent(RECORD), model, folder, compression, str(start)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            last = int(line)
            time.sleep(moments.uniform(0.0, 0.15))
            child.send_signal(signal.SIGKILL)
            for line in child.stdout:
                if line.endswith("\n"):
                    last = int(line)
        flushed[start] = last
        if kill % 2:
            report = repair(folder)
            assert not report["lost"], report["lost"]
        played(folder, flushed)
        # No step number of the next process is one of this one.
        start = (last // 10_000 + 1) * 10_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount a small file system, on Linux")
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)  # noqa: S607 : the system's own


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_full_disk_stops_recording_and_keeps_what_is_written(
    tmp_path: Path, small_disk: Path, on_failure: str
) -> None:
    model = models.linear(tmp_path / "policy.onnx", np.eye(WIDTH))
    builder = relevo.AgentBuilder().default_model(model, head="argmax").actor_count(ACTORS)
    agent = builder.record(small_disk / "run", segment_bytes=1 << 20, on_failure=on_failure).build()
    agent.start()
    actors, flushed, told = agent.actors(), -1, 0
    obs = np.zeros((ACTORS, WIDTH), np.float32)
    lengths, reasons = np.arange(ACTORS) % 7 * 3 + 1, set[bool]()
    for step in range(3_000):
        obs[:, 0], obs[:, 1] = np.arange(ACTORS), step
        try:
            actors.act(obs)
            actors.observe(obs[:, 0] + step, terminated=step % lengths == lengths - 1, final_obs=obs + 0.5)
            if not told and step % 50 == 49:
                agent.flush()
                flushed = step
        except relevo.TrajectoryError as error:
            told += 1
            reasons.add("space" in str(error) or "earlier failure" in str(error))
    assert reasons == {True}
    assert told > 100 if on_failure == "stop" else 1 <= told <= 2
    assert agent.stats()["episodes_lost"] > 0
    with pytest.raises(relevo.TrajectoryError, match="not on disk"):
        agent.shutdown()
    assert flushed > 200
    played(small_disk / "run", {0: flushed})
