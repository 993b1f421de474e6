"""What works on a machine, found out by trying it."""

from __future__ import annotations

import base64
import contextlib
import logging
import multiprocessing
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.filesize import decimal

import relevo
from relevo.cli.machine import versions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

ONNX = 'pip install "relevo[onnx]"'
TORCH = 'pip install "relevo[torch]" (in a checkout of the repository: make demo-torch)'

# A policy for CartPole-v1, `logits = obs · WEIGHTS`, as an ONNX file. What writes such files is not at hand.
POLICY = base64.b64decode(
    "CAkSDXJlbGV2byBkb2N0b3I6lwEKHgoDb2JzCgd3ZWlnaHRzEgZsb2dpdHMiBk1hdE11bBIHYmFsYW5jZSoxCAQIAhABQgd3ZWlnaHRzSiDNzMy9zczM"
    "PZqZmb6amZk+AABAwAAAQEAAAIC/AACAP1oaCgNvYnMSEwoRCAESDQoHEgViYXRjaAoCCARiHQoGbG9naXRzEhMKEQgBEg0KBxIFYmF0Y2gKAggCQgQK"
    "ABAR"
)
WEIGHTS = np.array([[-0.1, 0.1], [-0.3, 0.3], [-3.0, 3.0], [-1.0, 1.0]], np.float32)

LEAST_DISK = 1 << 30
LEAST_SHARED_MEMORY = 64 << 20
LEAST_FILES = 1024
SPAWN_SECONDS = 10.0

MAIN_JOB = "the main job"
"""Its finding's name."""

State = Literal["ok", "fails", "mind", "absent"]


@dataclass(frozen=True)
class Finding:
    """What trying one thing came to; the fields are those of `--json`."""

    name: str
    state: State
    """`fails` keeps the main job from running, `mind` may be in the way later, `absent` is not needed."""
    found: str
    remedy: str | None = None


def findings() -> list[Finding]:
    """Tries everything, in a second or so."""
    # Starts now and is looked at last: a new interpreter takes its time.
    spawn = _Spawn()
    with _temporary_folder() as folder:
        onnx = _onnx(folder)
        environments = _environments()
        main_job = _main_job(folder, [onnx, environments])
        devices = _devices()
        places = [_place("temporary folder", folder), _place("current folder", Path())]
    machine = [_shared_memory(), *_open_files(), spawn.finding()]
    return [onnx, environments, main_job, *places, *machine, *devices, *_backends()]


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path | None]:
    """A folder for the trials, or None where none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="relevo-doctor-", ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with folder as path:
        yield Path(path)


def _failure(name: str, error: Exception, state: State = "fails", *, obvious: str = "") -> Finding:
    """A finding of an error. `obvious` is left out at its beginning.

    The messages of Relevo's own errors tell what is wrong and, behind the last semicolon, what to do.
    """
    text = (str(error) or type(error).__name__).removeprefix(obvious)
    found, _, remedy = text.rpartition("; ") if isinstance(error, relevo.RelevoError) else (text, "", "")
    return Finding(name, state, found or text, remedy if found else None)


def _onnx(folder: Path | None) -> Finding:
    name = "onnx on cpu"
    if folder is None:
        return Finding(name, "fails", "not tried: it takes a file, and the temporary folder cannot be written")
    policy = _policy(folder)
    try:
        with _library() as library:
            model = relevo.ModelModule.load_from_path(policy)
        # The first pass prepares the session.
        model.forward({"obs": np.zeros((2, 4), np.float32)})
        obs = np.array([[1, -2, 3, 4], [0, 0.5, 0, -1]], np.float32)
        begun = time.perf_counter()
        logits = model.forward({"obs": obs})["logits"]
        microseconds = (time.perf_counter() - begun) * 1e6
    except Exception as error:  # noqa: BLE001  (whatever is wrong with an installation is what is asked for)
        return _failure(name, error, obvious=f"cannot load {policy}: ")
    if not np.allclose(logits, obs @ WEIGHTS, atol=1e-5):
        return Finding(name, "fails", "a forward pass gave wrong numbers", f"reinstall it: {ONNX} --force-reinstall")
    installed = [package for package in ("onnxruntime", "onnxruntime-gpu") if versions()[package]]
    if len(installed) > 1:
        return Finding(
            name,
            "mind",
            "works, but onnxruntime and onnxruntime-gpu are both installed, and overwrite each other's files",
            f"pip uninstall onnxruntime onnxruntime-gpu, then {ONNX}",
        )
    return Finding(name, "ok", f"a forward pass took {microseconds:.0f} µs{library.found()}")


def _policy(folder: Path) -> Path:
    path = folder / "policy.onnx"
    path.write_bytes(POLICY)
    return path


class _Library(logging.Handler):
    """Hears from the engine which ONNX Runtime it loads."""

    def __init__(self) -> None:
        super().__init__()
        self._fields: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._fields = getattr(record, "relevo", {})

    def found(self) -> str:
        if "version" not in self._fields:
            return ""
        return f", by ONNX Runtime {self._fields['version']}\nin {Path(self._fields['path']).parent}"


@contextlib.contextmanager
def _library() -> Iterator[_Library]:
    logger, library = logging.getLogger("relevo.onnx"), _Library()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(library)
    try:
        yield library
    finally:
        logger.removeHandler(library)
        logger.setLevel(level)


def _devices() -> list[Finding]:
    """What the model backends can run on beside the CPU, each by a session made there."""
    try:
        backends = relevo._core.devices()  # noqa: SLF001  (the engine's own list has no place in the library's interface)
    except relevo.RelevoError:
        return []  # told by the trials of the CPU already
    found = []
    for backend, devices in backends.items():
        for device, fault in devices:
            name = f"{backend} on {device}"
            if (backend, device) == ("onnx", "cpu"):
                continue
            if fault is None:
                found.append(Finding(name, "ok", "a session was made"))
                continue
            said, _, remedy = fault.rpartition("; ")
            if not said:
                said, remedy = fault, ""
            if device.startswith("cuda") and not _has_driver() and "driver" not in said:
                # Without it, nothing that can be installed for Python helps.
                said, remedy = f"{said}. NVIDIA's driver is not here.", ""
            found.append(Finding(name, "absent", said, remedy or None))
    return found


def _has_driver() -> bool:
    """Whether NVIDIA's driver is here."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _backends() -> list[Finding]:
    """Model backends of other packages; TorchScript's is told of where it is not there, too."""
    found = []
    for name, package, version, problem in relevo._core.other_backends():  # noqa: SLF001
        if problem is None:
            found.append(Finding(name, "ok", f"{package}: {version}"))
            continue
        what, _, remedy = problem.rpartition("; ")
        found.append(Finding(name, "mind", what or problem, remedy if what else None))
    if all(finding.name != "torchscript" for finding in found):
        found.append(
            Finding("torchscript", "absent", f"files of TorchScript are not loaded; they would be by: {TORCH}")
        )
    return found


def _environments() -> Finding:
    name = "environments"
    try:
        relevo.envs.make_vector("CartPole-v1", 2).close()
    except Exception as error:  # noqa: BLE001  (as above)
        return _failure(name, error)
    return Finding(name, "ok", f"Gymnasium {versions()['gymnasium']} makes CartPole-v1")


def _main_job(folder: Path | None, needed: list[Finding]) -> Finding:
    """Two actors act, their steps are recorded and read back."""
    name = MAIN_JOB
    missing = [finding.name for finding in needed if finding.state == "fails"]
    if folder is None or missing:
        return Finding(name, "fails", f"not tried, for want of: {', '.join(missing) or 'a temporary folder'}")
    out, steps = folder / "run", 200
    try:
        envs = relevo.envs.make_vector("CartPole-v1", 2)
        agent = relevo.AgentBuilder().default_model(_policy(folder)).actor_count(2).seed(1).record(out).build()
        with agent:
            relevo.collect(agent, envs, steps=steps, seed=1)
        envs.close()
        read = sum(len(episode) for episode in relevo.open_run(out).episodes())
    except Exception as error:  # noqa: BLE001  (as above)
        return _failure(name, error)
    if read != steps:
        return Finding(name, "fails", f"{steps} steps were recorded, and {read} read back", "please report this")
    return Finding(name, "ok", f"2 actors took {steps} steps; all were recorded and read back")


def _place(name: str, folder: Path | None) -> Finding:
    """Whether a run folder can be made here, and how much fits."""
    if folder is None:
        return Finding(name, "fails", "there is none that can be written", "set TMPDIR to a folder that can be")
    # The folder of the trials is one inside the temporary folder.
    shown = folder.absolute() if folder == Path() else folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"relevo")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(name, "mind", f"{shown} cannot be written: {error.strerror}", "record elsewhere: --out DIR")
    found = f"{shown} can be written, {decimal(free)} free"
    if free < LEAST_DISK:
        return Finding(name, "mind", found, "make room, or record elsewhere: a million CartPole steps take 90 MB")
    return Finding(name, "ok", found)


def _shared_memory() -> Finding:
    """Environments in processes of their own hand their observations over in it."""
    name = "shared memory"
    more = "give /dev/shm more room (Docker: --shm-size=1g)"
    try:
        memory = SharedMemory(create=True, size=1 << 20)
        memory.close()
        memory.unlink()
    except OSError as error:
        return Finding(name, "mind", f"cannot be had: {error}", more)
    if not Path("/dev/shm").is_dir():  # noqa: S108  (where Linux keeps it)
        return Finding(name, "ok", "can be had")
    free = shutil.disk_usage("/dev/shm").free  # noqa: S108
    if free < LEAST_SHARED_MEMORY:
        return Finding(name, "mind", f"{decimal(free)} free, little for environments in processes", more)
    return Finding(name, "ok", f"{decimal(free)} free")


def _open_files() -> list[Finding]:
    """How many files this process may have open; Windows has no such limit."""
    try:
        import resource
    except ImportError:
        return []
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return [Finding("open files", "ok", "no limit")]
    if limit < LEAST_FILES:
        return [Finding("open files", "mind", f"at most {limit}, few for many processes", f"ulimit -n {LEAST_FILES}")]
    return [Finding("open files", "ok", f"at most {limit:,}")]


class _Spawn:
    """Whether a process can be started the way that environments in processes are."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._error = "it did not start"
        try:
            process = multiprocessing.get_context("spawn").Process(target=os.getpid)
            process.start()
            self._process = process
        except OSError as error:
            self._error = str(error)

    def finding(self) -> Finding:
        name = "processes"
        more = "environments in processes of their own will not run; those in one process do"
        if self._process is None:
            return Finding(name, "mind", f"none can be started: {self._error}", more)
        self._process.join(SPAWN_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            return Finding(name, "mind", f"one that was started did not end in {SPAWN_SECONDS:.0f} s", more)
        if self._process.exitcode != 0:
            return Finding(name, "mind", f"one that was started ended with {self._process.exitcode}", more)
        return Finding(name, "ok", "can be started (spawn)")
