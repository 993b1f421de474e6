"""Calls of single actors: batched from many threads, isolated where they fail, answered whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

import models
import numpy as np
import numpy.typing as npt
import pytest
from agents import LONG, builder, one_hot

import relevo


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(4))


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Runs `work(0)`, `work(1)` … at the same time; the first error is raised."""
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, index) for index in range(count)]:
            done.result(timeout=LONG)


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Stops the others at the end, also where that is an error."""
    try:
        yield
    finally:
        stop.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


def queued(agent: relevo.Agent) -> int:
    return sum(router["queue"] for router in agent.stats()["routers"])


@contextmanager
def waiting(agent: relevo.Agent, ids: list[UUID], obs: npt.NDArray[np.float32]) -> Iterator[list[Future[int]]]:
    """A call of each actor but the first waits, because the first has acted and is expected to come back."""
    first, *others = [agent.actors([actor]) for actor in ids]
    first.act(obs)
    with ThreadPoolExecutor(len(others)) as pool:
        calls = [pool.submit(lambda handle=handle: int(handle.act(obs).action[0])) for handle in others]  # type: ignore[misc]
        until(lambda: queued(agent) == len(others))
        yield calls


def test_calls_of_many_threads_share_passes_and_none_is_mixed_up(policy: Path) -> None:
    threads, calls = 16, 200
    # Those that are through with their calls are waited for once.
    with builder(policy, threads).max_wait(0.05).build() as agent:
        ids = agent.get_actor_ids()

        def work(index: int) -> None:
            actor = agent.actors([ids[index]])
            draw = np.random.default_rng(index)
            for call in range(calls):
                choice = int(draw.integers(4))
                assert actor.act(one_hot(choice)).action.tolist() == [choice]
                actor.observe(float(choice), terminated=call == calls - 1)

        in_threads(work, threads)
        (router,) = agent.stats()["routers"]
        episodes = agent.trajectories()
    assert router["rows"] == threads * calls
    # Had each gone alone, there would be 3,200.
    assert router["batches"] < threads * calls / 2
    assert sum(router["batch_sizes"].values()) == router["batches"]
    assert len(episodes) == threads
    for episode in episodes:
        draw = np.random.default_rng(ids.index(episode.actor_id))
        choices = [int(draw.integers(4)) for _ in range(calls)]
        assert episode.actions.tolist() == choices
        assert episode.rewards.tolist() == choices
        assert episode.observations.argmax(axis=1).tolist() == choices


def test_what_is_drawn_does_not_depend_on_routers_or_threads(policy: Path) -> None:
    def drawn(routers: int, *, threads: bool) -> list[list[int]]:
        with builder(policy, 8, "categorical").routers(routers).build() as agent:
            handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
            actions: list[list[int]] = [[] for _ in handles]

            def work(index: int) -> None:
                for _ in range(50):
                    actions[index].append(int(handles[index].act(one_hot(index % 4)).action[0]))

            if threads:
                in_threads(work, 8)
            else:
                for index in range(8):
                    work(index)
        return actions

    alone = drawn(1, threads=False)
    assert alone == drawn(1, threads=True) == drawn(3, threads=True)


def test_a_call_waits_for_others_up_to_max_wait(policy: Path) -> None:
    with builder(policy, 2).max_wait(0.3).build() as agent, ThreadPoolExecutor(1) as pool:
        here, elsewhere = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        pool.submit(elsewhere.act, one_hot(0)).result(timeout=LONG)
        begin = time.monotonic()
        here.act(one_hot(0))
        waited = time.monotonic() - begin
        begin = time.monotonic()
        here.act(one_hot(0))
        again = time.monotonic() - begin
    assert waited >= 0.3
    # Who has not come is not waited for again.
    assert again < 0.3


def test_max_batch_is_kept(policy: Path) -> None:
    with builder(policy, 9).max_batch(2).build() as agent:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        in_threads(lambda index: [handles[index].act(one_hot(1)) for _ in range(50)] and None, 9)
        (router,) = agent.stats()["routers"]
    assert router["rows"] == 450
    assert {size for size, batches in router["batch_sizes"].items() if batches} <= {"1", "2"}
    assert router["batch_sizes"]["2"] > 0


def test_a_row_that_gives_nan_fails_alone(tmp_path: Path) -> None:
    with builder(models.square_root(tmp_path / "root.onnx"), 6).max_wait(LONG).build() as agent:
        ids = agent.get_actor_ids()
        with waiting(agent, ids[:5], np.array([[1, 4]], np.float32)) as good, ThreadPoolExecutor(1) as pool:
            bad = pool.submit(agent.actors([ids[5]]).act, np.array([[-1, 4]], np.float32))
            until(lambda: queued(agent) == 5)
            # The batch waits for the first alone.
            agent.actors([ids[0]]).act(np.array([[1, 4]], np.float32))
            with pytest.raises(relevo.InferenceError, match=f"actor {ids[5]}.*NaN"):
                bad.result(timeout=LONG)
            assert [call.result(timeout=LONG) for call in good] == [1] * 4
        # It stays, and may try again. Nobody is left to wait for.
        for actor in ids[:5]:
            agent.remove_actor(actor)
        assert agent.actors([ids[5]]).act(np.array([[4, 1]], np.float32)).action.tolist() == [0]
        assert agent.stats()["routers"][0]["failed"] == 1


def test_a_row_that_makes_the_pass_fail_fails_alone(tmp_path: Path) -> None:
    agent = builder(models.table(tmp_path / "table.onnx"), 3).on_error("drop_actor").max_wait(LONG).build()
    with agent:
        ids = agent.get_actor_ids()
        with waiting(agent, ids[:2], np.array([[2]], np.float32)) as good:
            with ThreadPoolExecutor(1) as pool:
                bad = pool.submit(agent.actors([ids[2]]).act, np.array([[9]], np.float32))
                until(lambda: queued(agent) == 2)
                assert agent.actors([ids[0]]).act(np.array([[3]], np.float32)).action.tolist() == [3]
                with pytest.raises(relevo.InferenceError, match=str(ids[2])):
                    bad.result(timeout=LONG)
            assert good[0].result(timeout=LONG) == 2
        until(lambda: agent.get_actor_ids() == ids[:2])
        assert agent.stats()["actors_dropped"] == 1


def test_a_vectorised_call_drops_the_actor_that_it_names_and_the_others_lose_nothing(tmp_path: Path) -> None:
    root, obs = models.square_root(tmp_path / "root.onnx"), np.array([[1, 1], [2, 2], [3, 3]], np.float32)
    with builder(root, 3, "categorical").build() as agent:
        drawn = [agent.actors().act(obs).action.tolist() for _ in range(20)]
    with builder(root, 3, "categorical").on_error("drop_actor").build() as agent:
        ids = agent.get_actor_ids()
        actors = agent.actors()
        actors.act(obs)
        with pytest.raises(relevo.InferenceError, match=f"actor {ids[1]} .row 1.; nothing was recorded"):
            actors.act(np.array([[1, 1], [-1, 4], [3, 3]], np.float32))
        # The steps before it are still open.
        actors.observe(1.0)
        assert agent.get_actor_ids() == [ids[0], ids[2]]
        actors = agent.actors()
        for first, _, third in drawn[1:]:
            assert actors.act(obs[[0, 2]]).action.tolist() == [first, third]
            actors.observe(1.0)
        actors.act(obs[[0, 2]])
        actors.observe(1.0, terminated=True)
        lengths = {episode.actor_id: (len(episode), episode.complete) for episode in agent.trajectories()}
    assert lengths == {ids[0]: (21, True), ids[1]: (1, False), ids[2]: (21, True)}


def test_two_calls_of_one_actor_at_a_time_are_refused(policy: Path) -> None:
    with builder(policy, 2).max_wait(LONG).build() as agent:
        ids = agent.get_actor_ids()
        with waiting(agent, ids, one_hot(3)) as calls:
            for handle in (agent.actors([ids[1]]), agent.actors()):
                with pytest.raises(relevo.AgentStateError, match=f"{ids[1]} still waits"):
                    handle.act(np.repeat(one_hot(0), len(handle), axis=0))
            # The first actor belongs to another handle since, so nobody waits for it.
            assert calls[0].result(timeout=LONG) == 3


def test_an_actor_that_is_removed_while_it_waits_gets_an_error(policy: Path) -> None:
    with builder(policy, 2).max_wait(LONG).build() as agent:
        ids = agent.get_actor_ids()
        with waiting(agent, ids, one_hot(3)) as calls:
            agent.remove_actor(ids[1])
            agent.actors([ids[0]]).act(one_hot(0))
            with pytest.raises(relevo.ActorNotFoundError, match="removed while its call waited"):
                calls[0].result(timeout=LONG)
        assert agent.get_actor_ids() == ids[:1]


def test_nobody_waits_for_an_actor_that_was_removed_while_it_waited(policy: Path) -> None:
    with builder(policy, 3).max_wait(LONG).build() as agent:
        first, second, third = agent.get_actor_ids()
        with waiting(agent, [first, second], one_hot(3)) as calls:
            agent.remove_actor(second)
            agent.actors([first]).act(one_hot(0))
            with pytest.raises(relevo.ActorNotFoundError):
                calls[0].result(timeout=LONG)
            # The thread of the second one is still there.
            begin = time.monotonic()
            assert agent.actors([third]).act(one_hot(1)).action.tolist() == [1]
            assert time.monotonic() - begin < LONG / 2


def test_nobody_waits_for_an_actor_that_was_removed(policy: Path) -> None:
    with builder(policy, 2).max_wait(LONG).build() as agent:
        ids = agent.get_actor_ids()
        with waiting(agent, ids, one_hot(3)) as calls:
            agent.remove_actor(ids[0])
            assert calls[0].result(timeout=LONG) == 3


def test_an_actor_that_is_renamed_or_assigned_while_it_waits_keeps_its_action(policy: Path, tmp_path: Path) -> None:
    other = models.linear(tmp_path / "other.onnx", np.eye(4)[::-1])
    with builder(policy, 2).policy("other", other, head="argmax").max_wait(LONG).build() as agent:
        first, second = agent.get_actor_ids()
        new = uuid4()
        with waiting(agent, [first, second], one_hot(3)) as calls:
            agent.set_actor_id(second, new)
            agent.assign([new], "other")
            agent.actors([first]).act(one_hot(0))
            # Both hold from the next action on.
            assert calls[0].result(timeout=LONG) == 3
        actor = agent.actors([new])
        actor.observe(1.0, terminated=True)
        agent.remove_actor(first)
        assert actor.act(one_hot(3)).action.tolist() == [0]
        actor.observe(2.0, terminated=True)
        episodes = {episode.actor_id: episode for episode in agent.trajectories()}
    assert episodes[second].actions.tolist() == [3]
    assert episodes[new].actions.tolist() == [0]


def test_shutdown_answers_a_thousand_callers(policy: Path) -> None:
    agent = builder(policy, 1_001).max_batch(2_000).max_wait(LONG).build()
    agent.start()
    with waiting(agent, agent.get_actor_ids(), one_hot(3)) as calls:
        begin = time.monotonic()
        agent.shutdown()
        for call in calls:
            with pytest.raises(relevo.AgentStateError, match="shut down"):
                call.result(timeout=LONG)
    assert time.monotonic() - begin < 10


def test_routers_are_balanced_and_scaled_under_load(policy: Path) -> None:
    with builder(policy, 10).routers(3).build() as agent:
        ids = agent.get_actor_ids()

        def placed() -> list[int]:
            return [router["actors"] for router in agent.stats()["routers"]]

        assert placed() == [4, 3, 3]
        agent.remove_actor(ids.pop(1))
        agent.remove_actor(ids.pop(3))
        assert placed() == [4, 1, 3]
        ids.append(agent.new_actor())
        assert placed() == [4, 2, 3]
        stop = threading.Event()

        def work(index: int) -> None:
            if index == len(ids):
                with stopping(stop):
                    for change in (1, 2, -5, 2) * 8:
                        agent.scale_throughput(change)
                        time.sleep(0.005)
                return
            actor = agent.actors([ids[index]])
            while not stop.is_set():
                assert actor.act(one_hot(index % 4)).action.tolist() == [index % 4]

        in_threads(work, len(ids) + 1)
        assert sorted(placed()) == [3, 3, 3]
        for change in (-3, -100):
            with pytest.raises(relevo.ConfigError, match="at least one must stay"):
                agent.scale_throughput(change)
        with pytest.raises(relevo.ConfigError, match="too many"):
            agent.scale_throughput(1_000_000)


def test_what_routers_have_counted_outlives_them(policy: Path) -> None:
    with builder(policy, 4).build() as agent:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        stop, calls = threading.Event(), [0] * 4

        def counted(key: str) -> float:
            stats = agent.stats()
            return sum(counts[key] for counts in [*stats["routers"], stats["retired_routers"]])

        def work(index: int) -> None:
            if index == 4:
                last = 0.0
                with stopping(stop):
                    for change in (3, -2, 1, -2) * 25:
                        agent.scale_throughput(change)
                        now = counted("rows")
                        assert now >= last
                        last = now
                return
            while not stop.is_set():
                handles[index].act(one_hot(index))
                calls[index] += 1

        in_threads(work, 5)
        assert counted("rows") == sum(calls)
        stats = agent.stats()
        assert stats["retired_routers"]["rows"] > 0
        assert stats["retired_routers"].keys() < stats["routers"][0].keys()
        passes = stats["policies"]["default"]
        assert counted("batches") == passes["calls"]
        assert counted("inference_seconds") == pytest.approx(passes["inference_seconds"])
    stats = agent.stats()
    assert (stats["routers"], stats["retired_routers"]["rows"]) == ([], sum(calls))
    assert sum(stats["retired_routers"]["batch_sizes"].values()) == stats["retired_routers"]["batches"]


def test_models_are_exchanged_under_load_and_each_action_is_of_its_version(tmp_path: Path) -> None:
    # Version v chooses (row + v) mod 4.
    files = [models.linear(tmp_path / f"{v}.onnx", np.roll(np.eye(4), v, axis=1)) for v in range(4)]
    with builder(files[1], 8).build() as agent:
        stop = threading.Event()
        ids = agent.get_actor_ids()

        def work(index: int) -> None:
            if index == 8:
                with stopping(stop):
                    for version in range(2, 40):
                        assert agent.update_model(files[version % 4]) == version
                return
            actor = agent.actors([ids[index]])
            last = 0
            while not stop.is_set():
                batch = actor.act(one_hot(index % 4))
                version = int(batch.policy_version[0])
                assert batch.action.tolist() == [(index + version) % 4]
                assert version >= last
                last = version

        in_threads(work, 9)


def test_deterministic_and_masked_calls_share_a_batch(policy: Path) -> None:
    obs = np.array([[0.0, 0.1, 0.2, 0.3]], np.float32)
    with builder(policy, 3, "categorical").max_wait(LONG).build() as agent:
        drawn, best, masked = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        drawn.act(obs)
        seen = set()
        for _ in range(100):
            with ThreadPoolExecutor(2) as pool:
                calls = [
                    pool.submit(best.act, obs, deterministic=True),
                    pool.submit(masked.act, obs, mask=np.array([[1, 0, 1, 0]], np.uint8)),
                ]
                until(lambda: queued(agent) == 2)
                seen.add(int(drawn.act(obs).action[0]))
                assert calls[0].result(timeout=LONG).action.tolist() == [3]
                assert calls[1].result(timeout=LONG).action[0] in {0, 2}
        assert len(seen) == 4
        assert agent.stats()["routers"][0]["batch_sizes"]["3-4"] == 100


def test_outputs_are_those_of_the_callers_own_row(tmp_path: Path) -> None:
    with builder(models.actor_critic(tmp_path / "critic.onnx"), 2).keep_outputs().max_wait(LONG).build() as agent:
        first, second = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        first.act(np.array([[1, 2]], np.float32))
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(second.act, np.array([[5, 3]], np.float32))
            until(lambda: queued(agent) == 1)
            batch = first.act(np.array([[3, 4]], np.float32))
            other = call.result(timeout=LONG)
    for result, row in ((batch, [3, 4]), (other, [5, 3])):
        assert result.outputs is not None
        assert result.outputs["logits"].tolist() == [row]
        assert result.outputs["value"].tolist() == [[sum(row)]]
        assert result.value is not None
        assert result.value.tolist() == [sum(row)]


def test_recording_is_paused_and_resumed_at_the_next_action(policy: Path) -> None:
    with builder(policy, 2).build() as agent:
        first, second = [agent.actors([actor]) for actor in agent.get_actor_ids()]

        def step(actor: relevo.Actors, choice: int, *, last: bool = False) -> None:
            actor.act(one_hot(choice))
            actor.observe(float(choice), terminated=last)

        step(first, 0)
        agent.pause_recording()
        assert not agent.recording
        step(first, 1)
        agent.resume_recording()
        assert agent.recording
        step(first, 2)  # still in the episode of which a step is missing
        step(first, 3, last=True)
        step(first, 1)
        step(first, 2, last=True)
        step(second, 3, last=True)  # did not act meanwhile
        episodes = [(episode.actions.tolist(), episode.complete) for episode in agent.trajectories()]
    assert sorted(episodes) == [([0], False), ([1, 2], True), ([3], True)]
    with builder(policy, 1).keep_in_memory(0).build() as agent, pytest.raises(relevo.ConfigError, match="nothing to"):
        agent.pause_recording()


@pytest.mark.parametrize(
    ("match", "make"),
    [
        ("max_wait must be at least 0", lambda: relevo.AgentBuilder().max_wait(-0.1)),
        ("max_wait must be at least 0", lambda: relevo.AgentBuilder().max_wait(float("nan"))),
        ("max_wait must be at least 0", lambda: relevo.AgentBuilder().max_wait("1")),  # type: ignore[arg-type]
        ("max_batch must be at least 1", lambda: relevo.AgentBuilder().max_batch(0)),
        ("on_error must be", lambda: relevo.AgentBuilder().on_error("ignore")),  # type: ignore[arg-type]
    ],
)
def test_settings_that_make_no_sense(match: str, make: Callable[[], object]) -> None:
    with pytest.raises(relevo.ConfigError, match=match):
        make()


def test_a_million_actors_can_wait_for_their_turn(policy: Path) -> None:
    with builder(policy, 1_000_000).keep_in_memory(0).build() as agent:
        ids = agent.get_actor_ids()
        assert agent.actors([ids[-1]]).act(one_hot(2)).action.tolist() == [2]
        assert agent.stats()["routers"][0]["actors"] == 1_000_000


def test_the_interpreter_ends_without_shutdown_while_callers_wait(policy: Path) -> None:
    program = f"""
        import threading, numpy as np, relevo
        agent = relevo.AgentBuilder().default_model({str(policy)!r}, head="argmax").actor_count(9).max_wait(600).build()
        agent.start()
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        obs = np.zeros((1, 4), np.float32)
        handles[0].act(obs)
        for handle in handles[1:]:
            threading.Thread(target=handle.act, args=(obs,), daemon=True).start()
        while agent.stats()["routers"][0]["queue"] < 8:
            pass
        print("ending")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "ending\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_fork_in_the_middle_of_traffic(policy: Path) -> None:
    program = f"""
        import asyncio, faulthandler, os, sys, threading, warnings
        import numpy as np, relevo
        warnings.simplefilter("ignore", DeprecationWarning)
        def build():
            return relevo.AgentBuilder().default_model({str(policy)!r}, head="argmax").actor_count(17).build()
        def play(handle):
            while not stop.is_set():
                handle.act(obs)
        async def wait(handle):
            while not stop.is_set():
                await handle.act_async(obs)
        async def wait_all(handles):
            await asyncio.gather(*map(wait, handles))
        obs, stop, agent = np.zeros((1, 4), np.float32), threading.Event(), build()
        agent.start()
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        busy = [threading.Thread(target=play, args=(handle,), daemon=True) for handle in handles[:8]]
        busy.append(threading.Thread(target=lambda: asyncio.run(wait_all(handles[8:16])), daemon=True))
        for thread in busy:
            thread.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(30, exit=True)
                for act in (handles[16].act, handles[0].act):
                    try:
                        act(obs)
                    except relevo.AgentStateError as error:
                        assert "forked" in str(error)
                    else:
                        os._exit(3)
                with build() as own:
                    first, second = [own.actors([actor]) for actor in own.get_actor_ids()[:2]]
                    first.act(obs)
                    async def own_loop():
                        await asyncio.wait_for(second.act_async(obs), 20)
                    asyncio.run(own_loop())
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            handles[16].act(obs)
        stop.set()
        for thread in busy:
            thread.join()
        agent.shutdown()
        print("ended")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "ended\n"


def test_one_thread_for_many_actors_waits_for_nobody(policy: Path) -> None:
    with builder(policy, 16).max_wait(LONG).build() as agent:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        # A thread is expected back for the actor that it called for last, and not for those before.
        for call in range(100):
            assert handles[call % 16].act(one_hot(call % 4)).action.tolist() == [call % 4]


def test_a_thread_that_has_ended_is_not_waited_for(policy: Path) -> None:
    with builder(policy, 2).max_wait(LONG).build() as agent:
        first, second = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        thread = threading.Thread(target=first.act, args=(one_hot(1),))
        thread.start()
        thread.join()
        assert second.act(one_hot(2)).action.tolist() == [2]


def test_first_calls_of_one_actor_do_not_get_past_each_other(policy: Path) -> None:
    with builder(policy, 12).max_wait(0.02).build() as agent:
        ids = agent.get_actor_ids()
        for actor in ids[1:]:
            keep = agent.actors([ids[0]])
            keep.act(one_hot(0))
            handle, answers = agent.actors([actor]), []

            def work(index: int, handle: relevo.Actors = handle, answers: list[int] = answers) -> None:
                if index == 3:
                    for _ in range(20):
                        agent.set_actor_id(ids[0], ids[0])
                        agent.assign([ids[0]], "default")
                    return
                with suppress(relevo.AgentStateError):
                    answers.append(int(handle.act(one_hot(index)).action[0]))

            in_threads(work, 4)
            assert answers
            handle.observe(1.0, terminated=True)
        episodes = agent.trajectories()
        rows = agent.stats()["routers"][0]["rows"]
    # One after the other, each call of an actor is a step of its own.
    assert sum(len(episode) for episode in episodes if episode.actor_id != ids[0]) == rows - 11


def test_assigning_while_a_call_begins_never_shifts_other_rows(policy: Path, tmp_path: Path) -> None:
    wide = models.linear(tmp_path / "wide.onnx", np.eye(6)[:, :4])
    with builder(policy, 6).policy("wide", wide, head="argmax").build() as agent:
        ids, stop = agent.get_actor_ids(), threading.Event()

        def work(index: int) -> None:
            if index == 0:
                with stopping(stop):
                    for turn in range(400):
                        agent.assign([ids[1]], "wide" if turn % 2 == 0 else "default")
            actor = agent.actors([ids[index]])
            while not stop.is_set():
                choice = int(np.random.default_rng().integers(4))
                obs = np.zeros((1, 6 if index == 1 and choice % 2 else 4), np.float32)
                obs[0, choice] = 1
                try:
                    assert actor.act(obs).action.tolist() == [choice]
                except relevo.ContractError:
                    assert index == 1

        in_threads(work, 6)
