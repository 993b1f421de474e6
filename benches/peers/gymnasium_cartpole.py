"""Gymnasium's `SyncVectorEnv` with 64 CartPole-v1, argmax: a bare loop against `relevo.collect`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import gymnasium
import policies
from cartpole import Workload, compare, versions
from report import Report, main

if TYPE_CHECKING:
    from pathlib import Path

ENVS = 64


def run(folder: Path, quick: bool) -> Report:
    """Measures long episodes and short ones."""
    report = Report(f"Gymnasium SyncVectorEnv, {ENVS} CartPole-v1, argmax, MLP 4 → 64 → 64 → 2")
    report.versions = {"gymnasium": gymnasium.__version__, **versions()}
    make_envs = functools.partial(gymnasium.make_vec, "CartPole-v1", num_envs=ENVS, vectorization_mode="sync")
    for case, policy in (("long episodes", policies.CARTPOLE_BALANCING), ("short episodes", policies.CARTPOLE_RANDOM)):
        compare(
            report,
            Workload(
                case,
                folder / policy,
                make_envs,
                ENVS,
                vector_steps=1_000 if quick else 3_000,
                turns=3 if quick else 9,
                bound_recorded=0.97,
                bound_unrecorded=0.97,
            ),
        )
    return report


if __name__ == "__main__":
    main(run)
