"""`ProcessVectorEnv` beside `SyncVectorEnv`; and what becomes of workers that fail, or whose parent is gone."""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import models
import numpy as np
import pytest
import worlds
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

import relevo
from relevo.envs import ProcessVectorEnv, make_vector
from relevo.envs.shared_arrays import Layout, SharedArrays, allocate, copy_into, copy_of, row_of, row_writer
from relevo.envs.worker_process import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
MAKERS = {"CartPole": functools.partial(gym.make, "CartPole-v1"), "Varied": worlds.Varied, "Image": worlds.Image}
ENVS = 5
WORKERS = 2
"""Workers 0 and 1 have 2 and 3 of 5 environments."""
CALM = np.zeros(ENVS, np.int64)
TESTS = Path(__file__).parent
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 : looked into, never written to


def action(row: int, fault: str) -> np.ndarray[Any, Any]:
    """No fault but one, in one environment."""
    actions = CALM.copy()
    actions[row] = worlds.FAULTS.index(fault)
    return actions


def assert_same(came: Any, expected: Any, at: str = "") -> None:
    """The same values, types and shapes, as deep as they go."""
    assert type(came) is type(expected), at
    if isinstance(expected, dict):
        assert came.keys() == expected.keys(), at
        for name, value in expected.items():
            assert_same(came[name], value, f"{at}[{name!r}]")
    elif isinstance(expected, tuple) or (isinstance(expected, np.ndarray) and expected.dtype == np.object_):
        assert len(came) == len(expected), at
        for index, value in enumerate(expected):
            assert_same(came[index], value, f"{at}[{index}]")
    elif isinstance(expected, np.ndarray):
        assert came.dtype == expected.dtype, at
        np.testing.assert_array_equal(came, expected, at)
    else:
        assert came == expected, at


# --- beside Gymnasium's own ---


@MODES
@pytest.mark.parametrize("world", MAKERS)
def test_results_are_those_of_sync_vector_env(world: str, mode: AutoresetMode) -> None:
    make = MAKERS[world]
    sync = SyncVectorEnv([make] * ENVS, autoreset_mode=mode)
    envs = ProcessVectorEnv(make, ENVS, WORKERS, autoreset_mode=mode)
    with_finals = ended_in_all = 0
    try:
        assert isinstance(envs, gym.vector.VectorEnv)
        for name in ("num_envs", "single_observation_space", "single_action_space", "observation_space"):
            assert getattr(envs, name) == getattr(sync, name)
        assert envs.action_space == sync.action_space
        assert envs.metadata == sync.metadata
        for seed in (3, [50, 6, 70, 8, 9]):
            options = {"extra": 1.5} if world == "Varied" else None
            came, expected = (each.reset(seed=seed, options=options) for each in (envs, sync))
            assert_same(came, expected)
            sync.action_space.seed(11)
            for step in range(40):
                actions = sync.action_space.sample()
                came, expected = envs.step(actions), sync.step(actions)
                assert_same(came, expected, f"step {step}")
                with_finals += "final_obs" in expected[4]
                ended = expected[2] | expected[3]
                ended_in_all += int(ended.sum())
                if mode is DISABLED and ended.any():
                    came = envs.reset(options={"reset_mask": ended, "extra": 2})
                    assert_same(came, sync.reset(options={"reset_mask": ended, "extra": 2}), f"reset {step}")
        assert ended_in_all > 5
        assert (with_finals > 0) == (mode is SAME_STEP)
        assert (envs.restarts, envs.episodes_cut) == (0, 0)
    finally:
        envs.close()
        sync.close()


def test_wrappers_of_gymnasium_take_it() -> None:
    make = MAKERS["CartPole"]
    envs = ProcessVectorEnv(make, ENVS, WORKERS)
    sync = SyncVectorEnv([make] * ENVS, autoreset_mode=SAME_STEP)
    wrapped = [gym.wrappers.vector.RecordEpisodeStatistics(each) for each in (envs, sync)]
    ended = 0
    for each in wrapped:
        each.reset(seed=1)
    sync.action_space.seed(2)
    for _ in range(60):
        actions = sync.action_space.sample()
        came, expected = (each.step(actions) for each in wrapped)
        for infos in (came[4], expected[4]):
            # Seconds that passed.
            infos.get("episode", {}).pop("t", None)
        assert_same(came, expected)
        ended += "episode" in expected[4]
    assert ended > 3
    for each in wrapped:
        each.close()


LEAF_SPACES = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 100, tuple(shape), dtype),
        st.lists(st.integers(1, 3), max_size=3),
        st.sampled_from([np.float32, np.float64, np.uint8, np.int32]),
    ),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(spaces.MultiBinary, st.integers(1, 5)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
)
SPACES = st.recursive(
    LEAF_SPACES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(
    observation_space=SPACES, action_space=SPACES, rows=st.integers(1, 4), finals=st.booleans(), seed=st.integers(0, 99)
)
def test_elements_of_any_space_come_out_of_shared_memory_as_they_went_in(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], rows: int, finals: bool, seed: int
) -> None:
    layout = Layout(observation_space, action_space, rows, finals)
    arrays = SharedArrays(layout, allocate(layout, CONTEXT))
    observation_space.seed(seed)
    observations = [observation_space.sample() for _ in range(rows)]
    actions = batch_space(action_space, rows)
    actions.seed(seed)
    chosen = actions.sample()
    write = row_writer(arrays.observations)
    for row, observation in enumerate(observations):
        write(row, observation)
    arrays.rewards[:], arrays.terminated[:], arrays.truncated[:] = 7.0, True, True
    if arrays.final_observations is not None:
        write_final = row_writer(arrays.final_observations)
        for row, observation in enumerate(reversed(observations)):
            write_final(row, observation)
    copy_into(arrays.actions, chosen)

    # Gymnasium's own way, after everything was written: nothing lies on something else.
    expected = concatenate(observation_space, observations, create_empty_array(observation_space, rows))
    assert_same(copy_of(arrays.observations), expected)
    assert_same(copy_of(arrays.actions), chosen)
    elements = [row_of(arrays.observations, row) for row in range(rows)]
    assert_same(concatenate(observation_space, elements, create_empty_array(observation_space, rows)), expected)
    assert (arrays.rewards == 7).all()
    assert (arrays.terminated & arrays.truncated).all()
    assert (arrays.final_observations is not None) == finals


def test_copies_stay_and_views_follow() -> None:
    results = {}
    for copy in (True, False):
        envs = ProcessVectorEnv(worlds.Faulty, ENVS, WORKERS, copy=copy)
        first, _ = envs.reset(seed=1)
        before = first.copy()
        _, rewards, *_ = envs.step(CALM)
        results[copy] = np.array_equal(first, before)
        envs.close()
        # Memory outlives the processes for whoever holds a view.
        assert np.isfinite(first).all()
        assert (rewards == 1).all()
    assert results == {True: True, False: False}


def test_attributes_methods_and_rendering() -> None:
    make = functools.partial(worlds.Image, render_mode="rgb_array")
    envs = ProcessVectorEnv(make, 3, 2)
    try:
        assert envs.render_mode == "rgb_array"
        envs.set_attr("brightness", [1, 2, 3])
        assert envs.get_attr("brightness") == (1, 2, 3)
        assert envs.call("brighter_than", other=1) == (False, True, True)
        frames = envs.render()
        assert [frame[0, 0, 0] for frame in frames] == [1, 2, 3]
        envs.set_attr("brightness", 9)
        assert envs.get_attr("brightness") == (9, 9, 9)
        envs.reset(seed=4)
        assert envs.np_random_seed == (4, 5, 6)
        with pytest.raises(relevo.ConfigError, match="each of 3"):
            envs.set_attr("brightness", [1, 2])
        # What a method raises is raised here, and nothing is the worse for it.
        with pytest.raises(ValueError, match="that dark") as raised:
            envs.call("brighter_than", -1)
        assert "in brighter_than" in raised.value.__notes__[0]
        with pytest.raises(AttributeError, match="darkness"):
            envs.get_attr("darkness")
        assert envs.restarts == 0
        envs.step(np.zeros((3, 2), np.int64))
    finally:
        envs.close()


def test_step_in_two_parts() -> None:
    envs = ProcessVectorEnv(worlds.Faulty, ENVS, WORKERS)
    try:
        envs.reset(seed=0)
        envs.step_async(CALM)
        for forbidden in (lambda: envs.step_async(CALM), lambda: envs.get_attr("mark")):
            with pytest.raises(gym.error.AlreadyPendingCallError):
                forbidden()
        obs, *_ = envs.step_wait()
        assert (obs[:, 1] == 1).all()
        with pytest.raises(gym.error.NoAsyncCallError):
            envs.step_wait()
    finally:
        envs.close()


# --- workers that fail ---


@pytest.fixture
def faulty() -> Iterator[Callable[..., ProcessVectorEnv]]:
    made: list[ProcessVectorEnv] = []

    def make(**options: Any) -> ProcessVectorEnv:
        made.append(ProcessVectorEnv(worlds.Faulty, ENVS, WORKERS, **options))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("SIGKILL", "worker 1 (environments 2 to 4) was killed by the signal SIGKILL"),
        ("SIGSEGV", "was killed by the signal SIGSEGV"),
        ("exit", "ended with exit code 3"),
        ("raise", "raised an exception while stepping environment 3; it is started again, restart 1 of 10:\nTraceback"),
        ("hang", "gave no answer within 1 s, and was killed"),
    ],
)
def test_a_worker_that_fails_is_started_again(
    fault: str, words: str, faulty: Callable[..., ProcessVectorEnv], caplog: pytest.LogCaptureFixture
) -> None:
    envs = faulty(step_timeout=1.0 if fault == "hang" else 60.0)
    sync = SyncVectorEnv([worlds.Faulty] * ENVS, autoreset_mode=SAME_STEP)
    first, _ = envs.reset(seed=10)
    sync.reset(seed=10)
    assert_same(envs.step(CALM), sync.step(CALM))
    with caplog.at_level(logging.WARNING, "relevo.envs"):
        obs, rewards, terminated, truncated, infos = envs.step(action(3, fault))
    expected, *_ = sync.step(CALM)

    cut = np.array([False, False, True, True, True])
    np.testing.assert_array_equal(obs[~cut], expected[~cut])
    # The first observations of new episodes, with other random numbers.
    assert (obs[cut, 1] == 0).all()
    assert not np.isin(obs[cut, 0], first[:, 0]).any()
    np.testing.assert_array_equal(rewards, ~cut)
    np.testing.assert_array_equal(truncated, cut)
    assert not terminated.any()
    np.testing.assert_array_equal(infos["worker_restarted"], cut)
    np.testing.assert_array_equal(infos["_worker_restarted"], cut)
    assert infos["final_obs"].tolist() == [None] * ENVS
    assert not infos["_final_obs"].any()
    assert (envs.restarts, envs.episodes_cut) == (1, 3)
    assert words in caplog.text
    assert ("the world is flat" in caplog.text) == (fault == "raise")

    # And on it goes.
    begun = obs[:, 1].copy()
    obs, rewards, terminated, truncated, infos = envs.step(CALM)
    np.testing.assert_array_equal(obs[:, 1], begun + 1)
    assert "worker_restarted" not in infos
    assert not truncated.any()


def test_next_step_resets_after_a_cut_and_does_not_cut_a_reset(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty(autoreset_mode=NEXT_STEP)
    envs.reset(seed=0)
    *_, truncated, infos = envs.step(action(0, "SIGKILL"))
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [True, True, False, False, False]
    obs, rewards, _, truncated, _ = envs.step(CALM)
    assert obs[:, 1].tolist() == [0, 0, 2, 2, 2]
    assert rewards.tolist() == [0, 0, 1, 1, 1]
    for _ in range(3):
        obs, _, terminated, _, _ = envs.step(CALM)
    assert terminated.tolist() == [False, False, True, True, True]
    # The step that was to reset them has done so: there was no episode to cut.
    *_, truncated, _ = envs.step(action(0, "SIGKILL"))
    assert truncated.tolist() == [True, True, False, False, False]
    for _ in range(5):
        obs, _, terminated, _, _ = envs.step(CALM)
    assert terminated.tolist() == [False, False, True, True, True]
    obs, *_ = envs.step(CALM)
    assert obs[2:, 1].tolist() == [0, 0, 0]
    assert envs.episodes_cut == 4


def test_next_step_a_worker_killed_while_its_environments_wait_for_their_reset(
    faulty: Callable[..., ProcessVectorEnv],
) -> None:
    envs = faulty(autoreset_mode=NEXT_STEP)
    envs.reset(seed=0)
    for _ in range(5):
        _, _, terminated, _, _ = envs.step(CALM)
    assert terminated.all()
    os.kill(envs._workers[1]._process.pid or 0, signal.SIGKILL)
    obs, rewards, terminated, truncated, infos = envs.step(CALM)
    assert (obs[:, 1] == 0).all()
    assert [rewards.any(), terminated.any(), truncated.any()] == [False] * 3
    assert infos["worker_restarted"].tolist() == [False, False, True, True, True]
    assert (envs.restarts, envs.episodes_cut) == (1, 0)
    obs, rewards, *_ = envs.step(CALM)
    assert (obs[:, 1] == 1).all()
    assert (rewards == 1).all()


def test_disabled_needs_a_reset_after_a_cut(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty(autoreset_mode=DISABLED)
    envs.reset(seed=0)
    _, _, _, truncated, infos = envs.step(action(2, "SIGKILL"))
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True, True]
    with pytest.raises(gym.error.ResetNeeded, match=r"\[2, 3, 4\]"):
        envs.step(CALM)
    envs.reset(options={"reset_mask": truncated})
    # Dead before the reset of one of its environments: the episodes of the others are cut, and the next step says so.
    os.kill(envs._workers[1]._process.pid or 0, signal.SIGKILL)
    only_one = np.array([False, False, True, False, False])
    obs, infos = envs.reset(options={"reset_mask": only_one})
    assert obs[:, 1].tolist() == [1, 1, 0, 0, 0]
    assert infos["worker_restarted"].tolist() == [False, False, True, True, True]
    _, rewards, _, truncated, infos = envs.step(CALM)
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True, True]
    assert rewards.tolist() == [1, 1, 0, 0, 0]
    envs.reset(options={"reset_mask": truncated})
    # The same where both die of a call.
    with pytest.raises(relevo.EnvironmentWorkerError, match=r"SIGKILL.*`be`"):
        envs.call("be", "SIGKILL")
    _, rewards, _, truncated, infos = envs.step(CALM)
    assert truncated.all()
    assert infos["worker_restarted"].all()
    assert not rewards.any()
    assert (envs.restarts, envs.episodes_cut) == (4, 3 + 3 + ENVS)


def test_a_worker_that_fails_in_a_reset(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty(max_restarts=4)
    # Each reset raises: the options are given again.
    with pytest.raises(
        relevo.EnvironmentWorkerError, match="raised an exception while resetting environment"
    ) as raised:
        envs.reset(seed=0, options={"fault": "raise"})
    assert "max_restarts=4" in str(raised.value)
    assert "ZeroDivisionError: the world is flat" in str(raised.value)
    assert envs.restarts == 4
    assert envs.closed


@pytest.mark.parametrize("fault", ["SIGKILL", "raise", "hang"])
def test_the_budget_of_restarts(fault: str, faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty(max_restarts=1, step_timeout=1.0)
    envs.reset(seed=0)
    envs.step(action(0, "raise"))
    with pytest.raises(relevo.EnvironmentWorkerError) as raised:
        envs.step(action(4, fault))
    text = str(raised.value)
    assert text.startswith("worker 1 (environments 2 to 4) ")
    assert {"SIGKILL": "SIGKILL", "raise": "environment 4", "hang": "within 1 s"}[fault] in text
    assert "max_restarts=1" in text
    # The last traceback that there was.
    assert "ZeroDivisionError: the world is flat" in text
    with pytest.raises(gym.error.ClosedEnvironmentError):
        envs.step(CALM)


def test_a_worker_killed_between_steps_and_a_call_that_kills(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty()
    with pytest.raises(relevo.EnvironmentWorkerError, match=r"exit code 3.*`be`"):
        envs.call("be", "exit")
    # Nothing had begun that could be cut.
    envs.reset(seed=0)
    _, _, _, truncated, infos = envs.step(CALM)
    assert not truncated.any()
    assert "worker_restarted" not in infos
    os.kill(envs._workers[0]._process.pid or 0, signal.SIGKILL)
    _, _, _, truncated, _ = envs.step(CALM)
    assert truncated.tolist() == [True, True, False, False, False]
    assert (envs.restarts, envs.episodes_cut) == (3, 2)


def test_an_interrupted_step_needs_a_reset(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty()
    envs.reset(seed=0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            envs.step(action(1, "slow"))
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(gym.error.ResetNeeded, match="interrupted"):
        envs.step(CALM)
    sync = SyncVectorEnv([worlds.Faulty] * ENVS, autoreset_mode=SAME_STEP)
    assert_same(envs.reset(seed=5), sync.reset(seed=5))
    assert_same(envs.step(CALM), sync.step(CALM))
    # No answer is taken for that of another question.
    assert envs.get_attr("mark") == (0,) * ENVS
    assert envs.restarts == 0


# --- with an agent ---


@MODES
def test_collect_closes_cut_episodes_without_a_final_observation(mode: AutoresetMode, tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", np.zeros((2, len(worlds.FAULTS))))
    agent = (
        relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(ENVS).record(tmp_path / "run").build()
    )
    # Environment 0 dies in the third step, and takes environment 1 with it.
    envs = ProcessVectorEnv(functools.partial(worlds.Faulty, fault_at=3), ENVS, WORKERS, autoreset_mode=mode)
    with agent:
        result = relevo.collect(agent, envs, steps=100, seed=0)
    envs.close()
    stats = agent.stats()
    assert (envs.restarts, envs.episodes_cut, stats["final_observations_missing"]) == (1, 2, 2)
    cut = []
    for episode in relevo.open_run(tmp_path / "run").episodes():
        # No step of one episode is taken for one of another.
        assert len(set(episode.observations[:, 0].tolist())) == 1
        np.testing.assert_array_equal(episode.observations[:, 1], np.arange(len(episode.observations)))
        if episode.truncated:
            cut.append(episode)
        elif episode.complete:
            assert episode.terminated
            assert episode.has_final_observation
            assert episode.rewards.tolist() == [1.0] * 5
    assert [(len(episode), episode.has_final_observation, episode.rewards.tolist()) for episode in cut] == [
        (3, False, [1.0, 1.0, 0.0])
    ] * 2
    assert result.steps == stats["steps_recorded"]


def test_collect_with_named_observations_and_a_cut(tmp_path: Path) -> None:
    class Named(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
        """Observes a dict, of which the policy takes all."""

        def _named(self, obs: Any) -> dict[str, Any]:
            return {"obs": obs, "more": obs}

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            obs, info = super().reset(**options)
            return self._named(obs), info

        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            obs, *rest, info = super().step(actions)
            if "final_obs" in info:
                info["final_obs"][:] = [None if one is None else self._named(one) for one in info["final_obs"]]
            return self._named(obs), *rest, info

    weights = np.zeros((2, len(worlds.FAULTS)), np.float32)
    policy = models.save(
        tmp_path / "policy.onnx",
        [
            models.helper.make_node("Add", ["obs", "more"], ["sum"]),
            models.helper.make_node("MatMul", ["sum", "weights"], ["logits"]),
        ],
        {"obs": ["batch", 2], "more": ["batch", 2]},
        {"logits": ["batch", len(worlds.FAULTS)]},
        {"weights": weights},
    )
    for mode in (SAME_STEP, NEXT_STEP):
        agent = relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(ENVS).build()
        envs = Named(ProcessVectorEnv(functools.partial(worlds.Faulty, fault_at=5), ENVS, WORKERS, autoreset_mode=mode))
        with agent:
            # The others end in the very step in which environments 0 and 1 are cut.
            relevo.collect(agent, envs, steps=5 * ENVS, seed=0, autoreset_mode=mode)
            episodes = [episode for episode in agent.trajectories() if episode.complete]
        envs.close()
        assert agent.stats()["final_observations_missing"] == 2
        assert [len(episode.observations["more"]) for episode in episodes] == [5, 5, 6, 6, 6]
        assert [episode.truncated for episode in episodes] == [True, True, False, False, False]


# --- nothing is left behind ---


SCRIPT = """
import os, sys, time, signal
import numpy as np
import worlds
from relevo.envs import ProcessVectorEnv

def main():
    envs = ProcessVectorEnv(worlds.Faulty, 4, 2)
    envs.reset(seed=0)
    envs.step(np.zeros(4, np.int64))
    print(*[each._process.pid for each in envs._workers], flush=True)
    {then}

if __name__ == "__main__":
    main()
"""


def environment() -> dict[str, str]:
    """The variables of a program that imports `worlds`."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def run_script(folder: Path, then: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Starts a program with environments, and gives their workers' process ids."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(then=then))
    program = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a terminal starts it; a signal to the group must not reach these tests.
        process_group=0,
        env=environment(),
    )
    assert program.stdout is not None
    return program, [int(word) for word in program.stdout.readline().split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A container's first process may leave the dead lying about.
    return state != "Z"


def shared_memory() -> set[str]:
    """Names of the kinds that Python gives to shared memory and semaphores."""
    return {file.name for file in SHARED_MEMORY.iterdir() if file.name.startswith(("psm_", "pym-", "sem.mp"))}


def await_gone(pids: list[int], before: set[str]) -> None:
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)) or shared_memory() - before:
        assert time.monotonic() < deadline, (list(filter(is_running, pids)), shared_memory() - before)
        time.sleep(0.02)


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")


@linux_only
@pytest.mark.parametrize("way", ["close", "collected", "killed worker"])
def test_nothing_is_left_in_this_process(way: str) -> None:
    before = shared_memory()
    envs = ProcessVectorEnv(worlds.Faulty, 4, 2)
    envs.reset(seed=0)
    if way == "killed worker":
        envs.step(np.array([worlds.FAULTS.index("SIGKILL"), 0, 0, 0]))
    pids = [each._process.pid or 0 for each in envs._workers]
    assert all(map(is_running, pids))
    # Not even while it lives: what has no name cannot be left.
    assert shared_memory() <= before
    if way == "collected":
        del envs
        gc.collect()
    else:
        envs.close()
        envs.close()
    await_gone(pids, before)
    assert multiprocessing.active_children() == []


@linux_only
@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("sys.exit(4)", 4),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        # The terminal sends it to all processes.
        ("os.kill(0, signal.SIGINT) or time.sleep(60)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(5)", 5),
    ],
    ids=["exit", "KeyboardInterrupt", "Ctrl-C", "SIGKILL", "_exit"],
)
def test_nothing_is_left_of_a_program(then: str, code: int, tmp_path: Path) -> None:
    before = shared_memory()
    program, pids = run_script(tmp_path, then)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == code, errors
    assert len(pids) == 2
    assert errors.count("Traceback") <= 1, errors
    await_gone(pids, before)


@linux_only
def test_a_hanging_worker_ends_with_its_parent_even_if_a_fork_holds_the_pipe(tmp_path: Path) -> None:
    before = shared_memory()
    then = (
        "envs.step_async(np.full(4, worlds.FAULTS.index('hang'))); forked = os.fork(); forked or time.sleep(60); "
        "print(forked, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    program, pids = run_script(tmp_path, then)
    assert program.stdout is not None
    forked = int(program.stdout.readline())
    try:
        assert program.wait(60) == -signal.SIGKILL
        await_gone(pids, before)
        assert is_running(forked)
    finally:
        for pid in filter(is_running, [forked, *pids]):
            os.kill(pid, signal.SIGKILL)
        program.communicate(timeout=60)


@linux_only
def test_a_fork_cannot_use_the_environments_and_does_not_end_them(tmp_path: Path) -> None:
    then = """
    if os.fork() == 0:
        try:
            envs.step(np.zeros(4, np.int64))
        except relevo.EnvironmentWorkerError as error:
            print("refused:", error, flush=True)
        envs.close()
        os._exit(0)
    os.wait()
    print("steps on:", envs.step(np.zeros(4, np.int64))[1].tolist(), envs.restarts)
    """
    program, pids = run_script(tmp_path, "import relevo" + then)
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert "refused: the environments belong to the process" in output
    assert "steps on: [1.0, 1.0, 1.0, 1.0] 0" in output
    await_gone(pids, set())


# --- bad input ---


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (worlds.Faulty, {"num_envs": 0}, relevo.ConfigError, "num_envs must be at least 1, but is 0"),
        (worlds.Faulty, {"workers": 0}, relevo.ConfigError, "workers must be at least 1, but is 0"),
        (worlds.Faulty, {"max_restarts": -1}, relevo.ConfigError, "max_restarts must be at least 0"),
        (worlds.Faulty, {"step_timeout": 0}, relevo.ConfigError, "step_timeout must be more than 0"),
        (worlds.Faulty, {"step_timeout": float("nan")}, relevo.ConfigError, "or None for no limit, but is nan"),
        (worlds.Faulty, {"autoreset_mode": "often"}, relevo.UnsuitableEnvironmentError, "but 'often' came"),
        ([worlds.Faulty] * 2, {}, relevo.ConfigError, "a function for each of 3, but has 2"),
        ("cartpole-v1", {}, relevo.UnsuitableEnvironmentError, "did you mean CartPole-v1"),
        (worlds.Words, {}, relevo.UnsuitableEnvironmentError, "Text.* have no fixed size"),
        (
            functools.partial(worlds.Faulty, fault=threading.Lock()),
            {},
            relevo.UnsuitableEnvironmentError,
            "cannot travel to another process",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_made(make: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ProcessVectorEnv(make, **{"num_envs": 3, "workers": 2, **options})
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        (
            "raise",
            relevo.UnsuitableEnvironmentError,
            "making environment 0:(?s:.)*ZeroDivisionError: the world is flat",
        ),
        ("exit", relevo.EnvironmentWorkerError, r"worker 0 \(environment 0\) ended with exit code 3 before .*__main__"),
        ("spaces", relevo.UnsuitableEnvironmentError, "all environments must have the same spaces"),
    ],
)
def test_what_cannot_be_made_in_a_worker(what: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ProcessVectorEnv(functools.partial(worlds.other_in_a_worker, what), 2, 2)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("side", [4, 400], ids=["small spaces", "spaces larger than a pipe"])
def test_a_program_that_does_not_guard_its_main_part(side: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import numpy as np, worlds
from gymnasium import spaces
from relevo.envs import ProcessVectorEnv

class Large(worlds.Image):
    observation_space = spaces.Box(np.zeros(({side}, {side})), np.ones(({side}, {side})))

ProcessVectorEnv(Large, 2, 1)
""")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False, env=environment()
    )
    assert done.returncode == 1
    assert "EnvironmentWorkerError: worker 0" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]


def test_bad_calls(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty()
    with pytest.raises(gym.error.ResetNeeded):
        envs.step(CALM)
    mask = np.ones(ENVS, np.bool_)
    mask[0] = False
    with pytest.raises(gym.error.ResetNeeded):
        envs.reset(options={"reset_mask": mask})
    for seed in ([1, 2], range(6)):
        with pytest.raises(relevo.ConfigError, match="one for each of 5"):
            envs.reset(seed=seed)
    envs.reset(seed=0)
    for bad in ([True] * ENVS, np.ones(ENVS, np.int64), np.ones(4, np.bool_), np.zeros(ENVS, np.bool_)):
        with pytest.raises(relevo.ConfigError, match="reset_mask must"):
            envs.reset(options={"reset_mask": bad})
    for actions in (np.zeros(4, np.int64), np.zeros((ENVS, 1), np.int64), np.zeros(ENVS, np.float32), None, "left"):
        with pytest.raises(relevo.UnsuitableEnvironmentError, match=r"actions must be int64 of shape \(5,\)"):
            envs.step(actions)
    for bad_call in (lambda: envs.call("be", lambda: "hang"), lambda: envs.reset(options={"new": lambda: "level"})):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            bad_call()
    # None of it has left a trace.
    options = {"reset_mask": mask}
    envs.reset(options=options)
    assert options["reset_mask"] is mask
    obs, *_ = envs.step(CALM.astype(np.int32))
    assert obs[:, 1].tolist() == [1] * ENVS
    assert envs.restarts == 0


def test_observations_that_are_not_of_the_space(caplog: pytest.LogCaptureFixture) -> None:
    envs = ProcessVectorEnv(worlds.Wide, 2, 1, max_restarts=0)
    with pytest.raises(
        relevo.EnvironmentWorkerError, match=r"float32 of shape \(3,\), but float32 of shape \(2,\) came"
    ):
        envs.reset()
    assert not caplog.records


def test_importing_relevo_needs_no_gymnasium() -> None:
    code = "import sys, relevo; assert 'gymnasium' not in sys.modules; relevo.envs.ProcessVectorEnv; print('made')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("made\n", "")
    hidden = "import sys; sys.modules['gymnasium'] = None; import relevo; relevo.envs.ProcessVectorEnv"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)
    assert "UnsuitableEnvironmentError: making environments needs Gymnasium" in done.stderr


def test_make_vector_with_workers() -> None:
    envs = make_vector(worlds.Faulty, 3, 2, fault_at=4)
    try:
        assert isinstance(envs, ProcessVectorEnv)
        assert envs.workers == 2
        assert envs.metadata["autoreset_mode"] is SAME_STEP
        assert envs.get_attr("_fault_at") == (4, 4, 4)
        with pytest.raises(relevo.UnsuitableEnvironmentError, match="made already"):
            make_vector(envs, 3, 2)
    finally:
        envs.close()
    with pytest.raises(relevo.UnsuitableEnvironmentError, match="did you mean CartPole-v1"):
        make_vector("cartpole-v1", 2, 1)
