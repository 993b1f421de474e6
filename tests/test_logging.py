"""The engine's events in Python's `logging`: what arrives, when, and that no handler can hold the engine up."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import models
import numpy as np
import pytest
from onnx import helper

import relevo
from relevo import log

OBS = np.zeros((2, 4), np.float32)
WAIT = 30.0


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(4)[:, :2])


def builder(policy: Path) -> relevo.AgentBuilder:
    return relevo.AgentBuilder().default_model(policy).actor_count(2).seed(9)


class Calling(logging.Handler):
    """Keeps records, and calls a function with each."""

    def __init__(self, function: Callable[[logging.LogRecord], object] = id) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._function = function
        self._arrived = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._arrived:
            self.records.append(record)
            self._arrived.notify_all()
        self._function(record)

    def wait_for(self, words: str) -> logging.LogRecord:
        """The first record with these words, once it has come."""

        def found() -> logging.LogRecord | None:
            return next((record for record in self.records if words in record.getMessage()), None)

        with self._arrived:
            record = self._arrived.wait_for(found, WAIT)
        assert record is not None, [record.getMessage() for record in self.records]
        return record

    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@contextmanager
def listening(handler: Calling, level: int = logging.DEBUG, name: str = "relevo") -> Iterator[Calling]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield handler
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def run_python(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_a_call_logs_is_there_when_it_returns(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with listening(Calling(), logging.INFO) as heard:
        agent = builder(policy).record(out).build()
        built = len(heard.records)
        agent.start()
        agent.update_model(policy)
        agent.shutdown()
    records = {record.getMessage(): record for record in heard.records if record.threadName == "MainThread"}
    loaded = records[f"the model {policy} (onnx) is loaded"]
    assert (loaded.name, loaded.levelname) == ("relevo.policy", "INFO")
    assert loaded.relevo == {  # type: ignore[attr-defined]
        "path": str(policy),
        "format": "onnx",
        "device": "cpu",
        "threads": 1,
        "sha256": relevo.ModelModule.load_from_path(policy).sha256,
        "recurrent": False,
    }
    assert loaded.pathname.endswith("loaded.rs")
    assert loaded.lineno > 0
    started = records["the agent has started (actors: 2)"]
    assert (started.name, started.relevo) == ("relevo.runtime", {"actors": 2, "seed": 9})  # type: ignore[attr-defined]
    opened = records[f"the run folder {out} is open"]
    assert opened.name == "relevo.trajectory"
    assert opened.relevo["run"] == relevo.open_run(out).info["run_id"]  # type: ignore[attr-defined]
    swapped = records[f"policy `default` serves version 2 from now on: {policy}"]
    assert swapped.relevo == {"policy": "default", "version": 2, "path": str(policy)}  # type: ignore[attr-defined]
    assert "the agent shuts down" in records
    # In the order in which it happened, each when its call was done.
    order = heard.messages().index
    assert 0 < built <= order(opened.getMessage()) < order(started.getMessage())


def test_what_threads_of_the_engine_log_arrives(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with listening(Calling(), logging.INFO) as heard, builder(policy).record(out).build() as agent:
        actors = agent.actors()
        for step in range(3):
            actors.act(OBS)
            actors.observe(1.0, terminated=step == 2)
        agent.shutdown()
        closed = heard.wait_for(f"the run folder {out} is closed: 6 steps in 2 episodes")
    assert closed.threadName == "relevo-recorder"
    assert closed.thread is None
    assert closed.relevo == {"path": str(out), "episodes": 2, "steps": 6}  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not let go of a file that is open")
def test_a_disk_that_fails_is_an_error(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with listening(Calling()) as heard:
        agent = builder(policy).record(out).build()
        agent.start()
        actors = agent.actors()
        shutil.rmtree(out)
        actors.act(OBS)
        actors.observe(1.0, terminated=True)
        with pytest.raises(relevo.TrajectoryError) as error:
            agent.shutdown()
        record = heard.wait_for("recording to disk has stopped: ")
    assert (record.name, record.levelname) == ("relevo.trajectory", "ERROR")
    # At the first of the two episodes.
    assert record.relevo == {"lost": 1}  # type: ignore[attr-defined]
    assert record.getMessage().partition(": ")[2] in str(error.value)


def test_a_library_that_is_loaded_is_told(policy: Path) -> None:
    code = """
        import logging, sys
        logging.basicConfig(level="INFO", stream=sys.stdout, format="%(name)s|%(relevo)s")
        import relevo
        relevo.ModelModule.load_from_path(sys.argv[1])
    """
    done = run_python(code, policy)
    assert (done.returncode, done.stderr) == (0, "")
    name, _, fields = done.stdout.splitlines()[0].partition("|")
    assert name == "relevo.onnx"
    assert "onnxruntime" in fields
    assert "'version': '1." in fields


def one_row(path: Path) -> Path:
    """A model for a batch of 1 that would mix the rows of a larger one."""
    largest = helper.make_node("ReduceMax", ["obs"], ["logits"], axes=[0], keepdims=1)
    return models.save(path, [largest], {"obs": [1, 2]}, {"logits": [1, 2]})


def test_a_model_that_takes_one_row_at_a_time_is_a_warning(tmp_path: Path) -> None:
    path = one_row(tmp_path / "one.onnx")
    with listening(Calling(), logging.WARNING) as heard:
        relevo.ModelModule.load_from_path(path)
    (record,) = heard.records
    assert (record.name, record.levelname) == ("relevo.policy", "WARNING")
    told = record.relevo  # type: ignore[attr-defined]
    assert told["path"] == str(path)
    assert "declared with a batch of 1, and not rewritten for more" in told["reason"]


def test_a_level_may_change_at_any_time(policy: Path) -> None:
    agent = builder(policy).build()
    logger = logging.getLogger("relevo.policy")
    with listening(Calling(), logging.WARNING) as heard, agent:
        agent.update_model(policy)
        assert heard.messages() == []
        logger.setLevel(logging.INFO)
        agent.update_model(policy)
        logger.setLevel(logging.NOTSET)
        agent.update_model(policy)
        logging.getLogger("relevo").setLevel(logging.INFO)
        agent.update_model(policy)
        logging.disable(logging.CRITICAL)
        agent.update_model(policy)
        logging.disable(logging.NOTSET)
    versions = [record.relevo["version"] for record in heard.records if "from now on" in record.getMessage()]  # type: ignore[attr-defined]
    assert versions == [3, 5]


def test_nothing_is_printed_unless_logging_is_set_up(policy: Path, tmp_path: Path) -> None:
    code = """
        import logging, sys
        if sys.argv[1] == "set up": logging.basicConfig()
        import relevo
        relevo.ModelModule.load_from_path(sys.argv[2])
        relevo.AgentBuilder().default_model(sys.argv[3]).record(sys.argv[4]).build().start()
    """
    one = one_row(tmp_path / "one.onnx")
    silent = run_python(code, "no", one, policy, tmp_path / "a")
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    warned = run_python(code, "set up", one, policy, tmp_path / "b")
    assert warned.returncode == 0
    (line,) = warned.stderr.splitlines()
    assert line.startswith(f"WARNING:relevo.policy:the model {one} takes one row at a time")


def test_an_exit_without_shutdown_loses_no_event(policy: Path, tmp_path: Path) -> None:
    code = """
        import logging, sys
        logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
        import relevo
        agent = relevo.AgentBuilder().default_model(sys.argv[1]).record(sys.argv[2]).build()
        agent.start()
    """
    done = run_python(code, policy, tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "the agent shuts down" in lines
    assert f"the run folder {tmp_path / 'run'} is closed: 0 steps in 0 episodes" in lines


def test_a_filter_that_hangs_does_not_keep_the_program_from_ending(policy: Path, tmp_path: Path) -> None:
    code = """
        import logging, sys, threading
        import relevo, relevo.log
        relevo.log.LONGEST_WAIT = 0.2
        # A filter: a handler holds a lock of its own meanwhile, for which `logging` itself waits at the end.
        def hang(record):
            if record.threadName == "relevo-recorder":
                print("hangs", flush=True)
                threading.Event().wait()
        logging.getLogger("relevo.trajectory").addFilter(hang)
        logging.getLogger("relevo").setLevel("INFO")
        agent = relevo.AgentBuilder().default_model(sys.argv[1]).record(sys.argv[2]).build()
        agent.start()
    """
    done = run_python(code, policy, tmp_path / "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hangs\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_logs_on_its_own(policy: Path, tmp_path: Path) -> None:
    code = """
        import logging, os, sys, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import relevo
        lines = []
        class Keeping(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())
        logging.getLogger("relevo").addHandler(Keeping())
        logging.getLogger("relevo").setLevel("DEBUG")
        def agent(folder):
            return relevo.AgentBuilder().default_model(sys.argv[1]).record(f"{sys.argv[2]}/{folder}").build()
        first = agent("parent")
        first.start()
        going = True
        def traffic():
            # Agents that are let go of log through the queue.
            while going:
                relevo.AgentBuilder().default_model(sys.argv[1]).keep_in_memory(0).build().start()
        threads = [threading.Thread(target=traffic) for _ in range(2)]
        for thread in threads: thread.start()
        for number in range(20):
            child = os.fork()
            if child == 0:
                lines.clear()
                with agent(f"child-{number}"):
                    pass
                import relevo.log
                relevo.log.finish()
                missing = [words for words in ("is open", "has started", "shuts down", "is closed")
                           if not any(words in line for line in lines)]
                print(*missing, end="", flush=True)
                os._exit(len(missing))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        going = False
        for thread in threads: thread.join()
    """
    done = run_python(code, policy, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_does_not_tell_what_its_parent_logged(policy: Path) -> None:
    code = """
        import logging, os, sys, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import relevo, relevo.log
        lines, held_up, go_on = [], threading.Event(), threading.Event()
        class Keeping(logging.Handler):
            def emit(self, record):
                lines.append(f"{record.threadName == 'MainThread'} {record.getMessage()}")
        def hold_up(record):
            if record.threadName != "MainThread":
                held_up.set()
                go_on.wait()
            return True
        logging.getLogger("relevo").addHandler(Keeping())
        logging.getLogger("relevo").setLevel("INFO")
        logging.getLogger("relevo.runtime").addFilter(hold_up)
        def let_go():
            # An agent that goes logs through the queue.
            relevo.AgentBuilder().default_model(sys.argv[1]).keep_in_memory(0).build().start()
        def told():
            relevo.log.finish()
            return lines.count("False the agent shuts down")
        let_go()
        held_up.wait()
        let_go()
        let_go()
        child = os.fork()
        if child == 0:
            logging.getLogger("relevo.runtime").removeFilter(hold_up)
            let_go()
            os._exit(told())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ")
        go_on.set()
        print(told())
    """
    done = run_python(code, policy)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 3\n", "")


def test_a_handler_that_raises_harms_nobody(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Raising(logging.Handler):
        seen = threading.Event()

        def emit(self, record: logging.LogRecord) -> None:
            if record.threadName == "relevo-recorder":
                self.seen.set()
            raise ZeroDivisionError(record.getMessage())

    handler = Raising()
    logger = logging.getLogger("relevo")
    logger.addHandler(handler)
    try:
        logger.setLevel(logging.INFO)
        with builder(policy).record(tmp_path / "run").build() as agent:
            actors = agent.actors()
            actors.act(OBS)
            actors.observe(1.0, terminated=True)
        assert handler.seen.wait(WAIT)
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
    assert len(list(relevo.open_run(tmp_path / "run").episodes())) == 2
    shown = capsys.readouterr().err
    assert "--- Logging error ---" in shown
    assert "ZeroDivisionError: the agent has started" in shown
    # The queue goes on after it.
    with listening(Calling(), logging.INFO) as heard:
        with builder(policy).record(tmp_path / "again").build():
            pass
        heard.wait_for("is closed")


def test_ctrl_c_inside_a_handler_reaches_the_caller(policy: Path) -> None:
    def interrupt(record: logging.LogRecord) -> None:
        if "has started" in record.getMessage():
            raise KeyboardInterrupt

    agent = builder(policy).build()
    with listening(Calling(interrupt), logging.INFO), pytest.raises(KeyboardInterrupt):
        agent.start()
    assert agent.running
    agent.shutdown()


def test_a_handler_may_call_the_agent(policy: Path, tmp_path: Path) -> None:
    agent = builder(policy).record(tmp_path / "run").build()
    actors = agent.actors()
    steps = []

    def call_back(_record: logging.LogRecord) -> None:
        agent.get_model_version()
        if agent.running:
            agent.flush()
            actors.act(OBS)
            actors.observe(1.0)
        steps.append(agent.stats()["steps_recorded"])

    # In a thread of its own, so that a deadlock fails the test and does not hang it.
    def use() -> None:
        with agent:
            for _ in range(20):
                agent.update_model(policy)
                actors.act(OBS)
                actors.observe(1.0, terminated=True)

    with listening(Calling(call_back)) as heard:
        thread = threading.Thread(target=use, daemon=True)
        thread.start()
        thread.join(WAIT)
        assert not thread.is_alive()
        heard.wait_for("is closed")
    # From `start`, and one at least for each update.
    assert len(steps) > 20


def test_events_that_nobody_takes_are_counted(policy: Path) -> None:
    go_on = threading.Event()

    # A filter: a handler would hold up the main thread as well, by its lock.
    def hold_up(record: logging.LogRecord) -> bool:
        return record.threadName == "MainThread" or go_on.wait(WAIT)

    model = relevo.ModelModule.load_from_path(policy)
    agents = 3_000
    logger = logging.getLogger("relevo.runtime")
    logger.addFilter(hold_up)
    with listening(Calling(), logging.INFO) as heard:
        for _ in range(agents):
            agent = relevo.AgentBuilder().default_model(model).keep_in_memory(0).build()
            agent.start()
            # It is shut down as it goes, and logs that through the queue.
            del agent
        go_on.set()
        told = heard.wait_for("events were dropped")
        # Behind all that is in the queue.
        with builder(policy).record(policy.with_name("run")).build():
            pass
        heard.wait_for("is closed")
    logger.removeFilter(hold_up)
    arrived = sum(record.getMessage() == "the agent shuts down" for record in heard.records) - 1
    assert (told.name, told.levelname) == ("relevo", "WARNING")
    dropped = sum(record.relevo["dropped"] for record in heard.records if "were dropped" in record.getMessage())  # type: ignore[attr-defined]
    assert dropped > 0
    assert arrived + dropped == agents


def test_an_agent_is_built_where_no_thread_starts(policy: Path, tmp_path: Path) -> None:
    code = """
        import sys, threading
        import relevo
        def refuse(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        threading.Thread.start = refuse
        with relevo.AgentBuilder().default_model(sys.argv[1]).record(sys.argv[2]).build():
            print("runs")
    """
    done = run_python(code, policy, tmp_path / "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")


def test_the_logger_has_a_null_handler() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("relevo").handlers)
    assert log.LONGEST_WAIT > 0
