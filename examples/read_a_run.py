"""Reading a run: as episodes of NumPy arrays, and as Arrow tables without Relevo."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute
from cartpole_policy import write_cartpole_policy

import relevo


def record(folder: Path) -> None:
    """Makes a run to read: a policy that is good for some hundred steps."""
    policy = write_cartpole_policy(folder / "policy.onnx", push_right=(0.0, 0.0, 1.0, 0.5), sharpness=1.0)
    agent = relevo.AgentBuilder().default_model(policy).actor_count(16).record(folder / "run").seed(1).build()
    with agent:
        relevo.collect(agent, relevo.envs.make_vector("CartPole-v1", 16), episodes=200, seed=1)


def print_histogram(returns: list[float], width: int = 50) -> None:
    """Prints how many episodes came to which return, as bars."""
    counts, edges = np.histogram(returns, bins=10)
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        print(f"{left:6.1f} – {right:6.1f}  {'█' * round(width * count / counts.max())} {count}")


def main(run: Path) -> None:
    """Reads the run folder `run` in both ways."""
    print("== as episodes")
    returns = []
    for episode in relevo.open_run(run).episodes():
        if episode.complete:
            returns.append(episode.episode_return)
    print(f"the last one: {episode}, observations {episode.observations.shape}, actions {episode.actions.shape}")
    print_histogram(returns)

    print("== as Arrow tables; an episode's last row holds its final observation, with no action")
    table = pa.concat_tables(pa.ipc.open_file(path).read_all() for path in sorted((run / "segments").glob("*.arrow")))
    print(f"{table.num_rows} rows, columns {', '.join(table.column_names)}")
    steps = table.filter(pyarrow.compute.is_valid(table["action"]))
    print(f"{steps.num_rows} steps, actions taken: {dict(Counter(steps['action'].to_pylist()))}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        record(Path(temporary))
        main(Path(temporary) / "run")
