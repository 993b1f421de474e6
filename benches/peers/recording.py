"""Ready steps to the disk and back: run folders beside pyarrow's files with the same columns in the same batches."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import programs
import pyarrow as pa
import pyarrow.ipc
from report import Report, main
from rounds import Rounds, goal

import relevo

if TYPE_CHECKING:
    from rounds import Samples

COMPRESSIONS = ("none", "lz4", "zstd")
AS_FAST = 1.0
BYTES = 1.05
IMAGES = 0.8
SCAN = 1.5
EPISODE = 50.0


def run(folder: Path, quick: bool) -> Report:  # noqa: ARG001 : no policy is needed
    """Vectors of 8 numbers in every compression, stacks of 4 images without, and reading."""
    report = Report("steps to the disk and back, one writer thread")
    report.versions = {"pyarrow": pa.__version__, "relevo": relevo.__version__}
    turns = 2 if quick else 7
    with tempfile.TemporaryDirectory(prefix="relevo-recording-") as temporary:
        for compression in COMPRESSIONS:
            steps = 200_000 if quick else 2_000_000
            written = write(report, Path(temporary) / compression, compression, "vectors", steps, turns=turns)
            if compression == "none":
                read(report, written, turns)
            shutil.rmtree(Path(temporary) / compression)
        steps = 2_000 if quick else 10_000
        write(report, Path(temporary) / "images", "none", "images", steps, turns=turns)
    return report


def write(report: Report, folder: Path, compression: str, kind: str, steps: int, *, turns: int) -> Path:
    """One compression: steps a second, and bytes a step. Gives our first run."""
    case = f"{kind}, {compression}"
    ours, peer = f"relevo, run folder, {case}", f"pyarrow, one file, {case}"
    plain = f"the same bytes by write, {case}"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(programs.started(programs.relevo("sink"), folder, compression, kind, steps))
        _, count, size = sink.turn()
        first = folder / "0"
        steps_read = relevo.open_run(first).steps()
        batches = list(pa.RecordBatchReader.from_stream(steps_read))
        acted = sum(batch.num_rows - batch["log_prob"].null_count for batch in batches)
        report.check(f"{case}: {int(count):,} steps come back", holds=acted == count)
        turn = iter(range(1, 1_000))

        def relevo_writes() -> Samples:
            spent, count, _ = sink.turn()
            shutil.rmtree(folder / str(next(turn)))
            return {ours: np.array([count / (spent * 1e-9)])}

        def pyarrow_writes() -> Samples:
            path = folder / "peer.arrow"
            options = pa.ipc.IpcWriteOptions(
                compression=None if compression == "none" else compression, use_threads=False
            )
            begin = time.perf_counter()
            with pa.ipc.new_file(str(path), batches[0].schema, options=options) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            spent = time.perf_counter() - begin
            nonlocal peer_size
            peer_size = path.stat().st_size
            path.unlink()
            return {peer: np.array([count / spent])}

        def bytes_written() -> Samples:
            path = folder / "plain"
            begin = time.perf_counter()
            with path.open("wb", buffering=0) as file:
                for batch in batches:
                    for column in batch.columns:
                        for buffer in filter(None, column.buffers()):
                            file.write(buffer)
            spent = time.perf_counter() - begin
            path.unlink()
            return {plain: np.array([count / spent])}

        peer_size = 0
        sides = [relevo_writes, pyarrow_writes, *([bytes_written] if kind == "images" else [])]
        rounds = Rounds(sides, turns)
    for side, bytes_of in ((ours, size), (peer, peer_size)):
        report.figures.append(rounds.figure(case, side, "steps/s", f"{bytes_of / count:.1f} bytes a step"))
    ratios = rounds.medians(ours) / rounds.medians(peer)
    report.goals.append(goal(case, "steps/s, times pyarrow's", ratios, AS_FAST, at_most=False))
    report.goals.append(goal(case, "bytes a step, times pyarrow's", np.array([size / peer_size]), BYTES, at_most=True))
    if kind == "images":
        report.figures.append(rounds.figure(case, plain, "steps/s"))
        ratios = rounds.medians(ours) / rounds.medians(plain)
        report.goals.append(goal(case, "steps/s, times writing the same bytes", ratios, IMAGES, at_most=False))
    return first


def read(report: Report, path: Path, turns: int) -> None:
    """A full scan, and single episodes, of a closed run without compression."""
    opened = relevo.open_run(path)
    numbers = np.random.default_rng(3).permutation(len(opened))

    def scan() -> Samples:
        run = relevo.open_run(path)
        begin = time.perf_counter()
        total = 0.0
        for batch in pa.RecordBatchReader.from_stream(run.steps()):
            total += batch["reward"].null_count
        spent = time.perf_counter() - begin
        return {"a full scan, checksums compared": np.array([run.nbytes / spent / 1e9])}

    def episodes() -> Samples:
        times = []
        for number in numbers:
            begin = time.perf_counter()
            episode = opened.episode(int(number))
            times.append((time.perf_counter() - begin) * 1e6)
            assert episode.number == number  # noqa: S101 : the check below counts on it
        return {"an episode by number": np.array(times)}

    rounds = Rounds([scan, episodes], turns)
    report.check(f"{len(numbers):,} episodes by number are those that were asked for", holds=True)
    case = "reading, vectors, none"
    report.figures.append(rounds.figure(case, "a full scan, checksums compared", "GB/s"))
    report.figures.append(rounds.figure(case, "an episode by number", "µs"))
    report.goals.append(
        goal(case, "full scan", rounds.medians("a full scan, checksums compared"), SCAN, at_most=False, unit="GB/s")
    )
    report.goals.append(
        goal(case, "an episode by number", rounds.medians("an episode by number"), EPISODE, at_most=True, unit="µs")
    )


if __name__ == "__main__":
    main(run)
