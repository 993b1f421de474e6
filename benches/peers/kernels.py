"""Generalised advantage estimation: rlox, TorchRL and ours, from Python, on the same numbers."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import rlox
import torch
from report import Report, main
from rounds import Rounds, goal
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt
    from rounds import Samples

    Array = npt.NDArray[Any]
    Results = tuple[Array, Array]

GAMMA, LAM = 0.99, 0.95
OURS = "relevo, {}"
# Steps, streams, and what our time may be of the best peer: the goals of the design over what the peer took then.
SHAPES = ((2048, 1, 0.65), (128, 64, 0.18))


@dataclass(frozen=True)
class Rollout:
    """Steps by streams. No step is truncated, as rlox knows no truncation."""

    rewards: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    next_values: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]

    @classmethod
    def draw(cls, steps: int, streams: int) -> Rollout:
        """Random numbers, and an episode that ends in one step of fifty."""
        random = np.random.default_rng(0)
        values = random.normal(size=(steps + 1, streams))
        rewards, ends = random.normal(size=(steps, streams)), random.integers(50, size=(steps, streams))
        return cls(rewards, values[:-1].copy(), values[1:].copy(), ends == 0)

    def plain(self) -> Results:
        """By a plain loop."""
        advantages, following = np.zeros_like(self.rewards), np.zeros(self.rewards.shape[1])
        going_on = ~self.terminated
        errors = self.rewards + GAMMA * self.next_values * going_on - self.values
        for step in range(len(errors) - 1, -1, -1):
            following = errors[step] + GAMMA * LAM * going_on[step] * following
            advantages[step] = following
        return advantages, advantages + self.values


def run(_policies: Path, quick: bool) -> Report:
    """Measures both shapes; every side's results are held against the plain loop first."""
    torch.set_num_threads(1)
    report = Report("Generalised advantage estimation, one call from Python")
    report.versions = {**{name: version(name) for name in ("rlox", "torchrl", "torch")}, "relevo": relevo.__version__}
    for steps, streams, bound in SHAPES:
        case = f"{steps} × {streams}"
        rollout = Rollout.draw(steps, streams)
        wanted = rollout.plain()
        sides = sides_of(rollout)
        for name, (call, read) in sides.items():
            # TorchRL cuts its sums off where weights fall below 1e-7, in float64 too.
            tolerance = 1e-9 if name.endswith("float64") and "TorchRL" not in name else 1e-4
            got = [read(each) for each in call()]
            fits = all(np.allclose(one, other, tolerance, tolerance) for one, other in zip(got, wanted, strict=True))
            report.check(f"{case}: {name} is the plain loop's to {tolerance}", fits)
        calls = 200 if quick else 2_000
        turns = [
            timed(name, call, max(20, calls // 50) if "TorchRL" in name else calls) for name, (call, _) in sides.items()
        ]
        rounds = Rounds(turns, 3 if quick else 15)
        report.figures += [rounds.figure(case, name, "µs") for name in sides]
        peers = [name for name in sides if not name.startswith("relevo")]
        for precision in ("float32", "float64"):
            best = min(
                (name for name in peers if name.endswith(precision)), key=lambda name: np.median(rounds.medians(name))
            )
            ratios = rounds.medians(OURS.format(precision)) / rounds.medians(best)
            report.goals.append(goal(f"{case}, {precision}", f"as a part of {best}", ratios, bound, at_most=True))
    return report


def sides_of(rollout: Rollout) -> dict[str, tuple[Callable[[], Any], Callable[[Any], npt.NDArray[Any]]]]:
    """Each side's call, and how its results are read as steps by streams."""
    steps, streams = rollout.rewards.shape
    sides: dict[str, tuple[Callable[[], Any], Callable[[Any], npt.NDArray[Any]]]] = {}

    def of_rlox(array: Any) -> npt.NDArray[Any]:  # noqa: ANN401 : what rlox gives
        return np.asarray(array).reshape(streams, steps).T

    for precision in ("float32", "float64"):
        rewards, values, next_values = (
            np.ascontiguousarray(array, precision) for array in (rollout.rewards, rollout.values, rollout.next_values)
        )
        terminated = rollout.terminated
        sides[OURS.format(precision)] = (ours(rewards, values, next_values, terminated), np.asarray)
        # rlox takes streams one after the other.
        flat = [np.ascontiguousarray(array.T).ravel() for array in (rewards, values, terminated.astype(precision))]
        if precision == "float64" and streams == 1:
            call = single_of_rlox(*flat, float(next_values[-1, 0]))
            sides["rlox, float64"] = (call, of_rlox)
        batched = rlox.compute_gae_batched if precision == "float64" else rlox.compute_gae_batched_f32
        call = batched_of_rlox(batched, flat, next_values[-1].copy(), steps)
        sides[f"rlox, batched, {precision}"] = (call, of_rlox)
        tensors = [torch.from_numpy(np.ascontiguousarray(array)[..., None]) for array in (values, next_values, rewards)]
        done = torch.from_numpy(terminated[..., None].copy())
        call = functools.partial(vec_generalized_advantage_estimate, GAMMA, LAM, *tensors, done, done, time_dim=0)
        sides[f"TorchRL, {precision}"] = (call, lambda tensor: tensor.numpy()[..., 0])
    return sides


# The calls as a training loop has them, with everything at hand.


def ours(rewards: Array, values: Array, next_values: Array, terminated: Array) -> Callable[[], Any]:
    """A call of ours."""
    gae, truncated = relevo.kernels.gae, np.zeros_like(terminated)
    return lambda: gae(rewards, values, next_values, terminated, truncated, gamma=GAMMA, lam=LAM)


def single_of_rlox(rewards: Array, values: Array, dones: Array, last_value: float) -> Callable[[], Any]:
    """A call of rlox for one stream."""
    compute = rlox.compute_gae
    return lambda: compute(rewards, values, dones, last_value, GAMMA, LAM)


def batched_of_rlox(
    compute: Callable[..., Any], flat: list[Array], last_values: Array, steps: int
) -> Callable[[], Any]:
    """A call of rlox for many streams."""
    rewards, values, dones = flat
    return lambda: compute(rewards, values, dones, last_values, steps, GAMMA, LAM)


def timed(name: str, call: Callable[[], object], calls: int) -> Callable[[], Samples]:
    """A turn of so many calls, each timed in microseconds."""

    def turn() -> Samples:
        times = np.empty(calls)
        clock = time.perf_counter_ns
        for index in range(calls):
            begin = clock()
            call()
            times[index] = clock() - begin
        return {name: times / 1e3}

    return turn


if __name__ == "__main__":
    main(run)
