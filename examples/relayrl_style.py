"""RelayRL's way of calling: actors by their ids, and each reward with the request that follows it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium as gym
import numpy as np
from cartpole_policy import write_cartpole_policy

import relevo


def main(folder: Path) -> None:
    """Plays three episodes with one actor of an agent that has several."""
    policy = write_cartpole_policy(folder / "policy.onnx")
    agent = relevo.AgentBuilder().default_model(policy).actor_count(4).record(folder / "run").seed(3).build()
    agent.start()
    ids = agent.get_actor_ids()[:1]
    env = gym.make("CartPole-v1", max_episode_steps=200)
    for number in range(3):
        obs, _ = env.reset(seed=number)
        reward, ended = None, False
        while not ended:
            # The reward is what the action before earned; an observation with a leading axis of 1 goes to every id.
            action = agent.request_action(ids, obs[None], reward=reward)
            obs, reward, terminated, truncated, _ = env.step(int(action[0]))
            ended = terminated or truncated
        agent.flag_last_action(ids, reward=reward, truncated=truncated, final_obs=obs[None])

    print("versions of the actors' policy:", agent.get_model_version(ids))
    for episode in agent.trajectories():
        print(f"{episode}, final observation {np.round(episode.observations[-1], 2)}")
    agent.shutdown()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
