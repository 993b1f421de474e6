"""The command line, started as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import helper

import relevo
from relevo.cli.wording import for_command_line

COMMAND = [sys.executable, "-c", "from relevo.cli import main; main()"]
BALANCE = [[-0.1, 0.1], [-0.3, 0.3], [-3.0, 3.0], [-1.0, 1.0]]


def relevo_command(*arguments: str | int | Path, columns: int = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"},
    )


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", BALANCE)


def test_run_with_json(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = relevo_command(
        "run", "--policy", policy, "--env", "CartPole-v1", "--actors", "8", "--steps", "12000", "--head", "argmax",
        "--seed", "5", "--out", out, "--json",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["mean_return"] == 500
    assert (report["actors"], report["seed"], report["interrupted"]) == (8, 5, False)
    assert report["steps"] == report["steps_recorded"] == 12_000
    episodes = list(relevo.open_run(out).episodes())
    assert report["episodes_recorded"] == len(episodes)
    assert report["episodes"] == sum(episode.complete for episode in episodes) == 24
    assert report["bytes"] == sum(file.stat().st_size for file in out.rglob("*") if file.is_file())


def test_run_for_people(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = relevo_command(
        "run", "--policy", policy, "--env", "CartPole-v1", "--episodes", "5", "--deterministic", "--out", out
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "500.00 ± 0.00" in done.stdout
    assert str(out) in done.stdout.replace("\n", "")


def test_the_same_seed_gives_the_same_run(policy: Path) -> None:
    arguments = ("run", "--policy", policy, "--env", "CartPole-v1", "--steps", "6000", "--sample", "--json", "--seed")
    one, same, other = (json.loads(relevo_command(*arguments, seed).stdout) for seed in ("1", "1", "2"))
    chance = ("episodes", "mean_return", "std_return", "mean_length")
    assert [one[name] for name in chance] == [same[name] for name in chance]
    assert [one[name] for name in chance] != [other[name] for name in chance]


def test_workers_change_nothing_but_who_steps(policy: Path, tmp_path: Path) -> None:
    arguments = ("run", "--policy", policy, "--env", "CartPole-v1", "--actors", "6", "--steps", "3000", "--seed", "1")
    alone, with_workers = (
        json.loads(relevo_command(*arguments, "--json", "--out", tmp_path / str(len(workers)), *workers).stdout)
        for workers in ((), ("--workers", "2"))
    )
    assert (alone.pop("workers"), with_workers.pop("workers")) == (None, 2)
    timing = {"seconds", "steps_per_second", "out", "bytes"}
    assert {name: alone[name] for name in alone.keys() - timing} == {
        name: with_workers[name] for name in with_workers.keys() - timing
    }
    assert (alone["worker_restarts"], alone["episodes_cut"]) == (0, 0)


def test_roles_say_what_names_do_not(tmp_path: Path) -> None:
    policy = models.save(
        tmp_path / "unnamed.onnx",
        [helper.make_node("MatMul", ["onnx::MatMul_0", "weights"], ["17"])],
        {"onnx::MatMul_0": ["batch", 4]},
        {"17": ["batch", 2]},
        {"weights": np.array(BALANCE, np.float32)},
    )
    roles = ("--role", "17=logits", "--role", "onnx::MatMul_0=observation")
    shown = json.loads(relevo_command("inspect", policy, *roles, "--json").stdout)
    assert [output["role"] for output in shown["outputs"]] == ["logits"]
    done = relevo_command("run", "--policy", policy, "--env", "CartPole-v1", "--steps", "64", "--json", *roles)
    assert (done.returncode, done.stderr) == (0, "")


def test_inspect(policy: Path) -> None:
    done = relevo_command("inspect", policy)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("obs", "observation", "float32 [batch, 4]", "logits", "categorical", "dynamic", "relevo run"):
        assert words in done.stdout


def test_inspect_with_json(policy: Path) -> None:
    done = relevo_command("inspect", policy, "--json")
    shown = json.loads(done.stdout)
    model = relevo.ModelModule.load_from_path(policy)
    assert shown["sha256"] == model.sha256
    assert shown["default_head"] == "categorical"
    assert shown["inputs"][0]["shape"] == ["batch", 4]
    assert shown["inputs"][0]["row_shape"] == [4]
    assert shown["inputs"][0]["role"] == "observation"


def test_inspect_tells_how_to_name_what_an_output_holds(tmp_path: Path) -> None:
    """As Godot RL's files have it: `output` is logits of some branches, or means and deviations."""
    policy = models.linear(tmp_path / "godot.onnx", np.ones((3, 14)), "output")
    done = relevo_command("inspect", policy, columns=400)
    assert (done.returncode, done.stderr) == (0, "")
    (note,) = json.loads(relevo_command("inspect", policy, "--json").stdout)["notes"]
    assert note.startswith("by default `output` is taken for the action itself")
    # What the note says of the name is not another thing than what the role's reason says.
    assert relevo.ModelModule.load_from_path(policy).contract.outputs[0].reason in note
    for words in (
        "`output` is taken for the action itself",
        "branches of 14 choices in all",
        "log-deviations side by side, 7 each: --head gaussian",
        "action: float32 [14]",
    ):
        assert words in done.stdout
    for options, shape, choices, head in (
        (("--head", "gaussian"), [7], "", "gaussian"),
        (("--head", "categorical", "--branches", "2,5,7"), [3], "2 × 5 × 7", "categorical"),
        (("--head", "argmax", "--device", "cpu"), [], "14", "argmax"),
    ):
        shown = json.loads(relevo_command("inspect", policy, *options, "--json").stdout)
        assert (shown["head"], shown["default_head"]) == (head, "raw")
        assert shown["actions"]["action"]["shape"] == shape
        done = relevo_command("inspect", policy, *options, columns=400)
        assert choices in done.stdout
        assert "is taken for the action itself" not in done.stdout
        assert f"--out runs/a {' '.join(options)}" in done.stdout
    assert_fails(relevo_command("inspect", policy, "--head", "argmax", "--branches", "2,3"), "5 logits", "14")
    assert_fails(relevo_command("inspect", policy, "--device", "cuda:77"), "cuda:77")


def test_a_clear_name_raises_no_doubt(tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", np.ones((3, 4)), "actions")
    assert "is taken for the action itself" not in relevo_command("inspect", policy, columns=400).stdout


def test_inspect_shows_what_is_remembered(tmp_path: Path) -> None:
    policy = models.lstm(tmp_path / "lstm.onnx")
    shown = json.loads(relevo_command("inspect", policy, "--json").stdout)
    state = {"dtype": "float32", "row_shape": [1, 6], "batch_axis": 1, "initial": "zeros"}
    assert shown["states"] == [{"input": f"{name}_in", "output": f"{name}_out", **state} for name in "hc"]
    done = relevo_command("inspect", policy)
    assert (done.returncode, done.stderr) == (0, "")
    assert "h_in <- h_out: float32" in done.stdout
    assert "relevo run" in done.stdout
    # The outputs call it by no name: two of them might be the next value.
    unclear = models.save(
        tmp_path / "unclear.onnx",
        [
            helper.make_node("Add", ["obs", "h_in"], ["action"]),
            helper.make_node("Neg", ["action"], ["left"]),
            helper.make_node("Abs", ["action"], ["right"]),
        ],
        {"obs": ["batch", 1], "h_in": ["batch", 1]},
        {"action": ["batch", 1], "left": ["batch", 1], "right": ["batch", 1]},
    )
    assert "--role h_in=state:OUTPUT" in relevo_command("inspect", unclear).stdout
    assert "`left` (float32 (1,), other)" in relevo_command("run", "--policy", unclear, "--env", "CartPole-v1").stderr
    named = relevo_command("inspect", unclear, "--role", "h_in=state:left", "--json")
    assert [(state["input"], state["output"]) for state in json.loads(named.stdout)["states"]] == [("h_in", "left")]


def test_version_and_help() -> None:
    assert relevo_command("--version").stdout == f"relevo {relevo.__version__}\n"
    assert "relevo inspect policy.onnx" in relevo_command("--help").stdout
    assert "--steps 200000 --out runs/a" in relevo_command("run", "--help").stdout
    assert relevo_command("inspect", "--help").returncode == 0


def assert_fails(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    message = " ".join(done.stderr.split())
    for word in words:
        assert word in message
    assert "Traceback" not in message
    assert "panicked" not in message
    if code == 1:
        assert message.startswith("error: ")


def test_an_unknown_environment(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_fails(
        relevo_command("run", "--policy", policy, "--env", "CartPol-v1", "--out", out, "--json"),
        "did you mean CartPole",
    )
    assert not out.exists()


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    assert_fails(relevo_command("run", "--policy", broken, "--env", "CartPole-v1"), str(broken))
    assert_fails(relevo_command("inspect", broken), str(broken))
    assert_fails(relevo_command("inspect", tmp_path / "absent.onnx"), "absent.onnx")


def test_a_folder_that_cannot_be_written(policy: Path, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    done = relevo_command("run", "--policy", policy, "--env", "CartPole-v1", "--out", occupied / "run")
    assert_fails(done, str(occupied))


def test_a_folder_that_holds_a_run(policy: Path, tmp_path: Path) -> None:
    arguments = ("run", "--policy", policy, "--env", "CartPole-v1", "--steps", "640", "--out", tmp_path / "run")
    assert relevo_command(*arguments).returncode == 0
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert_fails(relevo_command(*arguments), str(tmp_path / "run"))
    assert before == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}


def test_an_action_space_that_does_not_fit(policy: Path) -> None:
    # Pendulum observes 3 numbers and takes one; Acrobot observes 6 and takes one of 3 actions.
    assert_fails(relevo_command("run", "--policy", policy, "--env", "Acrobot-v1"), "one of 3", "chooses from 2")
    three = models.linear(policy.with_name("three.onnx"), np.eye(3))
    assert_fails(relevo_command("run", "--policy", three, "--env", "Pendulum-v1"), "float32 of shape (1,)", "int64")


LOCAL = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Local-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""


@pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["in this process", "in a worker"])
@pytest.mark.parametrize("command", ["relevo", "python -m relevo"])
def test_an_environment_in_the_current_folder(
    command: str, workers: tuple[str, ...], policy: Path, tmp_path: Path
) -> None:
    (tmp_path / "local_environments.py").write_text(LOCAL)
    program = shutil.which("relevo", path=str(Path(sys.executable).parent))
    assert program is not None
    started = [program] if command == "relevo" else [sys.executable, "-m", "relevo"]
    arguments = ("run", "--policy", str(policy), "--env", "local_environments:Local-v0", "--actors", "2", *workers)
    done = subprocess.run(
        [*started, *arguments, "--steps", "100", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--head", "best"), "best"),
        (("--actors", "0"), "--actors"),
        (("--steps", "5", "--episodes", "5"), "not both"),
        (("--role", "obs"), "name=role"),
    ],
)
def test_a_command_that_is_not_understood(arguments: tuple[str, ...], words: str, policy: Path) -> None:
    assert_fails(relevo_command("run", "--policy", policy, "--env", "CartPole-v1", *arguments), words, code=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--head", "gaussian"), "gaussian"),
        (("--role", "nobody=observation"), "nobody"),
        (("--role", "obs=boss"), "boss"),
        (("--device", "toaster"), "toaster"),
    ],
)
def test_a_setting_that_does_not_fit_the_model(arguments: tuple[str, ...], words: str, policy: Path) -> None:
    assert_fails(relevo_command("run", "--policy", policy, "--env", "CartPole-v1", *arguments), words)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_closes_the_run(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "run", "--policy", policy, "--env", "CartPole-v1", "--steps", "1000000000", "--out", out, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    # The first segment grows once steps have been recorded.
    while sum(file.stat().st_size for file in out.glob("segments/*.arrow")) < 200_000:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "")
    report = json.loads(stdout)
    assert report["interrupted"]
    episodes = list(relevo.open_run(out).episodes())
    steps = sum(len(episode) for episode in episodes)
    assert steps == report["steps_recorded"]
    # At most the step that was interrupted was recorded, but not counted.
    assert 0 <= steps - report["steps"] <= report["actors"]
    assert sum(episode.complete for episode in episodes) == report["episodes"]


def test_importing_the_library_is_light() -> None:
    code = "import sys, relevo; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"relevo", "numpy"} <= set(loaded)
    assert {"rich", "typer", "click", "gymnasium", "onnxruntime", "onnx", "pyarrow", "torch"} & set(loaded) == set()


@pytest.mark.parametrize("wrong", ["x", "=3", "x=a", "x=3;4"])
def test_a_shape_that_is_none_is_a_slip_of_the_keyboard(policy: Path, wrong: str) -> None:
    done = relevo_command("inspect", policy, "--shape", wrong)
    assert done.returncode == 2
    assert "name=sizes" in " ".join(done.stderr.split())


def declared(path: Path, weights: np.ndarray[Any, Any], text: str) -> Path:
    """A linear policy with what `relevo.export` would write into it."""
    model = onnx.load(models.linear(path, weights, "action"))
    model.metadata_props.add(key="relevo.json", value=text)
    onnx.save(model, path)
    return path


def test_a_run_is_gone_on_with(policy: Path, tmp_path: Path) -> None:
    arguments = ("run", "--policy", policy, "--env", "CartPole-v1", "--actors", 2, "--steps", 100)
    out = ("--out", tmp_path / "run")
    assert relevo_command(*arguments, *out, "--resume").returncode == 0
    assert_fails(relevo_command(*arguments, *out), "go on with it by --resume")
    done = relevo_command(*arguments, *out, "--resume", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(len(episode) for episode in relevo.open_run(tmp_path / "run").episodes()) == 200
    assert_fails(relevo_command(*arguments, "--resume"), "name it by --out", code=2)


def test_the_bounds_of_a_file_are_used_and_shown(tmp_path: Path) -> None:
    text = json.dumps({"bounds": {"low": [-2.0], "high": [2.0], "how": "tanh"}})
    path = declared(tmp_path / "policy.onnx", np.full((3, 1), 50.0), text)
    shown = json.loads(relevo_command("inspect", path, "--json").stdout)
    assert shown["bounds"] == {"low": [-2.0], "high": [2.0], "how": "tanh"}
    assert shown["normalization"] == {}
    assert "Bounds(low=[-2.0], high=[2.0], how='tanh'), from the file" in relevo_command("inspect", path).stdout
    run = ("run", "--policy", path, "--env", "Pendulum-v1", "--actors", 2, "--steps", 20)
    done = relevo_command(*run)
    assert (done.returncode, done.stderr) == (0, "")
    path.write_bytes(path.read_bytes().replace(b'"tanh"', b'"bent"'))
    assert_fails(relevo_command("inspect", path), "`bent` is no way to bring actions into bounds", "export it again")


def test_actions_outside_the_space_are_told_of_once(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "policy.onnx", np.full((3, 1), 50.0), "action")
    run = ("run", "--policy", path, "--env", "Pendulum-v1", "--actors", 2, "--steps", 20)
    done = relevo_command(*run)
    assert done.returncode == 0
    assert done.stderr.count("warning: the policy's actions leave the action space Box(-2.0, 2.0, (1,), float32)") == 1
    assert "by --bounds HOW, as the policy was trained" in done.stderr
    done = relevo_command(*run, "--bounds", "clip")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_doubtful_head_is_a_warning_of_a_run(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "policy.onnx", np.zeros((3, 2)), "output")
    told = relevo_command("run", "--policy", path, "--env", "Pendulum-v1", "--actors", 1, "--steps", 2).stderr
    assert "warning: policy `default`: by default `output` is taken for the action itself" in told
    assert "--head gaussian" in told


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('name it by roles={"h": "state:OUTPUT"}', "name it by --role h=state:OUTPUT"),
        ('roles={"…": "observation"}.', "--role NAME=observation."),
        ("name the output by roles={…}", "name the output by --role NAME=ROLE"),
        ('by shapes={"x": (…,), "mask": (6,)}, or', "by --shape x=… --shape mask=6, or"),
        ('shapes={"camera": (3, 64, 64)}', "--shape camera=3,64,64"),
        ('or load it with device="cpu"', "or load it with --device cpu"),
        ('choose head="categorical", branches=[3, 2]', "choose --head categorical, --branches 3,2"),
        ('another head: head="gaussian" or head="raw"', "another head: --head gaussian or --head raw"),
        ("go on with it by resume=True, or", "go on with it by --resume, or"),
        ("the rest is as it was: a={b} [c]", "the rest is as it was: a={b} [c]"),
    ],
)
def test_messages_name_options_instead_of_arguments(said: str, shown: str) -> None:
    assert for_command_line(said) == shown


def test_what_cannot_be_done_is_told_in_options(policy: Path, tmp_path: Path) -> None:
    assert_fails(relevo_command("inspect", policy, "--device", "cuda:77"), "--device cpu")
    assert_fails(relevo_command("inspect", policy, "--head", "gaussian"), "--role NAME=ROLE")
    run = ("run", "--policy", policy, "--actors", 1, "--steps", 1)
    # Logits of two choices are no means: no head is named that the policy could not have.
    done = relevo_command(*run, "--env", "Pendulum-v1")
    assert_fails(done, "choose a policy that was made for this environment")
    assert "--head" not in done.stderr
    means = models.linear(tmp_path / "means.onnx", np.zeros((4, 2)), "mean")
    done = relevo_command("run", "--policy", means, "--env", "CartPole-v1", "--actors", 1, "--steps", 1)
    assert_fails(done, "choose a policy with 2 logits")
    assert "--head" not in done.stderr
