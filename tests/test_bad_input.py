"""Bad input gets a typed error that says what was expected, what came and what to do; nothing recorded is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import models
import numpy as np
import pytest
from onnx import TensorProto, helper

import relevo

OBS = np.zeros((2, 2), np.float32)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(2))


@pytest.fixture
def agent(policy: Path) -> relevo.Agent:
    agent = relevo.AgentBuilder().default_model(policy).actor_count(2).build()
    agent.start()
    return agent


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros((2, 3), np.float32), r"float32 of shape \(2, 2\), but float32 of shape \(2, 3\) came"),
        (np.zeros((2, 2)), r"but float64 of shape \(2, 2\) came; convert it by numpy.asarray\(…, numpy.float32\)"),
        (np.zeros((2, 2), np.int32), "int32"),
        (np.zeros(2, np.float32), r"of shape \(2,\) came"),
        (np.zeros((2, 2, 1), np.float32), r"\(2, 2, 1\)"),
        (np.zeros((3, 2), np.float32), "one row for each of the 2 actors"),
        (np.zeros((0, 2), np.float32), "one row for each of the 2 actors"),
        ([["a", "b"], ["c", "d"]], "float32"),
        (None, "float32.* but object .* came; give an array of float32"),
        ({"other": OBS, "more": OBS}, r"`obs`.*missing.*other.*gymnasium\.wrappers"),
        ({1: OBS, 2: OBS}, "`obs`.*missing"),
        ([[0.0], [0.0, 1.0]], "array of numbers"),
        ((), "observes one array, but 0 came"),
        (np.array([[0, 0], [0, np.nan]], np.float32), r"row 1.*NaN at element 1"),
    ],
)
def test_observations(agent: relevo.Agent, obs: object, message: str) -> None:
    actors = agent.actors()
    with pytest.raises(relevo.ContractError, match=message):
        actors.act(obs)  # type: ignore[arg-type]
    assert len(actors.act(OBS)) == 2


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((2, 3), bool), "a column for each of the 2 actions"),
        (np.ones(2, bool), "a column for each action"),
        (np.ones((3, 2), bool), "a row for each of the 2 actors"),
        (np.array([[True, True], [False, False]]), "allows no action"),
        (np.array([["a", "b"], ["c", "d"]]), "truth values"),
        (np.array([[1, 0], [np.nan, 1]]), r"actor [0-9a-f-]{36} \(row 1\) holds NaN in column 0"),
        (np.array([[1, np.nan], [1, 1]], np.float32), r"\(row 0\) holds NaN in column 1"),
        (np.array([[1, np.nan], [1, 1]], np.float16), r"\(row 0\) holds NaN in column 1"),
    ],
)
def test_masks(agent: relevo.Agent, mask: np.ndarray, message: str) -> None:
    with pytest.raises(relevo.ContractError, match=message):
        agent.actors().act(OBS, mask=mask)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float32])
def test_masks_of_any_dtype_forbid_by_logit(agent: relevo.Agent, dtype: type) -> None:
    actors = agent.actors()
    for _ in range(50):
        batch = actors.act(np.array([[0, 9], [0, 9]], np.float32), mask=np.array([[1, 0], [1, 1]], dtype))
        assert batch.action[0] == 0
        assert batch.log_prob is not None
        assert batch.log_prob[0] == 0


def test_a_mask_with_nan_stops_a_single_call_before_it_is_made(agent: relevo.Agent) -> None:
    actor = agent.actors(agent.get_actor_ids()[1:])
    with pytest.raises(relevo.ContractError, match=rf"actor {actor.ids[0]} \(row 0\) holds NaN in column 1"):
        actor.act(OBS[1:], mask=[[1, np.nan]])
    assert agent.stats()["routers"][0]["rows"] == 0
    assert actor.act(OBS[1:], mask=[[1.0, 0.0]]).action.tolist() == [0]


def test_a_mask_that_the_policy_cannot_use(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "raw.onnx", np.eye(2), output="actions")
    agent = relevo.AgentBuilder().default_model(path).actor_count(2).build()
    with agent, pytest.raises(relevo.ContractError, match="can use none"):
        agent.actors().act(OBS, mask=np.ones((2, 2), bool))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward": np.zeros(3)}, r"shape \(2,\)"),
        ({"reward": np.zeros((2, 1))}, r"\(2, 1\)"),
        ({"reward": "x"}, "reward must be a number"),
        ({"reward": np.array([1j, 2j])}, "reward must be a number"),
        ({"reward": 0.0, "terminated": True, "final_obs": np.full((2, 2), np.nan, np.float32)}, r"final_obs\[0\].*NaN"),
        ({"reward": 0.0, "terminated": np.zeros(3, bool)}, "terminated must be bool"),
        ({"reward": 0.0, "truncated": np.zeros(2)}, "truncated must be bool"),
        ({"reward": 0.0, "terminated": True, "final_obs": np.zeros((2, 3), np.float32)}, "final_obs"),
        ({"reward": 0.0, "terminated": True, "final_obs": np.zeros((2, 2))}, "final_obs must be float32"),
        ({"reward": 0.0, "terminated": True, "final_obs": [None]}, "2 entries"),
        ({"reward": 0.0, "terminated": True, "final_obs": [None, np.zeros(3, np.float32)]}, r"final_obs\[1\]"),
    ],
)
def test_outcomes(agent: relevo.Agent, arguments: dict[str, object], message: str) -> None:
    actors = agent.actors()
    actors.act(OBS)
    with pytest.raises(relevo.ContractError, match=message):
        actors.observe(**arguments)  # type: ignore[arg-type]
    actors.observe(1.0, terminated=True)
    assert [len(episode) for episode in agent.trajectories()] == [1, 1]


def test_the_wrong_moment(policy: Path) -> None:
    agent = relevo.AgentBuilder().default_model(policy).actor_count(2).build()
    actors = agent.actors()
    with pytest.raises(relevo.AgentStateError, match="has not started"):
        actors.act(OBS)
    agent.start()
    with pytest.raises(relevo.AgentStateError, match="started before"):
        agent.start()
    with pytest.raises(relevo.AgentStateError, match="no open step"):
        actors.observe(0.0)
    actors.act(OBS)
    actors.observe(0.0)
    with pytest.raises(relevo.AgentStateError, match="no open step"):
        actors.observe(0.0)
    agent.shutdown()
    agent.shutdown()
    for call in (lambda: actors.act(OBS), lambda: actors.observe(0.0)):
        with pytest.raises(relevo.AgentStateError, match="shut down"):
            call()
    assert len(agent.trajectories()) == 2


def test_ids(agent: relevo.Agent) -> None:
    ids = agent.get_actor_ids()
    unknown = uuid4()
    calls: list[Callable[[], object]] = [
        lambda: agent.actors([unknown]),
        lambda: agent.request_action([unknown], OBS[:1]),
        lambda: agent.flag_last_action([unknown], 1.0),
        lambda: agent.get_model_version([unknown]),
        lambda: agent.remove_actor(unknown),
        lambda: agent.set_actor_id(unknown, uuid4()),
        lambda: agent.assign([unknown], "default"),
    ]
    for call in calls:
        with pytest.raises(relevo.ActorNotFoundError, match=str(unknown)):
            call()
    with pytest.raises(KeyError):
        agent.actors([unknown])
    with pytest.raises(relevo.ConfigError, match="twice"):
        agent.actors([ids[0], ids[0]])
    with pytest.raises(relevo.ConfigError, match="at least one actor"):
        agent.actors([])
    with pytest.raises(relevo.ConfigError, match="unique"):
        agent.set_actor_id(ids[0], ids[1])
    with pytest.raises(relevo.ContractError, match="one row for each of the 2 actors"):
        agent.request_action(ids, np.zeros((3, 2), np.float32))
    handle = agent.actors()
    agent.remove_actor(ids[1])
    with pytest.raises(relevo.ActorNotFoundError, match="removed"):
        handle.act(OBS)


def failing(path: Path) -> Path:
    """A policy that fails where the first observation is 13, and gives NaN where it is negative."""
    return models.save(
        path,
        [
            # Row 13 of a table with ten rows does not exist.
            helper.make_node("Cast", ["obs"], ["index"], to=TensorProto.INT64),
            helper.make_node("Abs", ["index"], ["positive"]),
            helper.make_node("Gather", ["table", "positive"], ["row"]),
            helper.make_node("Sqrt", ["obs"], ["root"]),
            helper.make_node("Add", ["root", "row"], ["logits"]),
        ],
        {"obs": ["batch", 2]},
        {"logits": ["batch", 2]},
        {"table": np.zeros(10, np.float32)},
    )


def test_a_policy_that_fails_in_mid_run(tmp_path: Path) -> None:
    path = failing(tmp_path / "failing.onnx")
    with relevo.AgentBuilder().default_model(path).actor_count(2).record(tmp_path / "run").build() as agent:
        actors = agent.actors()
        for _ in range(3):
            actors.act(OBS)
            actors.observe(1.0)
            with pytest.raises(relevo.InferenceError, match="`default`"):
                actors.act(OBS + np.float32(13))
            with pytest.raises(relevo.InferenceError, match=str(agent.get_actor_ids()[1])):
                actors.act(np.array([[1, 1], [-1, 1]], np.float32))
        actors.act(OBS)
        actors.observe(1.0, terminated=True)
        assert agent.stats()["policies"]["default"]["errors"] == 6
    assert [len(episode) for episode in relevo.open_run(tmp_path / "run").episodes()] == [4, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"hello, I am a text file\n" * 40, "ONNX"), (None, "no such file")],
)
def test_model_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(relevo.ModelLoadError, match=message) as caught:
        relevo.ModelModule.load_from_path(path)
    assert "bad.onnx" in str(caught.value)


def test_a_truncated_model_file(policy: Path) -> None:
    whole = policy.read_bytes()
    for size in range(1, len(whole), 7):
        policy.write_bytes(whole[:size])
        with pytest.raises(relevo.ModelLoadError, match=r"policy\.onnx"):
            relevo.ModelModule.load_from_path(policy)


def test_settings(policy: Path, tmp_path: Path) -> None:
    builder = relevo.AgentBuilder

    def built(**arguments: object) -> object:
        return builder().default_model(policy, **arguments).build()  # type: ignore[arg-type]

    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (relevo.ConfigError, "needs a model", lambda: builder().build()),
        (relevo.ConfigError, "routers must be at least 1", lambda: builder().routers(0)),
        (relevo.ConfigError, "actor_count must be at least 0", lambda: builder().actor_count(-1)),
        (relevo.ConfigError, "threads must be at least 1", lambda: builder().threads(0)),
        (relevo.ConfigError, "seed must be", lambda: builder().seed(-1)),
        (relevo.ConfigError, "whole number, but '4' .str. came", lambda: builder().actor_count("4")),  # type: ignore[arg-type]
        (relevo.ConfigError, "2\\*\\*63", lambda: builder().actor_count(2**70)),
        (relevo.ConfigError, "threads must be between", lambda: builder().threads(2**40).default_model(policy).build()),
        (relevo.ConfigError, "too many", lambda: builder().default_model(policy).actor_count(2**40).build()),
        (relevo.ConfigError, "argmax, categorical", lambda: built(head="best")),
        (relevo.ConfigError, "given twice", lambda: builder().default_model(policy).default_model(policy)),
        (relevo.ConfigError, "no such tensor", lambda: built(roles={"x": "logits"})),
        (relevo.ConfigError, "no role of an output", lambda: built(roles={"logits": "x"})),
        (relevo.ConfigError, "format must be one of", lambda: builder().record(tmp_path, format="xml")),  # type: ignore[arg-type]
        (relevo.ContractError, "gaussian", lambda: built(head="gaussian")),
        (
            relevo.DeviceUnavailableError,
            "cuda:7",
            lambda: builder().default_device("cuda:7").default_model(policy).build(),
        ),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()
    with builder().default_model(policy).build() as agent, pytest.raises(relevo.ConfigError, match="none"):
        agent.scale_throughput(-1)


def test_every_error_is_also_a_builtin() -> None:
    bases = {
        relevo.ConfigError: ValueError,
        relevo.ModelLoadError: OSError,
        relevo.ContractError: ValueError,
        relevo.ActorNotFoundError: KeyError,
        relevo.InferenceError: RuntimeError,
        relevo.DeviceUnavailableError: RuntimeError,
        relevo.AgentStateError: RuntimeError,
        relevo.TrajectoryError: OSError,
    }
    for error, builtin in bases.items():
        assert issubclass(error, relevo.RelevoError)
        assert issubclass(error, builtin)


def run_script(script: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_gets_an_error_and_ends(policy: Path, tmp_path: Path) -> None:
    script = """
        import faulthandler, os, sys, threading, warnings
        import numpy as np, relevo
        def play(handle):
            while not stop.is_set():
                handle.act(obs)
                handle.observe(1.0, terminated=True)
        warnings.simplefilter("ignore", DeprecationWarning)
        obs = np.zeros((2, 2), np.float32)
        agent = relevo.AgentBuilder().default_model(sys.argv[1]).actor_count(2).record(sys.argv[2]).build()
        agent.start()
        actors = agent.actors()
        stop = threading.Event()
        busy = [threading.Thread(target=play, args=(agent.actors(agent.new_actors(2)),)) for _ in range(2)]
        for thread in busy:
            thread.start()
        actors.act(obs)
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(30, exit=True)
            calls = [
                lambda: actors.act(obs), lambda: actors.observe(0.0), agent.flush, agent.trajectories, agent.stats,
                agent.get_actor_ids, agent.actors, lambda: agent.new_actor(), lambda: agent.update_model(sys.argv[1]),
            ]
            for call in calls:
                try:
                    call()
                except relevo.AgentStateError as error:
                    assert "forked" in str(error)
                else:
                    os._exit(3)
            own = relevo.AgentBuilder().default_model(sys.argv[1]).actor_count(2).build()
            with own:
                own.actors().act(obs)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        for thread in busy:
            thread.join()
        actors.observe(1.0, terminated=True)
        agent.shutdown()
        ids = set(actors.ids)
        print(sum(len(episode) for episode in relevo.open_run(sys.argv[2]).episodes() if episode.actor_id in ids))
    """
    done = run_script(script, policy, tmp_path / "run")
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
    assert "panicked" not in done.stderr


def test_an_agent_that_nobody_shuts_down_still_writes_its_run(policy: Path, tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np, relevo
        agent = relevo.AgentBuilder().default_model(sys.argv[1]).actor_count(2).record(sys.argv[2]).build()
        agent.start()
        actors = agent.actors()
        for step in range(100):
            actors.act(np.zeros((2, 2), np.float32))
            actors.observe(1.0, terminated=step % 10 == 9)
    """
    done = run_script(script, policy, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert [len(episode) for episode in relevo.open_run(tmp_path / "run").episodes()] == [10] * 20


def test_interrupting_a_loop_is_quick(policy: Path) -> None:
    script = """
        import signal, sys, threading, time, os
        import numpy as np, relevo
        agent = relevo.AgentBuilder().default_model(sys.argv[1]).actor_count(1000).build()
        agent.start()
        actors = agent.actors()
        obs = np.zeros((1000, 2), np.float32)
        pressed = []
        def press():
            time.sleep(0.3)
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press).start()
        try:
            while True:
                actors.act(obs)
        except KeyboardInterrupt:
            print(time.perf_counter() - pressed[0])
        agent.shutdown()
    """
    done = run_script(script, policy)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.1
