"""`relevo doctor`: what it finds, what it advises, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import relevo
from relevo.cli import machine, trials

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's files")


def doctor(
    *arguments: str, before: str = "", folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`relevo doctor`, in a program that runs `before` first."""
    return subprocess.run(
        [sys.executable, "-c", f"{dedent(before)}\nfrom relevo.cli import main; main()", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={**os.environ, **variables},
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_a_machine_that_has_everything(tmp_path: Path) -> None:
    done = doctor("--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["ready"] is True
    assert told["versions"]["relevo"] == relevo.__version__
    assert told["versions"]["numpy"] == np.__version__
    assert told["machine"]["processors"] == relevo._core.processors()
    tried = findings(done)
    for name in ("onnx on cpu", "environments", "the main job"):
        assert tried[name]["state"] == "ok", tried[name]
        assert tried[name]["remedy"] is None
    library = tried["onnx on cpu"]["found"].splitlines()[-1].removeprefix("in ")
    assert list(Path(library).glob("*onnxruntime*"))
    gpu = tried["onnx on coreml" if sys.platform == "darwin" else "onnx on cuda:0"]
    assert gpu["state"] in {"ok", "absent"}
    if gpu["state"] == "absent":
        assert "ONNX Runtime" in gpu["found"]
        # Nothing that can be installed for Python helps without the driver.
        assert (gpu["remedy"] is None) == gpu["found"].endswith("NVIDIA's driver is not here.")


def test_the_json_has_these_names() -> None:
    told = json.loads(doctor("--json").stdout)
    assert list(told) == ["ready", "versions", "machine", "findings"]
    assert list(told["versions"]) == [
        "relevo", "python", "numpy", "onnxruntime", "onnxruntime-gpu", "gymnasium", "torch",
    ]  # fmt: skip
    assert list(told["machine"]) == [
        "os", "architecture", "processors", "processors_there", "memory", "onnxruntime_variable",
    ]  # fmt: skip
    for finding in told["findings"]:
        assert list(finding) == ["name", "state", "found", "remedy"]
        assert finding["state"] in {"ok", "fails", "mind", "absent"}
    names = [finding["name"] for finding in told["findings"] if finding["name"] != "open files"]
    # Devices depend on the machine and on what is installed.
    others = [
        name for name in names if re.fullmatch(r"\w+ on (cpu|mps|coreml|cuda:\d+)", name) and name != "onnx on cpu"
    ]
    assert "onnx on coreml" in others or "onnx on cuda:0" in others
    assert names == [
        "onnx on cpu", "environments", "the main job", "temporary folder", "current folder", "shared memory",
        "processes", *others, "torchscript",
    ]  # fmt: skip


def test_it_fits_80_columns_without_colour() -> None:
    done = doctor(COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "\x1b" not in done.stdout
    assert "The main job runs here" in done.stdout


@pytest.mark.parametrize(
    ("package", "failing", "remedy"),
    [("onnxruntime", "onnx on cpu", 'pip install "relevo[onnx]"'), ("gymnasium", "environments", '"relevo[envs]"')],
)
def test_a_package_that_is_missing(package: str, failing: str, remedy: str) -> None:
    hidden = f"import sys; sys.modules[{package!r}] = None"
    done = doctor("--json", before=hidden)
    assert done.returncode == 1
    assert json.loads(done.stdout)["ready"] is False
    tried = findings(done)
    assert [name for name, finding in tried.items() if finding["state"] == "fails"] == [failing, "the main job"]
    assert remedy in tried[failing]["remedy"]
    assert failing in tried["the main job"]["found"]
    assert done.stderr.startswith(f"error: the main job cannot run here, because of: {failing};")
    shown = doctor(before=hidden, COLUMNS="80")
    assert shown.returncode == 1
    assert remedy in " ".join(shown.stdout.split())
    assert "The main job runs here" not in shown.stdout


def test_a_variable_that_leads_nowhere(tmp_path: Path) -> None:
    done = doctor("--json", ORT_DYLIB_PATH=str(tmp_path / "absent.so"))
    assert done.returncode == 1
    finding = findings(done)["onnx on cpu"]
    assert finding["found"].startswith("the environment variable ORT_DYLIB_PATH names")
    assert finding["remedy"].startswith("correct it, or unset it")
    assert json.loads(done.stdout)["machine"]["onnxruntime_variable"] == str(tmp_path / "absent.so")


def test_a_library_that_is_broken(tmp_path: Path) -> None:
    (tmp_path / "libonnxruntime.so").write_text("no library")
    done = doctor("--json", ORT_DYLIB_PATH=str(tmp_path))
    assert done.returncode == 1
    assert "reinstall" in findings(done)["onnx on cpu"]["remedy"]
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_few_open_files_are_no_failure() -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    done = doctor("--json", before=few)
    assert done.returncode == 0
    finding = findings(done)["open files"]
    assert (finding["state"], finding["remedy"]) == ("mind", "ulimit -n 1024")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    done = doctor("--json", folder=here, TMPDIR=str(temporary), TEMP=str(temporary))
    assert str(temporary) in findings(done)["temporary folder"]["found"]
    assert str(here) in findings(done)["current folder"]["found"]
    # ONNX Runtime 1.32 writes a file of its own there, as `import onnxruntime` shows.
    assert [path.name for path in (*here.iterdir(), *temporary.iterdir()) if path.name != ".ses"] == []


def test_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = trials._place("current folder", tmp_path / "absent")
    assert (finding.state, finding.remedy) == ("mind", "record elsewhere: --out DIR")

    def nowhere(**_options: object) -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(trials.tempfile, "TemporaryDirectory", nowhere)
    tried = {finding.name: finding for finding in trials.findings()}
    assert {tried[name].state for name in ("onnx on cpu", "the main job", "temporary folder")} == {"fails"}
    assert "TMPDIR" in str(tried["temporary folder"].remedy)


@LINUX
def test_a_container_bounds_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    unbounded = machine.machine().memory
    assert unbounded is not None
    assert unbounded > 1 << 20
    (tmp_path / "memory").mkdir()
    # One of the two is read, whichever version of control groups there is.
    files = (tmp_path / "memory.max", tmp_path / "memory" / "memory.limit_in_bytes")
    for text, expected in (("max", unbounded), ("9223372036854771712", unbounded), ("1048576", 1 << 20)):
        for file in files:
            file.write_text(f"{text}\n")
        assert machine.machine().memory == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform has no affinity")
def test_processors_are_those_that_may_be_used() -> None:
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    assert json.loads(doctor("--json", before=one).stdout)["machine"]["processors"] == 1


def test_its_policy_is_what_it_is_said_to_be() -> None:
    model = onnx.load_from_string(trials.POLICY)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    (weights,) = model.graph.initializer
    assert (numpy_helper.to_array(weights) == trials.WEIGHTS).all()


def test_the_help_lists_it() -> None:
    code = "from relevo.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout
    assert "what to do where it does not" in " ".join(done.stdout.replace("│", " ").split())
