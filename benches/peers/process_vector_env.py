"""64 CartPole-v1 in 2 worker processes: `relevo.envs.ProcessVectorEnv` beside Gymnasium's vector environments."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from report import Report, main
from rounds import Rounds, goal

import relevo
from relevo.envs import ProcessVectorEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rounds import Samples

ENVS, WORKERS = 64, 2
OURS = f"relevo ProcessVectorEnv, {WORKERS} workers"
ASYNC = "gymnasium AsyncVectorEnv, shared memory"
SYNC = "gymnasium SyncVectorEnv, one process"
SEED = 7
CHECKED_STEPS = 300


def run(_policies: Path, quick: bool) -> Report:
    """Measures whole steps of all environments with actions drawn at random, about 1 of 22 ending an episode."""
    report = Report(f"{ENVS} CartPole-v1 stepped by {WORKERS} processes, autoreset in the same step")
    report.versions = {"gymnasium": gymnasium.__version__, "relevo": relevo.__version__}
    mode = AutoresetMode.SAME_STEP
    makers = [functools.partial(gymnasium.make, "CartPole-v1")] * ENVS
    envs: dict[str, Any] = {
        OURS: ProcessVectorEnv(makers, ENVS, WORKERS, autoreset_mode=mode),
        ASYNC: AsyncVectorEnv(makers, shared_memory=True, autoreset_mode=mode),
        SYNC: SyncVectorEnv(makers, autoreset_mode=mode),
    }
    logs = {side: _log(vector) for side, vector in envs.items()}
    for side in (OURS, ASYNC):
        report.check(
            f"{side}: {CHECKED_STEPS * ENVS:,} observations, rewards, ends, final observations are SyncVectorEnv's",
            logs[side] == logs[SYNC],
        )
    # As long turns as the sides are slow, so that each takes about as much time.
    steps = {OURS: 1_500, ASYNC: 150, SYNC: 1_000}
    sides = [_turn(side, vector, steps[side] // (3 if quick else 1)) for side, vector in envs.items()]
    rounds = Rounds(sides, 3 if quick else 15)
    case = f"{ENVS} environments"
    report.figures = [rounds.figure(case, side, "env steps/s") for side in envs]
    ratios = {side: rounds.medians(OURS) / rounds.medians(side) for side in (ASYNC, SYNC)}
    report.goals.append(goal(case, "times AsyncVectorEnv's speed", ratios[ASYNC], 3.0, at_most=False))
    report.figures[-1] = rounds.figure(case, SYNC, "env steps/s", f"ours is {np.median(ratios[SYNC]):.2f} times that")
    for vector in envs.values():
        vector.close()
    return report


def _actions(steps: int) -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, 2, (steps, ENVS))


def _log(envs: Any) -> list[bytes]:  # noqa: ANN401 : the sides have no type in common but Gymnasium's generic one
    """Everything that some steps gave, as bytes."""
    obs, _ = envs.reset(seed=SEED)
    log = [obs.tobytes()]
    for actions in _actions(CHECKED_STEPS):
        obs, reward, terminated, truncated, info = envs.step(actions)
        finals = [b"" if one is None else one.tobytes() for one in info.get("final_obs", [])]
        log += [obs.tobytes(), reward.tobytes(), terminated.tobytes(), truncated.tobytes(), *finals]
    return log


def _turn(side: str, envs: Any, steps: int) -> Callable[[], Samples]:  # noqa: ANN401 : as above
    chosen = _actions(steps)

    def turn() -> Samples:
        envs.reset(seed=SEED)
        begin = time.perf_counter()
        for actions in chosen:
            envs.step(actions)
        return {side: np.array([steps * ENVS / (time.perf_counter() - begin)])}

    return turn


if __name__ == "__main__":
    main(run)
