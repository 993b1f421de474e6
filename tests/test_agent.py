"""The agent through Python: acting, observing, the life cycle of actors, and RelayRL's quick start."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import UUID, uuid4

import models
import numpy as np
import pytest
from onnx import TensorProto, helper

import relevo


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(2))


def running(policy: Path, actors: int = 2, head: str | None = None, **settings: int) -> relevo.Agent:
    builder = relevo.AgentBuilder().default_model(policy, head=head).actor_count(actors)  # type: ignore[arg-type]
    agent = builder.seed(settings.get("seed", 7)).build()
    agent.start()
    return agent


def test_relayrl_quick_start(tmp_path: Path) -> None:
    agent = (
        relevo.AgentBuilder()
        .actor_count(4)
        .default_model(relevo.ModelModule.load_from_path(models.linear(tmp_path / "dummy.onnx", np.ones((4, 2)))))
        .build()
    )
    agent.start()

    reward = 1.0
    obs = np.zeros((1, 4), np.float32)
    ids = agent.get_actor_ids()
    actions = agent.request_action(ids, obs, None, reward)
    versions = agent.get_model_version(ids)
    assert len(actions) == 4
    assert versions == [1, 1, 1, 1]

    agent.new_actor("cpu", None)
    agent.new_actors(10, "cpu", None)
    ids = agent.get_actor_ids()
    assert len(ids) == 15
    new = uuid4()
    agent.set_actor_id(ids[0], new)
    agent.remove_actor(ids[1])

    ids = agent.get_actor_ids()
    assert ids[0] == new
    agent.flag_last_action(ids, 3.0)
    assert agent.scale_throughput(2) == 3
    agent.shutdown()

    episodes = agent.trajectories()
    # Three of the four that acted were still there, and the one that was removed kept its step.
    ends = sorted((episode.complete, episode.episode_return) for episode in episodes)
    assert ends == [(False, 0.0), (True, 3.0), (True, 3.0), (True, 3.0)]


def test_rewards_of_the_previous_action(policy: Path) -> None:
    with running(policy) as agent:
        ids = agent.get_actor_ids()
        for step in range(4):
            agent.request_action(ids, np.full((2, 2), step, np.float32), reward=float(step))
        agent.flag_last_action(ids, 4.0, truncated=True, final_obs=np.full((2, 2), 9, np.float32))
        for episode in agent.trajectories():
            np.testing.assert_array_equal(episode.rewards, [1.0, 2.0, 3.0, 4.0])
            assert isinstance(episode.observations, np.ndarray)
            np.testing.assert_array_equal(episode.observations[:, 0], [0, 1, 2, 3, 9])
            assert episode.truncated
            assert not episode.terminated


def test_one_actor_at_a_time_and_all_together_share_their_episodes(policy: Path) -> None:
    with running(policy, actors=3) as agent:
        ids = agent.get_actor_ids()
        for step in range(5):
            for index, actor in enumerate(ids):
                agent.request_action([actor], np.full((1, 2), 10 * index + step, np.float32), reward=0.0)
        agent.request_action(ids, np.full((3, 2), 99, np.float32), reward=np.array([1.0, 2.0, 3.0]))
        agent.flag_last_action(ids, 0.5)
        episodes = {episode.actor_id: episode for episode in agent.trajectories()}
        for index, actor in enumerate(ids):
            observations = episodes[actor].observations
            assert isinstance(observations, np.ndarray)
            np.testing.assert_array_equal(observations[:, 0], [*range(10 * index, 10 * index + 5), 99])
            np.testing.assert_array_equal(episodes[actor].rewards, [0, 0, 0, 0, index + 1, 0.5])


def test_the_batch_holds_what_the_policy_said(tmp_path: Path) -> None:
    path = models.actor_critic(tmp_path / "actor_critic.onnx")
    agent = relevo.AgentBuilder().default_model(path).actor_count(2).keep_outputs().build()
    with agent:
        obs = np.array([[0.0, 1.0], [3.0, 1.0]], np.float32)
        batch = agent.actors().act(obs, deterministic=True)
        np.testing.assert_array_equal(batch.action, [1, 0])
        np.testing.assert_array_equal(np.asarray(batch), [1, 0])
        assert np.asarray(batch, dtype=np.int32).dtype == np.int32
        assert batch[1] == 0
        assert batch.value is not None
        np.testing.assert_allclose(batch.value, [1.0, 4.0])
        assert batch.log_prob is not None
        expected = obs - np.log(np.exp(obs).sum(1, keepdims=True))
        np.testing.assert_allclose(batch.log_prob, expected[[0, 1], [1, 0]], rtol=1e-5)
        assert batch.outputs is not None
        np.testing.assert_array_equal(batch.outputs["logits"], obs)
        assert batch.policy_version.tolist() == [1, 1]


def test_arrays_of_earlier_batches_stay_as_they_were(policy: Path) -> None:
    with running(policy, actors=1, head="argmax") as agent:
        actors = agent.actors()
        kept = []
        for step in range(50):
            obs = np.array([[0.0, 1.0]] if step % 2 else [[1.0, 0.0]], np.float32)
            kept.append(actors.act(obs).action)
        assert [int(action[0]) for action in kept] == [step % 2 for step in range(50)]


def test_gaussian_head(tmp_path: Path) -> None:
    log_std = [-1.0, 0.5]
    path = models.gaussian(tmp_path / "gaussian.onnx", log_std)
    agent = relevo.AgentBuilder().default_model(path).actor_count(20_000).seed(1).keep_in_memory(0).build()
    with agent:
        actors = agent.actors()
        obs = np.tile(np.array([[2.0, -3.0]], np.float32), (20_000, 1))
        batch = actors.act(obs)
        assert batch.action.dtype == np.float32
        np.testing.assert_allclose(batch.action.mean(0), [2.0, -3.0], atol=0.06)
        np.testing.assert_allclose(batch.action.std(0), np.exp(log_std), rtol=0.03)
        z = (batch.action - obs) / np.exp(log_std)
        density = (-0.5 * z**2 - np.array(log_std) - 0.5 * np.log(2 * np.pi)).sum(1)
        assert batch.log_prob is not None
        np.testing.assert_allclose(batch.log_prob, density, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(actors.act(obs, deterministic=True).action, obs)


def test_seeded_sampling_does_not_depend_on_the_batch(policy: Path) -> None:
    def play(chunk: int, seed: int) -> list[int]:
        with running(policy, actors=12, seed=seed) as agent:
            ids = agent.get_actor_ids()
            handles = [agent.actors(ids[at : at + chunk]) for at in range(0, 12, chunk)]
            actions: list[int] = []
            for _ in range(20):
                for handle in handles:
                    actions += handle.act(np.zeros((chunk, 2), np.float32)).action.tolist()
            return actions

    assert play(12, 3) == play(4, 3) == play(1, 3)
    assert play(12, 3) != play(12, 4)


def test_named_policies_and_models_of_their_own(policy: Path, tmp_path: Path) -> None:
    swapped = models.linear(tmp_path / "swapped.onnx", np.eye(2)[::-1])
    agent = (
        relevo.AgentBuilder()
        .default_model(policy, head="argmax")
        .policy("swapped", swapped, head="argmax")
        .actor_count(3)
        .build()
    )
    obs = np.array([[0.0, 1.0]] * 4, np.float32)
    with agent:
        own = agent.new_actor(model=swapped)
        ids = agent.get_actor_ids()
        agent.assign([ids[1]], "swapped")
        assert own == ids[3]
        # A model of its own comes without a head, so its action is drawn.
        actions = agent.actors(ids[:3]).act(obs[:3]).action
        assert actions.tolist() == [1, 0, 1]
        assert set(agent.stats()["policies"]) == {"default", "swapped", "model-1"}
        with pytest.raises(relevo.ConfigError, match="default, swapped, model-1"):
            agent.assign(ids, "none such")


def test_update_model(policy: Path, tmp_path: Path) -> None:
    swapped = models.linear(tmp_path / "swapped.onnx", np.eye(2)[::-1])
    wider = models.linear(tmp_path / "wider.onnx", np.ones((2, 3)))
    obs = np.array([[0.0, 1.0]], np.float32)
    with running(policy, actors=1, head="argmax") as agent:
        actors = agent.actors()
        assert actors.act(obs).action.tolist() == [1]
        with pytest.raises(relevo.ContractError, match="3 choices"):
            agent.update_model(wider)
        with pytest.raises(relevo.ModelLoadError, match="no such file"):
            agent.update_model(tmp_path / "none.onnx")
        assert agent.get_model_version() == [1]
        assert agent.update_model(swapped) == 2
        batch = actors.act(obs)
        assert (batch.action.tolist(), batch.policy_version.tolist()) == ([0], [2])


def test_a_run_names_every_model_that_acted(policy: Path, tmp_path: Path) -> None:
    other = models.linear(tmp_path / "other.onnx", np.eye(2)[::-1])
    with relevo.AgentBuilder().policy("first", policy, head="argmax").record(tmp_path / "run").build() as agent:
        # New actors follow the first policy, whatever its name; `default` means it.
        assert agent.update_model(other) == 2
        agent.new_actor(model=policy)
    hashes = {path: relevo.ModelModule.load_from_path(path).sha256 for path in (policy, other)}
    named = relevo.open_run(tmp_path / "run").info["models"]
    assert [(model["policy"], model["version"], model["head"], model["sha256"]) for model in named] == [
        ("first", 1, "argmax", hashes[policy]),
        ("first", 2, "argmax", hashes[other]),
        ("model-1", 1, "categorical", hashes[policy]),
    ]


def test_several_threads_with_actors_of_their_own(policy: Path) -> None:
    with running(policy, actors=32) as agent:
        ids = agent.get_actor_ids()
        failures: list[BaseException] = []

        def play(own: list[UUID]) -> None:
            try:
                actors = agent.actors(own)
                for step in range(300):
                    actors.act(np.full((len(own), 2), step, np.float32))
                    actors.observe(1.0, terminated=step % 50 == 49)
            except BaseException as failure:  # noqa: BLE001  (told to the main thread)
                failures.append(failure)

        threads = [threading.Thread(target=play, args=(ids[at : at + 8],)) for at in range(0, 32, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        episodes = agent.trajectories()
        assert len(episodes) == 32 * 6
        assert all(len(episode) == 50 and episode.episode_return == 50 for episode in episodes)


def test_threads_that_share_a_handle_wait_for_each_other(policy: Path) -> None:
    with running(policy, actors=4) as agent:
        actors = agent.actors()
        failures: list[BaseException] = []

        def play() -> None:
            try:
                for _ in range(300):
                    actors.act(np.zeros((4, 2), np.float32))
            except BaseException as failure:  # noqa: BLE001  (told to the main thread)
                failures.append(failure)

        threads = [threading.Thread(target=play) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not failures
        assert agent.stats()["policies"]["default"]["rows"] == 4 * 4 * 300


def test_memory_keeps_the_last_trajectories_under_a_cap(policy: Path) -> None:
    def play(builder: relevo.AgentBuilder) -> list[int]:
        with builder.default_model(policy).build() as agent:
            actors = agent.actors()
            for _ in range(20):
                actors.act(np.zeros((1, 2), np.float32))
                actors.observe(0.0, terminated=True)
            return [episode.number for episode in agent.trajectories()]

    assert play(relevo.AgentBuilder()) == list(range(20))
    assert play(relevo.AgentBuilder().keep_in_memory(3)) == [17, 18, 19]
    assert play(relevo.AgentBuilder().keep_in_memory(10, bytes=1)) == [19]
    assert play(relevo.AgentBuilder().keep_in_memory(0)) == []


def test_observations_in_other_layouts_are_read_right(policy: Path) -> None:
    with running(policy, actors=3, head="argmax") as agent:
        actors = agent.actors()
        obs = np.array([[0, 1], [1, 0], [0, 1]], np.float32)
        big = obs.astype(">f4")
        unaligned = np.frombuffer(b"x" + obs.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 2)
        for form in (obs, np.asfortranarray(obs), np.repeat(obs, 2, axis=0)[::2], big, unaligned, {"obs": obs}, (obs,)):
            assert actors.act(form).action.tolist() == [1, 0, 1]


def test_a_batch_that_is_run_in_parts_is_the_same(policy: Path) -> None:
    count = 20_000
    agent = relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(count).keep_in_memory(0).build()
    obs = np.random.default_rng(3).standard_normal((count, 2)).astype(np.float32)
    with agent:
        np.testing.assert_array_equal(agent.actors().act(obs).action, obs.argmax(1))
    logits = relevo.ModelModule.load_from_path(policy).forward({"obs": obs})["logits"]
    np.testing.assert_array_equal(logits, obs)


def test_an_agent_that_is_dropped_while_a_thread_acts_does_not_hang(policy: Path) -> None:
    def play(actors: relevo.Actors) -> None:
        try:
            while True:
                actors.act(np.zeros((4, 2), np.float32))
        except relevo.AgentStateError:
            return

    for _ in range(20):
        agent = running(policy, actors=4)
        thread = threading.Thread(target=play, args=(agent.actors(),))
        thread.start()
        del agent
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("reward", [1, 1.0, np.float32(1), np.int64(1), np.array(1), np.array(1.0), True])
def test_a_scalar_reward_of_any_kind_is_that_of_all(policy: Path, reward: object) -> None:
    with running(policy, actors=3) as agent:
        agent.actors().act(np.zeros((3, 2), np.float32))
        agent.actors().observe(reward, terminated=np.bool_(True))  # type: ignore[arg-type]
        assert [episode.rewards.tolist() for episode in agent.trajectories()] == [[1.0]] * 3


def test_removing_an_actor_between_act_and_observe_costs_the_others_nothing(policy: Path) -> None:
    with running(policy, actors=4) as agent:
        actors = agent.actors()
        actors.act(np.zeros((4, 2), np.float32))
        agent.remove_actor(agent.get_actor_ids()[0])
        actors.observe(np.arange(4.0), terminated=True)
        ends = sorted((episode.complete, episode.episode_return) for episode in agent.trajectories())
        assert ends == [(False, 0.0), (True, 1.0), (True, 2.0), (True, 3.0)]


def test_final_observations_go_to_whom_they_belong_or_nowhere(policy: Path, tmp_path: Path) -> None:
    wide = models.linear(tmp_path / "wide.onnx", np.ones((4, 2)))
    agent = relevo.AgentBuilder().default_model(wide).policy("narrow", policy).actor_count(2).build()
    with agent:
        both = agent.get_actor_ids()
        narrow = agent.new_actor(policy="narrow")
        agent.actors(both).act(np.zeros((2, 4), np.float32))
        agent.actors([narrow]).act(np.zeros((1, 2), np.float32))
        mixed = np.arange(12, dtype=np.float32).reshape(3, 4)
        with pytest.raises(relevo.ContractError, match="final observations"):
            agent.flag_last_action([*both, narrow], reward=1.0, final_obs=mixed)
        with pytest.raises(relevo.ContractError, match="final"):
            agent.flag_last_action([narrow, *both], reward=1.0, final_obs=mixed[:, :2])
        # After an assignment the open step still is what it was.
        agent.assign(both, "narrow")
        agent.flag_last_action(both, reward=1.0, final_obs=mixed[:2])
        agent.flag_last_action([narrow], reward=1.0, final_obs=np.full((1, 2), 7, np.float32))
        finals = {episode.actor_id: episode.observations[-1].tolist() for episode in agent.trajectories()}  # type: ignore[index]
        assert finals == {both[0]: [0, 1, 2, 3], both[1]: [4, 5, 6, 7], narrow: [7, 7]}


def test_float64_logits_keep_their_differences(tmp_path: Path) -> None:
    double = TensorProto.DOUBLE
    path = models.save(
        tmp_path / "double.onnx",
        [helper.make_node("Identity", ["obs"], ["logits"])],
        {"obs": ["batch", 2]},
        {"logits": ["batch", 2]},
        types={"obs": double, "logits": double},
    )
    for head in ("argmax", "categorical"):
        with running(path, actors=3, head=head) as agent:
            obs = np.array([[1e8, 1e8 + 1], [1e300, 0], [-1e300, -1e299]])
            batch = agent.actors().act(obs, deterministic=True)
            assert batch.action.tolist() == [1, 0, 1]
            masked = agent.actors().act(obs, mask=np.array([[1, 0], [0, 1], [1, 0]]))
            assert masked.action.tolist() == [0, 1, 0]


def test_dict_observations_are_found_by_name(policy: Path) -> None:
    with running(policy, actors=1, head="argmax") as agent:
        actors = agent.actors()
        right = np.array([[0, 1]], np.float32)
        for form in ({"obs": right, "other": right * 0}, {"any name": right}):
            assert actors.act(form).action.tolist() == [1]
            actors.observe(0.0, terminated=True, final_obs=form)
        assert [episode.observations.tolist() for episode in agent.trajectories()] == [[[0, 1], [0, 1]]] * 2  # type: ignore[union-attr]


def test_a_model_of_its_own_goes_with_its_actors(policy: Path) -> None:
    with running(policy) as agent:
        for _ in range(3):
            agent.remove_actor(agent.new_actor(model=policy, head="argmax"))
        kept = agent.new_actor(model=policy, head="argmax")
        assert list(agent.stats()["policies"]) == ["default", "model-4"]
        assert agent.actors([kept]).act(np.array([[0, 1]], np.float32)).log_prob is None
        with pytest.raises(relevo.ConfigError, match="at least 0"):
            agent.new_actors(-1)
        with pytest.raises(relevo.ConfigError, match="too many"):
            agent.new_actors(4_000_000_000)


def test_a_new_model_that_gives_nan_is_refused(policy: Path, tmp_path: Path) -> None:
    broken = models.linear(tmp_path / "broken.onnx", [[1, np.nan], [0, 1]])
    with running(policy) as agent:
        with pytest.raises(relevo.ModelLoadError, match=r"its weight `weights` holds NaN \(1 of 4 numbers\)"):
            agent.update_model(broken)
        assert agent.get_model_version() == [1, 1]


def test_actions_that_are_not_finite_go_nowhere(tmp_path: Path) -> None:
    for log_std in ([100.0, 100.0], [-100.0, 0.0]):
        path = models.gaussian(tmp_path / "wild.onnx", log_std)
        with running(path, actors=1) as agent:
            actors = agent.actors()
            # Without a draw the deviation does not matter.
            assert actors.act(np.ones((1, 2), np.float32), deterministic=True).action.tolist() == [[1, 1]]
            if log_std[0] > 0:
                with pytest.raises(relevo.InferenceError, match="infinite action"):
                    actors.act(np.zeros((1, 2), np.float32))
    path = models.linear(tmp_path / "raw.onnx", [[1, 0], [1, 1]], output="actions")
    with running(path, actors=1) as agent, pytest.raises(relevo.InferenceError, match="infinite action"):
        agent.actors().act(np.array([[3e38, 3e38]], np.float32))


def test_a_refused_mask_leaves_the_open_step(policy: Path) -> None:
    with running(policy) as agent:
        actors = agent.actors()
        actors.act(np.zeros((2, 2), np.float32))
        with pytest.raises(relevo.ContractError, match="allows no action"):
            actors.act(np.zeros((2, 2), np.float32), mask=np.zeros((2, 2), bool))
        actors.observe(1.0, terminated=True)
        assert [episode.episode_return for episode in agent.trajectories()] == [1.0, 1.0]


def test_episodes_cannot_be_written_to_and_masks_are_zeros_and_ones(policy: Path) -> None:
    with running(policy, actors=1) as agent:
        actors = agent.actors()
        actors.act(np.zeros((1, 2), np.float32), mask=np.array([[255, 0]], np.uint8))
        actors.observe(np.nan, terminated=True)
        (episode,) = agent.trajectories()
        with pytest.raises(ValueError, match="read-only"):
            episode.observations[:] = 1  # type: ignore[index]
        assert episode.action_masks is not None
        assert episode.action_masks.tolist() == [[1, 0]]
        # A reward of NaN came; it is not one that never came.
        assert np.isnan(episode.rewards[0])
        assert episode.rewards_known is None


def test_a_second_shutdown_waits_for_the_first(policy: Path, tmp_path: Path) -> None:
    agent = relevo.AgentBuilder().default_model(policy).actor_count(512).record(tmp_path / "run").build()
    agent.start()
    actors = agent.actors()
    for _ in range(200):
        actors.act(np.zeros((512, 2), np.float32))
        actors.observe(1.0)
    threads = [threading.Thread(target=agent.shutdown) for _ in range(4)]
    for thread in threads:
        thread.start()
    agent.shutdown()
    assert sum(len(episode) for episode in relevo.open_run(tmp_path / "run").episodes()) == 512 * 200
    for thread in threads:
        thread.join(30)


def test_final_observations_of_the_same_size_but_another_kind_are_refused(policy: Path, tmp_path: Path) -> None:
    double = models.save(
        tmp_path / "double.onnx",
        [helper.make_node("Concat", ["obs", "obs"], ["logits"], axis=1)],
        {"obs": ["batch", 1]},
        {"logits": ["batch", 2]},
        types={"obs": TensorProto.DOUBLE, "logits": TensorProto.DOUBLE},
    )
    agent = relevo.AgentBuilder().default_model(policy).policy("double", double).actor_count(1).build()
    with agent:
        (first,) = agent.get_actor_ids()
        second = agent.new_actor(policy="double")
        agent.actors([first]).act(np.zeros((1, 2), np.float32))
        agent.actors([second]).act(np.zeros((1, 1)))
        with pytest.raises(relevo.ContractError, match="not of the kind"):
            agent.flag_last_action([first, second], reward=1.0, final_obs=np.ones((2, 2), np.float32))
        agent.flag_last_action([second], reward=1.0, final_obs=np.full((1, 1), 3.0))
        assert agent.trajectories()[0].observations.tolist() == [[0], [3]]  # type: ignore[union-attr]
