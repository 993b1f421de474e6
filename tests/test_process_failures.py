"""Workers of `ProcessVectorEnv` that crash or hang: started again, their episodes cut, up to a budget."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
import worlds
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from worlds import CALM, ENVS, action, assert_same

import relevo
from relevo.envs import ProcessVectorEnv

if TYPE_CHECKING:
    from collections.abc import Callable

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("SIGKILL", "worker 1 (environments 2 to 4) was killed by the signal SIGKILL"),
        ("SIGSEGV", "was killed by the signal SIGSEGV"),
        ("exit", "ended with exit code 3"),
        ("raise", "raised an exception while stepping environment 3; it is started again, restart 1 of 10:\nTraceback"),
        ("hang", "gave no answer within 1 s, and was killed"),
    ],
)
def test_a_worker_that_fails_is_started_again(
    fault: str, words: str, faulty: Callable[..., ProcessVectorEnv], caplog: pytest.LogCaptureFixture
) -> None:
    envs = faulty(step_timeout=1.0 if fault == "hang" else 60.0)
    sync = SyncVectorEnv([worlds.Faulty] * ENVS, autoreset_mode=SAME_STEP)
    first, _ = envs.reset(seed=10)
    sync.reset(seed=10)
    assert_same(envs.step(CALM), sync.step(CALM))
    with caplog.at_level(logging.WARNING, "relevo.envs"):
        obs, rewards, terminated, truncated, infos = envs.step(action(3, fault))
    expected, *_ = sync.step(CALM)

    cut = np.array([False, False, True, True, True])
    np.testing.assert_array_equal(obs[~cut], expected[~cut])
    # The first observations of new episodes, with other random numbers.
    assert (obs[cut, 1] == 0).all()
    assert not np.isin(obs[cut, 0], first[:, 0]).any()
    np.testing.assert_array_equal(rewards, ~cut)
    np.testing.assert_array_equal(truncated, cut)
    assert not terminated.any()
    np.testing.assert_array_equal(infos["worker_restarted"], cut)
    np.testing.assert_array_equal(infos["_worker_restarted"], cut)
    assert infos["final_obs"].tolist() == [None] * ENVS
    assert not infos["_final_obs"].any()
    assert (envs.restarts, envs.episodes_cut) == (1, 3)
    assert words in caplog.text
    assert ("the world is flat" in caplog.text) == (fault == "raise")

    # And on it goes.
    begun = obs[:, 1].copy()
    obs, rewards, terminated, truncated, infos = envs.step(CALM)
    np.testing.assert_array_equal(obs[:, 1], begun + 1)
    assert "worker_restarted" not in infos
    assert not truncated.any()


def test_next_step_resets_after_a_cut_and_does_not_cut_a_reset(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty(autoreset_mode=NEXT_STEP)
    envs.reset(seed=0)
    *_, truncated, infos = envs.step(action(0, "SIGKILL"))
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [True, True, False, False, False]
    obs, rewards, _, truncated, _ = envs.step(CALM)
    assert obs[:, 1].tolist() == [0, 0, 2, 2, 2]
    assert rewards.tolist() == [0, 0, 1, 1, 1]
    for _ in range(3):
        obs, _, terminated, _, _ = envs.step(CALM)
    assert terminated.tolist() == [False, False, True, True, True]
    # The step that was to reset them has done so: there was no episode to cut.
    *_, truncated, _ = envs.step(action(0, "SIGKILL"))
    assert truncated.tolist() == [True, True, False, False, False]
    for _ in range(5):
        obs, _, terminated, _, _ = envs.step(CALM)
    assert terminated.tolist() == [False, False, True, True, True]
    obs, *_ = envs.step(CALM)
    assert obs[2:, 1].tolist() == [0, 0, 0]
    assert envs.episodes_cut == 4


def test_next_step_a_worker_killed_while_its_environments_wait_for_their_reset(
    faulty: Callable[..., ProcessVectorEnv],
) -> None:
    envs = faulty(autoreset_mode=NEXT_STEP)
    envs.reset(seed=0)
    for _ in range(5):
        _, _, terminated, _, _ = envs.step(CALM)
    assert terminated.all()
    os.kill(envs._workers[1]._process.pid or 0, signal.SIGKILL)
    obs, rewards, terminated, truncated, infos = envs.step(CALM)
    assert (obs[:, 1] == 0).all()
    assert [rewards.any(), terminated.any(), truncated.any()] == [False] * 3
    assert infos["worker_restarted"].tolist() == [False, False, True, True, True]
    assert (envs.restarts, envs.episodes_cut) == (1, 0)
    obs, rewards, *_ = envs.step(CALM)
    assert (obs[:, 1] == 1).all()
    assert (rewards == 1).all()


def test_disabled_needs_a_reset_after_a_cut(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty(autoreset_mode=DISABLED)
    envs.reset(seed=0)
    _, _, _, truncated, infos = envs.step(action(2, "SIGKILL"))
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True, True]
    with pytest.raises(gym.error.ResetNeeded, match=r"\[2, 3, 4\]"):
        envs.step(CALM)
    envs.reset(options={"reset_mask": truncated})
    # Dead before the reset of one of its environments: the episodes of the others are cut, and the next step says so.
    os.kill(envs._workers[1]._process.pid or 0, signal.SIGKILL)
    only_one = np.array([False, False, True, False, False])
    obs, infos = envs.reset(options={"reset_mask": only_one})
    assert obs[:, 1].tolist() == [1, 1, 0, 0, 0]
    assert infos["worker_restarted"].tolist() == [False, False, True, True, True]
    _, rewards, _, truncated, infos = envs.step(CALM)
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True, True]
    assert rewards.tolist() == [1, 1, 0, 0, 0]
    envs.reset(options={"reset_mask": truncated})
    # The same where both die of a call.
    with pytest.raises(relevo.EnvironmentWorkerError, match=r"SIGKILL.*`be`"):
        envs.call("be", "SIGKILL")
    _, rewards, _, truncated, infos = envs.step(CALM)
    assert truncated.all()
    assert infos["worker_restarted"].all()
    assert not rewards.any()
    assert (envs.restarts, envs.episodes_cut) == (4, 3 + 3 + ENVS)


def test_an_exception_in_a_reset_that_comes_again_is_the_callers(
    faulty: Callable[..., ProcessVectorEnv], caplog: pytest.LogCaptureFixture
) -> None:
    envs = faulty(max_restarts=4)
    mask = np.array([False, False, True, False, False])
    envs.reset(seed=0)
    for restarts, options in enumerate([{}, {"reset_mask": mask}], 1):
        # Where it was asked of all, it comes from both workers, and one is enough to try again with.
        with pytest.raises(ZeroDivisionError, match="the world is flat") as raised:
            envs.reset(seed=1, options={"fault": "raise", **options})
        (note,) = raised.value.__notes__
        assert note.startswith("raised in a worker process by resetting environment ")
        assert "Traceback" in note
        assert envs.restarts == restarts
        with pytest.raises(gym.error.ResetNeeded, match="failed"):
            envs.step(CALM)
        sync = SyncVectorEnv([worlds.Faulty] * ENVS, autoreset_mode=SAME_STEP)
        assert_same(envs.reset(seed=7), sync.reset(seed=7))
        assert_same(envs.step(CALM), sync.step(CALM))
    assert "raised an exception while resetting environment" in caplog.text
    assert envs.get_attr("mark") == (0,) * ENVS


def test_an_exception_in_a_reset_closes_nothing_where_no_restart_is_left(
    faulty: Callable[..., ProcessVectorEnv],
) -> None:
    envs = faulty(max_restarts=0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            envs.reset(options={"fault": "raise"})
    envs.reset(seed=1)
    envs.step(CALM)
    assert envs.restarts == 0


def test_bad_seeds_harm_nothing(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty()
    bad: list[Any] = [-1, 1.0, "12345", b"12345", np.float32(1), np.arange(ENVS) - 1.0, [0, 1, 2, 3, -4]]
    bad += [[0, 1, 2, 3], np.arange(6), [0, 1, 2, 3, "4"], [0.5] * ENVS, object(), np.array([1])]
    for seed in bad:
        with pytest.raises(relevo.ConfigError, match="seed must be a whole number"):
            envs.reset(seed=seed)
    assert not envs.closed
    sync = SyncVectorEnv([worlds.Faulty] * ENVS, autoreset_mode=SAME_STEP)
    expected, _ = sync.reset(seed=list(range(3, 3 + ENVS)))
    good: list[Any] = [3, np.int8(3), np.array(3), np.arange(3, 3 + ENVS), [np.uint64(3), 4, np.int16(5), 6, 7]]
    for seed in [*good, tuple(range(3, 3 + ENVS)), range(3, 3 + ENVS)]:
        obs, _ = envs.reset(seed=seed)
        np.testing.assert_array_equal(obs, expected)
    envs.reset(seed=[None, 1, None, 2**70, None])
    assert envs.np_random_seed[1::2] == (1, 2**70)
    assert envs.restarts == 0


def test_a_worker_that_takes_in_or_gives_half_a_message_is_killed(
    faulty: Callable[..., ProcessVectorEnv],
) -> None:
    envs = faulty(step_timeout=0.5)
    envs.reset(seed=0)
    os.kill(envs._workers[1]._process.pid or 0, signal.SIGSTOP)
    with pytest.raises(
        relevo.EnvironmentWorkerError, match=r"worker 1 .* took in nothing .* for 0.5 s, and was killed"
    ):
        envs.call("be", "x" * 10_000_000)
    *_, infos = envs.step(CALM)
    assert infos["worker_restarted"].tolist() == [False, False, True, True, True]
    with pytest.raises(
        relevo.EnvironmentWorkerError, match=r"worker 0 .* nothing of its answer for 0.5 s, and was kil"
    ):
        envs.call("stall")
    *_, infos = envs.step(CALM)
    assert infos["worker_restarted"].all()
    assert envs.restarts == 3
    *_, infos = envs.step(CALM)
    assert not infos


@pytest.mark.parametrize("fault", ["SIGKILL", "raise", "hang"])
def test_the_budget_of_restarts(fault: str, faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty(max_restarts=1, step_timeout=1.0)
    envs.reset(seed=0)
    envs.step(action(0, "raise"))
    with pytest.raises(relevo.EnvironmentWorkerError) as raised:
        envs.step(action(4, fault))
    text = str(raised.value)
    assert text.startswith("worker 1 (environments 2 to 4) ")
    assert {"SIGKILL": "SIGKILL", "raise": "environment 4", "hang": "within 1 s"}[fault] in text
    assert "max_restarts=1" in text
    # The traceback of this failure, and not of the one before.
    assert ("ZeroDivisionError: the world is flat" in text) == (fault == "raise")
    with pytest.raises(gym.error.ClosedEnvironmentError):
        envs.step(CALM)


def test_a_worker_killed_between_steps_and_a_call_that_kills(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty()
    with pytest.raises(relevo.EnvironmentWorkerError, match=r"exit code 3.*`be`"):
        envs.call("be", "exit")
    # Nothing had begun that could be cut.
    envs.reset(seed=0)
    _, _, _, truncated, infos = envs.step(CALM)
    assert not truncated.any()
    assert "worker_restarted" not in infos
    os.kill(envs._workers[0]._process.pid or 0, signal.SIGKILL)
    _, _, _, truncated, _ = envs.step(CALM)
    assert truncated.tolist() == [True, True, False, False, False]
    assert (envs.restarts, envs.episodes_cut) == (3, 2)


def test_an_interrupted_step_needs_a_reset(faulty: Callable[..., ProcessVectorEnv]) -> None:
    envs = faulty()
    envs.reset(seed=0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            envs.step(action(1, "slow"))
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(gym.error.ResetNeeded, match="interrupted"):
        envs.step(CALM)
    sync = SyncVectorEnv([worlds.Faulty] * ENVS, autoreset_mode=SAME_STEP)
    assert_same(envs.reset(seed=5), sync.reset(seed=5))
    assert_same(envs.step(CALM), sync.step(CALM))
    # No answer is taken for that of another question.
    assert envs.get_attr("mark") == (0,) * ENVS
    assert envs.restarts == 0
