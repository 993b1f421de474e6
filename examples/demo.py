"""The main job, end to end: 64 actors on CartPole, every step on disk, read back and checked.

    python examples/demo.py [FOLDER]

Without a folder the run goes into a fresh temporary one.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from cartpole_policy import write_cartpole_policy

import relevo
from relevo.cli.progress_bar import ProgressBar

ACTORS = 64
STEPS = 200_000
SEED = 7


def record(policy: Path, folder: Path) -> relevo.CollectResult:
    """Lets the actors act for all steps; gives what it came to."""
    envs = relevo.envs.make_vector("CartPole-v1", ACTORS)
    agent = (
        relevo.AgentBuilder()
        .default_model(policy, head="argmax")
        .actor_count(ACTORS)
        .record(folder)
        .keep_in_memory(0)
        .seed(SEED)
        .build()
    )
    with agent, ProgressBar("CartPole-v1", steps=STEPS) as bar:
        return relevo.collect(agent, envs, steps=STEPS, seed=SEED, progress=bar.show)


def verify(policy: Path, folder: Path, result: relevo.CollectResult) -> list[str]:
    """Reads the run back and compares it with what was seen while it ran; gives what was verified.

    Raises:
        AssertionError: something differs.
    """
    model = relevo.ModelModule.load_from_path(policy)
    steps, actions_checked, returns = 0, 0, []
    for episode in relevo.open_run(folder).episodes():
        length = len(episode)
        steps += length
        expected = model.forward({"obs": episode.observations[:length]})["logits"].argmax(axis=1)
        expect(np.array_equal(episode.actions, expected), f"{episode}: its actions are not what the policy gives")
        actions_checked += length
        # CartPole gives 1 for every step, so an episode's return is its length.
        expect(episode.episode_return == length, f"{episode}: a return of {episode.episode_return} in {length} steps")
        if episode.complete:
            returns.append(episode.episode_return)
            expect(episode.terminated or episode.truncated, f"{episode}: complete, but without an end")
            expect(episode.has_final_observation, f"{episode}: the final observation is missing")
            expect(len(episode.observations) == length + 1, f"{episode}: {len(episode.observations)} observations")
    expect(steps == result.steps, f"{steps} steps were recorded, but {result.steps} were taken")
    expect(sorted(returns) == sorted(result.returns.tolist()), "the recorded returns are not those seen while it ran")
    return [
        f"{steps:,} steps recorded = {result.steps:,} steps taken",
        f"{actions_checked:,} recorded actions are what the policy gives for the recorded observations",
        f"{len(returns):,} episodes ended, with the returns and lengths that were seen, and a final observation each",
    ]


def expect(condition: bool, problem: str) -> None:
    """Stops with `problem` unless `condition` holds; `assert` would be left out under `python -O`."""
    if not condition:
        raise AssertionError(problem)


def main() -> None:
    """Records, reports and verifies."""
    home = Path(tempfile.mkdtemp(prefix="relevo-demo-"))
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else home / "run"
    policy = write_cartpole_policy(home / "cartpole.onnx")
    result = record(policy, folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(
        f"{result.steps:,} steps of {ACTORS} actors in {result.seconds:.1f} s: {result.steps_per_second:,.0f} steps/s"
    )
    print(f"{result.episodes} episodes ended, mean return {result.mean_return:.1f} (500 is the most there is)")
    print(f"recorded in {folder} ({size / 1e6:.1f} MB)")
    for line in verify(policy, folder, result):
        print(f"verified: {line}")
    print(f'read it: relevo.open_run("{folder}").episodes()')


if __name__ == "__main__":
    main()
