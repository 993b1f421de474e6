"""An agent with its own loop: act, step the environments, observe; then a new version of the policy."""

from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium as gym
import numpy as np
from cartpole_policy import write_cartpole_policy

import relevo

STEPS = 1_600
UPDATE_AFTER = 500


def main(folder: Path) -> None:
    """Runs 64 actors under two versions of a policy, recording into `folder`."""
    # The first version acts nearly at random, the second knows what it wants.
    first = write_cartpole_policy(folder / "policy.onnx", sharpness=0.5)
    second = write_cartpole_policy(folder / "policy-v2.onnx", sharpness=10.0)

    envs = gym.make_vec(
        "CartPole-v1",
        num_envs=64,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP},
    )
    model = relevo.ModelModule.load_from_path(first)
    print(model.contract)  # what it takes and gives, and how that was inferred

    agent = (
        relevo.AgentBuilder()
        .default_model(model, head="categorical")
        .actor_count(64)
        .record(folder / "run")
        .seed(7)
        .build()
    )
    with agent:
        actors = agent.actors()
        obs, _ = envs.reset(seed=0)
        for step in range(STEPS):
            if step == UPDATE_AFTER:
                print("now at version", agent.update_model(second))
            actions = actors.act(obs)  # one forward pass for all 64
            obs, reward, terminated, truncated, info = envs.step(np.asarray(actions))
            actors.observe(reward, terminated, truncated, final_obs=info.get("final_obs"))

    returns: dict[int, list[float]] = {1: [], 2: []}
    for episode in relevo.open_run(folder / "run").episodes():
        versions = np.unique(episode.policy_versions)
        if episode.complete and len(versions) == 1:
            returns[int(versions[0])].append(episode.episode_return)
    for version, of_version in returns.items():
        print(f"version {version}: {len(of_version)} episodes, mean return {np.mean(of_version):.1f}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
