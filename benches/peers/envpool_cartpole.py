"""EnvPool's CartPole-v1, 1,024 environments, argmax: a bare loop against `relevo.collect`."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

import envpool
import policies
from cartpole import Workload, compare, versions
from report import Report, main

if TYPE_CHECKING:
    from pathlib import Path

ENVS = 1_024


def run(folder: Path, quick: bool) -> Report:
    """Measures long episodes and short ones."""
    # EnvPool's own bounds are float64, and Gymnasium says so for every environment made.
    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    report = Report(f"EnvPool CartPole-v1, {ENVS:,} environments, argmax, MLP 4 → 64 → 64 → 2")
    report.versions = {"envpool": envpool.__version__, **versions()}
    make_envs = functools.partial(envpool.make_gymnasium, "CartPole-v1", num_envs=ENVS, seed=1)
    for case, policy in (("long episodes", policies.CARTPOLE_BALANCING), ("short episodes", policies.CARTPOLE_RANDOM)):
        compare(
            report,
            Workload(
                case,
                folder / policy,
                make_envs,
                ENVS,
                vector_steps=500 if quick else 1_500,
                turns=3 if quick else 9,
                bound_recorded=0.9,
                bound_unrecorded=0.97,
            ),
        )
    return report


if __name__ == "__main__":
    main(run)
