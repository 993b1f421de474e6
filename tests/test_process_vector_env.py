"""`ProcessVectorEnv` beside `SyncVectorEnv`, with an agent, and with bad input."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import subprocess
import sys
import threading
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
from worlds import CALM, ENVS, WORKERS, assert_same

import relevo
from relevo.envs import ProcessVectorEnv, make_vector
from relevo.envs.shared_arrays import Layout, SharedArrays, allocate, copy_into, copy_of, row_of, row_writer
from relevo.envs.worker_process import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
MAKERS = {"CartPole": functools.partial(gym.make, "CartPole-v1"), "Varied": worlds.Varied, "Image": worlds.Image}


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


# --- bad input ---


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (worlds.Faulty, {"num_envs": 0}, relevo.ConfigError, "num_envs must be at least 1, but is 0"),
        (worlds.Faulty, {"workers": 0}, relevo.ConfigError, "workers must be at least 1, but is 0"),
        (worlds.Faulty, {"max_restarts": -1}, relevo.ConfigError, "max_restarts must be at least 0"),
        (worlds.Faulty, {"step_timeout": 0}, relevo.ConfigError, "step_timeout must be more than 0"),
        (worlds.Faulty, {"step_timeout": float("nan")}, relevo.ConfigError, "or None for no limit, but is nan"),
        (worlds.Faulty, {"step_timeout": "1"}, relevo.ConfigError, "or None for no limit, but is '1'"),
        (worlds.Faulty, {"start_timeout": None}, relevo.ConfigError, "start_timeout must be more than 0"),
        (worlds.Faulty, {"workers": 1.5}, relevo.ConfigError, "workers must be a whole number, but 1.5"),
        (worlds.Faulty, {"num_envs": 2.0}, relevo.ConfigError, "num_envs must be a whole number, but 2.0"),
        (worlds.Faulty, {"num_envs": "2"}, relevo.ConfigError, "num_envs must be a whole number, but '2'"),
        (5, {}, relevo.ConfigError, "make_env must be an id, a function .* but 5 came"),
        ([5] * 3, {}, relevo.ConfigError, "make_env must be an id, a function"),
        (lambda: None, {}, relevo.ConfigError, "must make a gymnasium.Env, but .* gave None"),
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
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False, env=worlds.environment()
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
    for bad in (
        [True] * ENVS,
        np.ones(ENVS, np.int64),
        np.ones(4, np.bool_),
        np.zeros(ENVS, np.bool_),
    ):
        with pytest.raises(relevo.ConfigError, match="reset_mask must"):
            envs.reset(options={"reset_mask": bad})
    for actions in (
        np.zeros(4, np.int64),
        np.zeros((ENVS, 1), np.int64),
        np.zeros(ENVS, np.float32),
        None,
        "left",
    ):
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
        relevo.UnsuitableEnvironmentError, match=r"float32 of shape \(3,\), but float32 of shape \(2,\) came"
    ):
        envs.reset()
    assert not caplog.records
    # As Gymnasium's wrappers and vectors call it.
    envs.close(timeout=1, terminate=True)
    assert envs.closed
    assert multiprocessing.active_children() == []


def test_importing_relevo_needs_no_gymnasium() -> None:
    code = "import sys, relevo; assert 'gymnasium' not in sys.modules; relevo.envs.ProcessVectorEnv; print('made')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("made\n", "")
    hidden = "import sys; sys.modules['gymnasium'] = None; import relevo; relevo.envs.ProcessVectorEnv"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)
    assert "UnsuitableEnvironmentError: making environments needs Gymnasium" in done.stderr


def test_a_worker_that_takes_too_long_to_start() -> None:
    for make in (
        lambda: ProcessVectorEnv(worlds.Faulty, 2, 1, start_timeout=0.001),
        lambda: make_vector(worlds.Faulty, 2, 1, start_timeout=0.001),
    ):
        with pytest.raises(relevo.EnvironmentWorkerError, match=r"gave no answer within 0.001 s"):
            make()
        assert multiprocessing.active_children() == []
    with pytest.raises(relevo.ConfigError, match="num_envs must be a whole number"):
        make_vector(worlds.Faulty, "2")  # type: ignore[arg-type]


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
