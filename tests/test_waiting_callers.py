"""Callers that wait for a batch which nobody completes: what ends their wait at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import models
import numpy as np
import pytest
from agents import builder, one_hot

import relevo

HOUR = 3_600.0
"""What a call would wait for another actor, unless something ends its wait."""
SOON = 20.0
"""Seconds; whoever waits for longer has not been told."""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(4))


@contextmanager
def expecting_another(policy: Path, actors: int) -> Iterator[tuple[relevo.Agent, list[relevo.Actors]]]:
    """An agent whose batches wait for the first of its actors: that has acted, and its thread is still there."""
    with builder(policy, actors).max_wait(HOUR).build() as agent, ThreadPoolExecutor(1) as pool:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        pool.submit(handles[0].act, one_hot(0)).result(timeout=SOON)
        yield agent, handles


def until_queued(agent: relevo.Agent, rows: int) -> None:
    deadline = time.monotonic() + SOON
    while agent.stats()["routers"][0]["queue"] != rows:
        assert time.monotonic() < deadline, "they never came"
        time.sleep(0.001)


@pytest.mark.skipif(sys.platform == "win32", reason="a child process gets no SIGINT there")
def test_ctrl_c_ends_the_wait_of_the_main_thread(policy: Path) -> None:
    # The batch waits for the first actor. The third one's row shares it, and is not to be harmed.
    program = f"""
        import threading, time
        import numpy as np, relevo
        builder = relevo.AgentBuilder().default_model({str(policy)!r}, head="argmax").actor_count(3)
        agent = builder.max_wait({HOUR}).build()
        agent.start()
        first, second, third = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        obs = np.eye(4, dtype=np.float32)
        acted, ended = threading.Event(), threading.Event()
        def expected():
            first.act(obs[:1])
            acted.set()
            ended.wait()
        def until_queued(rows):
            while agent.stats()["routers"][0]["queue"] != rows:
                time.sleep(0.001)
        def tell():
            until_queued(2)
            print("waiting", flush=True)
        def beside():
            assert third.act(obs[2:3]).action.tolist() == [2]
            print("beside", flush=True)
        holder, other, teller = (threading.Thread(target=work) for work in (expected, beside, tell))
        holder.start()
        acted.wait()
        other.start()
        until_queued(1)
        teller.start()
        try:
            second.act(obs[1:2])
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        # That call has never been. Once nobody is expected any more, the batch goes.
        agent.remove_actor(first.ids[0])
        assert second.act(obs[3:]).action.tolist() == [3]
        second.observe(1.0, terminated=True)
        other.join()
        ended.set()
        (episode,) = [episode for episode in agent.trajectories() if episode.actor_id == second.ids[0]]
        assert episode.actions.tolist() == [3]
        agent.shutdown()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            child.send_signal(signal.SIGINT)
            told, errors = child.communicate(timeout=SOON)
        except subprocess.TimeoutExpired:
            pytest.fail("it never noticed")
        finally:
            child.kill()
    assert (child.returncode, told) == (0, "interrupted\nbeside\n"), errors


def test_a_removed_actor_has_its_error_at_once(policy: Path) -> None:
    with ThreadPoolExecutor(2) as pool, expecting_another(policy, 3) as (agent, handles):
        removed, other = [pool.submit(handle.act, one_hot(2)) for handle in handles[1:]]
        until_queued(agent, 2)
        agent.remove_actor(handles[1].ids[0])
        with pytest.raises(relevo.ActorNotFoundError, match="removed while its call waited"):
            removed.result(timeout=SOON)
        # They shared a pass.
        assert other.result(timeout=SOON).action.tolist() == [2]


def test_a_removed_actor_of_a_loop_has_its_error_at_once(policy: Path) -> None:
    async def main(agent: relevo.Agent, actor: relevo.Actors) -> None:
        # It waits for the loop's turn, which comes first.
        call = actor.act_async(one_hot(2))
        agent.remove_actor(actor.ids[0])
        with pytest.raises(relevo.ActorNotFoundError, match="removed while its call waited"):
            await asyncio.wait_for(call, SOON)

    with expecting_another(policy, 2) as (agent, handles):
        asyncio.run(main(agent, handles[1]))


def test_a_removal_does_not_change_who_is_expected(policy: Path) -> None:
    with ThreadPoolExecutor(2) as pool, expecting_another(policy, 3) as (agent, handles):
        removed = pool.submit(handles[1].act, one_hot(1))
        until_queued(agent, 1)
        agent.remove_actor(handles[1].ids[0])
        with pytest.raises(relevo.ActorNotFoundError):
            removed.result(timeout=SOON)
        # The first one is still waited for.
        other = pool.submit(handles[2].act, one_hot(2))
        until_queued(agent, 1)
        assert not other.done()
        assert handles[0].act(one_hot(3)).action.tolist() == [3]
        assert other.result(timeout=SOON).action.tolist() == [2]
        assert agent.stats()["routers"][0]["batch_sizes"]["2"] == 1


def test_threads_that_are_not_the_main_one_wait_on(policy: Path) -> None:
    with ThreadPoolExecutor(1) as pool, expecting_another(policy, 2) as (agent, handles):
        call = pool.submit(handles[1].act, one_hot(2))
        until_queued(agent, 1)
        seen = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: seen.set())
        try:
            signal.raise_signal(signal.SIGINT)
            assert seen.wait(SOON)
        finally:
            signal.signal(signal.SIGINT, before)
        assert not call.done()
        handles[0].act(one_hot(0))
        assert call.result(timeout=SOON).action.tolist() == [2]
