"""Environments that tests put into worker processes, which import them from here."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FAULTS = ("none", "SIGKILL", "SIGSEGV", "exit", "raise", "hang", "slow")
"""Actions of `Faulty`."""

ENVS = 5
WORKERS = 2
"""Workers 0 and 1 have 2 and 3 of 5 environments."""
CALM = np.zeros(ENVS, np.int64)
"""No fault in any environment."""


class Varied(gym.Env[Any, Any]):
    """Everything drawn at random: nested observations, the end after 1 to 8 steps, infos of every form."""

    metadata = {"render_modes": []}  # noqa: RUF012 : Gymnasium's own form
    observation_space = spaces.Dict(
        {
            "vector": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "count": spaces.Discrete(9),
            "pair": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([3, 4])]),
        }
    )
    action_space = spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)})

    def _observe(self) -> dict[str, Any]:
        draw = self.np_random
        pair = (draw.integers(0, 2, 2, np.int8), draw.integers(0, 3, 2))
        return {"vector": draw.normal(size=3), "count": np.int64(self._left), "pair": pair}

    def _inform(self) -> dict[str, Any]:
        whole = {
            "number": 0.5 * self._left,
            "array": self.np_random.normal(size=2),
            "nested": {"text": f"left {self._left}", "flag": True},
        }
        return {name: value for name, value in whole.items() if self.np_random.random() < 0.5}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 9))
        self._last_push = np.zeros(2, np.float32)
        return self._observe(), {**self._inform(), **(options or {})}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        over = self._left == 0
        end = int(self.np_random.integers(3))
        # Actions are kept, as those who smooth them do.
        reward = (
            float(self.np_random.normal()) + float(action["turn"]) + float((action["push"] - self._last_push).sum())
        )
        self._last_push = action["push"]
        return self._observe(), reward, over and end != 1, over and end != 0, self._inform()


class Image(gym.Env[Any, Any]):
    """Images of noise, in which the action is one pixel; ends with probability 1/5 in each step."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 : as above
    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = spaces.MultiDiscrete([16, 16])

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.brightness = 0

    def render(self) -> Any:
        return np.full((2, 2, 3), self.brightness, np.uint8)

    def brighter_than(self, other: int) -> bool:
        if other < 0:
            raise ValueError("nothing is that dark")
        return self.brightness > other

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.integers(0, 256, (16, 16, 3), np.uint8), {}

    def step(self, action: np.ndarray[Any, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        image = self.np_random.integers(0, 256, (16, 16, 3), np.uint8)
        image[*action] = 255
        return image, 1.0, False, bool(self.np_random.random() < 0.2), {}


class Faulty(gym.Env[Any, Any]):
    """Observes its episode's random number and the number of steps in it; ends after 5. An action can be a fault.

    With `fault_at`, an environment that was seeded with 0 also fails in that step of its first episode.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 : as above
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(len(FAULTS))

    def __init__(self, fault_at: int | None = None, fault: str = "SIGKILL") -> None:
        self._fault_at = fault_at
        self._fault = fault
        self.mark = 0

    def be(self, fault: str) -> None:
        """Does what the fault's name says."""
        if fault == "exit":
            sys.exit(3)
        if fault == "raise":
            raise ZeroDivisionError("the world is flat")
        if fault == "hang":
            while True:
                time.sleep(1)
        if fault == "slow":
            time.sleep(0.5)
        if fault.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[fault])

    def stall(self) -> str:
        """Has the worker stop half-way through its answer."""

        def send_half(connection: Connection, message: bytes) -> None:
            os.write(connection.fileno(), struct.pack("!i", len(message)) + message[: len(message) // 2])
            os.kill(os.getpid(), signal.SIGSTOP)

        Connection._send_bytes = send_half  # type: ignore[attr-defined]
        return "long"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._fails = seed == 0 and self._fault_at is not None
        self.be((options or {}).get("fault", "none"))
        self._observation = np.array([self.np_random.random(), 0], np.float32)
        return self._observation.copy(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._observation[1] += 1
        if self._fails and self._observation[1] == self._fault_at:
            self.be(self._fault)
        self.be(FAULTS[action])
        return self._observation.copy(), 1.0, bool(self._observation[1] == 5), False, {}


class Wide(Faulty):
    """Observes what is not in its space."""

    observation_space = spaces.Box(-1, 1, (3,))


class Words(Faulty):
    """Its space has no fixed size."""

    observation_space = spaces.Text(5)


def other_in_a_worker(what: str) -> gym.Env[Any, Any]:
    """`Faulty`; but in a worker, one with other spaces, or none because of a fault."""
    if multiprocessing.parent_process() is None:
        return Faulty()
    if what == "spaces":
        return Image()
    Faulty().be(what)
    return Faulty()


def environment() -> dict[str, str]:
    """The variables of a program that imports `worlds`."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def action(row: int, fault: str) -> np.ndarray[Any, Any]:
    """No fault but one, in one environment."""
    actions = CALM.copy()
    actions[row] = FAULTS.index(fault)
    return actions


def assert_same(came: Any, expected: Any, at: str = "") -> None:
    """The same values, types and shapes, as deep as they go."""
    assert type(came) is type(expected), at
    if isinstance(expected, dict):
        assert came.keys() == expected.keys(), at
        for name, value in expected.items():
            assert_same(came[name], value, f"{at}[{name!r}]")
    elif isinstance(expected, tuple) or (isinstance(expected, np.ndarray) and expected.dtype == np.object_):
        assert len(came) == len(expected), at
        for index, value in enumerate(expected):
            assert_same(came[index], value, f"{at}[{index}]")
    elif isinstance(expected, np.ndarray):
        assert came.dtype == expected.dtype, at
        np.testing.assert_array_equal(came, expected, at)
    else:
        assert came == expected, at
