"""A training loop in plain PyTorch: actors collect, the loop learns, and each new version serves at once.

    python examples/torch/hot_swap.py

It needs `pip install "relevo[torch,export,envs]"`; `make demo-torch` sees to that.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

import relevo
import relevo.export

ACTORS = 16
STEPS = 8_192
"""Between two updates: each actor can balance the pole for the 500 steps of an episode."""
UPDATES = 20
DISCOUNT = 0.99


class ActorCritic(nn.Module):
    """Logits for CartPole's two actions, and an estimate of the return."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For `[N, 4]`: logits `[N, 2]` and values `[N, 1]`."""
        return self.actor(obs), self.critic(obs)


def returns(rewards: np.ndarray) -> np.ndarray:
    """What each step earned from there on, discounted."""
    result = np.zeros(len(rewards), np.float32)
    following = 0.0
    for step in reversed(range(len(rewards))):
        following = rewards[step] + DISCOUNT * following
        result[step] = following
    return result


def learn(module: ActorCritic, optimizer: torch.optim.Optimizer, episodes: list[relevo.Episode]) -> None:
    """One step of the policy gradient, with the value as its baseline, on whole episodes."""
    observations = torch.from_numpy(np.concatenate([episode.observations[: len(episode)] for episode in episodes]))
    actions = torch.from_numpy(np.concatenate([episode.actions for episode in episodes]))
    earned = torch.from_numpy(np.concatenate([returns(episode.rewards) for episode in episodes]))
    logits, values = module(observations)
    log_probs = logits.log_softmax(1).gather(1, actions[:, None])[:, 0]
    ahead = earned - values[:, 0].detach()
    advantages = (ahead - ahead.mean()) / (ahead.std() + 1e-6)
    loss = -(log_probs * advantages).mean() + 1e-3 * (earned - values[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main(folder: Path) -> None:
    """Trains, and checks that every episode says which version acted."""
    torch.manual_seed(7)
    module = ActorCritic()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    envs = relevo.envs.make_vector("CartPole-v1", ACTORS)
    report = relevo.export.to_onnx(
        module, folder / "first.onnx", envs.single_observation_space, outputs=["logits", "value"]
    )
    print(f"exported: {report.roles}, {report.largest_difference:.1e} from the module at most")

    builder = relevo.AgentBuilder().default_model(report.path, head="categorical").actor_count(ACTORS).seed(7)
    means = []
    with builder.build() as agent:
        for version in range(1, UPDATES + 1):
            relevo.collect(agent, envs, steps=STEPS, seed=version)
            episodes = [
                episode
                for episode in agent.trajectories()
                if episode.complete and (episode.policy_versions == version).all()
            ]
            means.append(float(np.mean([episode.episode_return for episode in episodes])))
            learn(module, optimizer, episodes)
            agent.update_model(module)
            if version % 5 == 0:
                print(f"version {version}: {len(episodes)} episodes, mean return {means[-1]:.0f}")

        # What serves is the module as it is now, with the same roles as the file before.
        observations, _ = envs.reset(seed=0)
        batch = agent.actors().act(observations, record=False)
        with torch.no_grad():
            _, values = module(torch.from_numpy(observations))
        np.testing.assert_allclose(np.asarray(batch.value), values[:, 0], atol=1e-4)
        np.testing.assert_equal(batch.policy_version, UPDATES + 1)
    np.testing.assert_array_less(2 * means[0], means[-1])
    print(f"verified: {UPDATES} versions served, and the return rose from {means[0]:.0f} to {means[-1]:.0f}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
