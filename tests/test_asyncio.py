"""Single calls from asyncio: batched by the turn of the loop, completed together, cancelled without a trace."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from agents import LONG, builder, one_hot

import relevo

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(4))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "asyncio":
        return asyncio.run
    return pytest.importorskip("uvloop", reason="uvloop is not installed: it has no Windows wheels").run  # type: ignore[no-any-return]


@pytest.fixture
def slow_policy(tmp_path: Path) -> Path:
    """A policy whose pass is too long for the loop's thread: a router runs it."""
    return models.slow(tmp_path / "slow.onnx")


def router(agent: relevo.Agent) -> dict[str, Any]:
    (only,) = agent.stats()["routers"]
    return only  # type: ignore[no-any-return]


def test_tasks_share_a_pass_and_none_is_mixed_up(policy: Path, run: Run) -> None:
    tasks, calls = 50, 40
    with builder(policy, tasks).build() as agent:
        ids = agent.get_actor_ids()

        async def work(index: int) -> None:
            actor, draw = agent.actors([ids[index]]), np.random.default_rng(index)
            for call in range(calls):
                choice = int(draw.integers(4))
                batch = await actor.act_async(one_hot(choice))
                assert batch.action.tolist() == [choice]
                actor.observe(float(choice), terminated=call == calls - 1)

        async def main() -> None:
            await asyncio.gather(*(work(index) for index in range(tasks)))

        run(main())
        assert router(agent)["rows"] == tasks * calls
        # About one for each turn; a slow machine lets the router take some before.
        assert router(agent)["batches"] < tasks * calls / 4
        episodes = agent.trajectories()
    assert len(episodes) == tasks
    for episode in episodes:
        draw = np.random.default_rng(ids.index(episode.actor_id))
        assert episode.actions.tolist() == [int(draw.integers(4)) for _ in range(calls)]


def test_a_router_runs_a_long_pass_and_the_loop_goes_on(slow_policy: Path, run: Run) -> None:
    tasks = 200
    with builder(slow_policy, tasks).build() as agent:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        ticks = 0

        async def work(index: int) -> None:
            for call in range(5):
                batch = await handles[index].act_async(one_hot((index + call) % 512, 512))
                assert batch.action.tolist() == [(index + call) % 512]

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async def main() -> None:
            ticking = asyncio.create_task(tick())
            await asyncio.gather(*(work(index) for index in range(tasks)))
            ticking.cancel()

        run(main())
        assert router(agent)["rows"] == tasks * 5
    # A loop that was blocked for each pass would turn little more than once for each of them.
    assert ticks > 20


def test_a_cancelled_call_frees_its_actor_and_leaves_no_trace(policy: Path, run: Run) -> None:
    with builder(policy, 1).build() as agent:
        actor = agent.actors()

        async def main() -> None:
            async def call() -> Any:
                return await actor.act_async(one_hot(1))

            task = asyncio.create_task(call())
            await asyncio.sleep(0)
            # It has called, and the loop has not turned since.
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await task
            pending = actor.act_async(one_hot(2))
            with pytest.raises(relevo.AgentStateError, match="still waits"):
                actor.act_async(one_hot(0))
            with pytest.raises(relevo.AgentStateError, match="still waits"):
                actor.act(one_hot(0))
            assert pending.cancel()  # type: ignore[attr-defined]
            assert not pending.cancel()  # type: ignore[attr-defined]
            assert pending.cancelled()  # type: ignore[attr-defined]
            batch = await actor.act_async(one_hot(3))
            assert batch.action.tolist() == [3]
            actor.observe(1.0, terminated=True)

        run(main())
        (episode,) = agent.trajectories()
    assert episode.actions.tolist() == [3]


def test_it_is_taken_for_a_future(policy: Path, run: Run) -> None:
    with builder(policy, 4).build() as agent:
        first, second, third, fourth = [agent.actors([actor]) for actor in agent.get_actor_ids()]

        async def main() -> None:
            loop = asyncio.get_running_loop()
            one = await asyncio.wait_for(first.act_async(one_hot(1)), timeout=LONG)
            two, three = await asyncio.gather(second.act_async(one_hot(2)), third.act_async(one_hot(3)))
            four = await asyncio.shield(fourth.act_async(one_hot(0)))
            assert [int(batch.action[0]) for batch in (one, two, three, four)] == [1, 2, 3, 0]

            pending: Any = first.act_async(one_hot(2))
            assert asyncio.isfuture(pending)
            assert pending.get_loop() is loop
            with pytest.raises(asyncio.InvalidStateError, match="not there yet"):
                pending.result()
            called: list[object] = []
            pending.add_done_callback(called.append)
            pending.add_done_callback(called.append)
            assert pending.remove_done_callback(called.append) == 2
            pending.add_done_callback(called.append)
            done, _ = await asyncio.wait([asyncio.ensure_future(pending)], timeout=LONG)
            assert done == {pending}
            assert called == [pending]
            assert pending.done()
            assert pending.exception() is None
            assert (await pending).action.tolist() == pending.result().action.tolist() == [2]
            assert repr(pending) == "PendingAction(done)"

        run(main())


def test_a_time_out_cancels_the_call(slow_policy: Path, run: Run) -> None:
    with builder(slow_policy, 1).build() as agent:
        actor = agent.actors()

        async def main() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(actor.act_async(one_hot(5, 512)), timeout=0)
            assert (await actor.act_async(one_hot(7, 512))).action.tolist() == [7]

        run(main())


def test_errors_reach_the_task_whose_row_they_are(tmp_path: Path, run: Run) -> None:
    with builder(models.square_root(tmp_path / "root.onnx"), 3).build() as agent:
        ids = agent.get_actor_ids()

        async def main() -> None:
            rows = ([1, 4], [-1, 4], [4, 1])
            calls = [
                agent.actors([actor]).act_async(np.array([row], np.float32))
                for actor, row in zip(ids, rows, strict=True)
            ]
            left, failed, right = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(failed, relevo.InferenceError)
            assert str(ids[1]) in str(failed)
            assert [left.action.tolist(), right.action.tolist()] == [[1], [0]]  # type: ignore[union-attr]
            with pytest.raises(relevo.ContractError, match="NaN"):
                await agent.actors([ids[0]]).act_async(np.full((1, 2), np.nan, np.float32))

        run(main())


def test_a_callback_that_raises_is_told_to_the_loop(policy: Path, run: Run) -> None:
    with builder(policy, 2).build() as agent:
        first, second = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        told: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
            pending: Any = first.act_async(one_hot(1))
            pending.add_done_callback(lambda _: 1 / 0)
            assert (await second.act_async(one_hot(2))).action.tolist() == [2]
            assert (await pending).action.tolist() == [1]

        run(main())
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]


def test_tasks_keep_their_context(policy: Path, run: Run) -> None:
    name: contextvars.ContextVar[int] = contextvars.ContextVar("name")
    with builder(policy, 8).build() as agent:
        ids = agent.get_actor_ids()

        async def work(index: int) -> None:
            name.set(index)
            for _ in range(5):
                await agent.actors([ids[index]]).act_async(one_hot(index % 4))
                assert name.get() == index

        async def main() -> None:
            await asyncio.gather(*(work(index) for index in range(8)))

        run(main())


def test_several_loops_and_threads_share_an_agent(policy: Path, run: Run) -> None:
    with builder(policy, 40).build() as agent:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        errors: list[BaseException] = []

        async def work(index: int) -> None:
            for call in range(50):
                batch = await handles[index].act_async(one_hot((index + call) % 4))
                assert batch.action.tolist() == [(index + call) % 4]

        async def main(first: int) -> None:
            await asyncio.gather(*(work(index) for index in range(first, first + 10)))

        def thread(first: int) -> None:
            try:
                if first < 30:
                    run(main(first))
                else:
                    for call in range(200):
                        assert handles[first].act(one_hot(call % 4)).action.tolist() == [call % 4]
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=thread, args=(first,)) for first in (0, 10, 20, 30, 31, 32)]
        for started in threads:
            started.start()
        for started in threads:
            started.join(LONG)
            assert not started.is_alive()
        assert not errors
        # The same handles in a loop of their own, later.
        run(main(0))


def test_a_loop_that_is_closed_gives_its_actors_back(policy: Path) -> None:
    def leave(actor: relevo.Actors) -> asyncio.AbstractEventLoop:
        """Makes a call in a loop that is stopped before it turns, and closed."""
        loop = asyncio.new_event_loop()

        async def call() -> None:
            kept.append(actor.act_async(one_hot(1)))
            loop.stop()

        task = loop.create_task(call())
        loop.run_forever()
        assert task.done()
        loop.close()
        return loop

    kept: list[Any] = []
    with builder(policy, 2).build() as agent:
        first, second = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        loop = leave(first)
        assert second.act(one_hot(2)).action.tolist() == [2]
        assert first.act(one_hot(3)).action.tolist() == [3]
        first.observe(1.0, terminated=True)
        assert [episode.actions.tolist() for episode in agent.trajectories()] == [[3]]
        assert asyncio.run(_await_in(first)).action.tolist() == [0]

        # Also for a handle on several, in which it has not acted yet, or by another handle since.
        for _ in range(2):
            leave(first)
            assert agent.actors().act(np.eye(4, dtype=np.float32)[[1, 2]]).action.tolist() == [1, 2]
        for call in kept:
            assert (call.done(), call.cancelled()) == (True, True)
            with pytest.raises(asyncio.CancelledError):
                call.result()

        # One that is gone, too.
        loop = leave(first)
        kept.clear()
        del loop
        gc.collect()
        assert asyncio.run(_await_in(first)).action.tolist() == [0]


async def _await_in(actor: relevo.Actors) -> relevo.ActionBatch:
    return await actor.act_async(one_hot(0))


def test_shutdown_answers_the_tasks_that_wait(slow_policy: Path, run: Run) -> None:
    agent = builder(slow_policy, 1_000).max_batch(2_000).max_wait(LONG).build()
    agent.start()
    handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]

    async def main() -> list[Any]:
        calls = [handle.act_async(one_hot(9, 512)) for handle in handles]
        agent.shutdown()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), LONG)

    begin = time.monotonic()
    answers = run(main())
    assert time.monotonic() - begin < 10
    assert len(answers) == 1_000
    for answer in answers:
        assert isinstance(answer, relevo.AgentStateError)
        assert "shut down" in str(answer)


def test_a_handle_on_several_actors_acts_in_the_executor(policy: Path, run: Run) -> None:
    with builder(policy, 3).build() as agent:

        async def main() -> None:
            obs = np.eye(4, dtype=np.float32)[[1, 2, 3]]
            pending = agent.actors().act_async(obs)
            obs[:] = 0  # what it observes was copied
            assert (await pending).action.tolist() == [1, 2, 3]

        run(main())


def test_request_action_async(policy: Path, run: Run) -> None:
    with builder(policy, 2).build() as agent:
        first, second = agent.get_actor_ids()

        async def main() -> None:
            for reward in (1.0, 2.0):
                left, right = await asyncio.gather(
                    agent.request_action_async([first], one_hot(1), reward=reward),
                    agent.request_action_async([second], one_hot(2), reward=reward),
                )
                assert [left.action.tolist(), right.action.tolist()] == [[1], [2]]
            both = await agent.request_action_async([first, second], one_hot(3), None, 3.0)
            assert both.action.tolist() == [3, 3]
            agent.flag_last_action([first, second], 4.0)

        run(main())
        rewards = [episode.rewards.tolist() for episode in agent.trajectories()]
    # The reward is what the previous action earned, so the first one is nobody's.
    assert rewards == [[2.0, 3.0, 4.0]] * 2


def test_without_a_loop_there_is_nothing_to_await_in(policy: Path) -> None:
    with builder(policy, 1).build() as agent:
        with pytest.raises(RuntimeError, match="no running event loop"):
            agent.actors().act_async(one_hot(0))
        assert agent.actors().act(one_hot(0)).action.tolist() == [0]


def test_a_call_that_has_ended_cannot_be_cancelled_by_another_of_its_pass(policy: Path, run: Run) -> None:
    with builder(policy, 2).max_wait(LONG).build() as agent:
        first, second = [agent.actors([actor]) for actor in agent.get_actor_ids()]

        async def main() -> None:
            one: Any = first.act_async(one_hot(1))
            two: Any = second.act_async(one_hot(2))
            cancelled = []
            one.add_done_callback(lambda _: cancelled.append(two.cancel()))
            assert (await two).action.tolist() == [2]
            # Its step is recorded, so it is too late.
            assert cancelled == [False]
            assert not two.cancelled()

        run(main())


def test_an_interrupt_in_a_callback_leaves_no_call_behind(policy: Path, tmp_path: Path) -> None:
    other = models.linear(tmp_path / "other.onnx", np.eye(4))
    with builder(policy, 4).policy("other", other, head="argmax").build() as agent:
        ids = agent.get_actor_ids()
        agent.assign(ids[2:], "other")
        handles = [agent.actors([actor]) for actor in ids]
        loop = asyncio.new_event_loop()

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        async def call() -> list[Any]:
            pending: list[Any] = [handle.act_async(one_hot(3)) for handle in handles]
            for each in pending:
                each.add_done_callback(interrupt)
            return pending

        task = loop.create_task(call())
        for _ in range(5):
            try:
                loop.run_until_complete(asyncio.sleep(0.05))
            except KeyboardInterrupt:
                continue
        assert [each.result().action.tolist() for each in task.result()] == [[3]] * 4
        loop.close()


def test_a_failed_call_leaves_no_garbage(policy: Path) -> None:
    with builder(models.square_root(policy.with_name("root.onnx")), 1).build() as agent:
        actor, alive = agent.actors(), []

        async def fail() -> None:
            pending: Any = actor.act_async(np.array([[-1, -1]], np.float32))
            alive.append(weakref.ref(pending))
            with pytest.raises(relevo.InferenceError):
                await pending

        async def main() -> None:
            for _ in range(20):
                await fail()

        asyncio.run(main())
    gc.collect()
    assert not [reference for reference in alive if reference() is not None]


def test_tasks_that_call_again_at_once_do_not_starve_the_loop(policy: Path, run: Run) -> None:
    # Full batches run on the router's thread while the loop's makes the next calls: there always is one that has ended.
    with builder(policy, 600).max_batch(32).build() as agent:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]

        async def main() -> float:
            running = True

            async def work(handle: relevo.Actors) -> None:
                while running:
                    await handle.act_async(one_hot(1))

            tasks = [asyncio.create_task(work(handle)) for handle in handles]
            begin = time.monotonic()
            for _ in range(10):
                await asyncio.sleep(0.02)
            late = time.monotonic() - begin
            running = False
            await asyncio.gather(*tasks)
            return late

        assert run(main()) < 5


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Warnings of what asyncio collects are errors, so it must happen within the test."""
    yield
    gc.collect()
