"""`verify` and `repair`: what is damaged is told, what is whole is kept, and no row is ever wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import episodes
import models
import numpy as np
import pyarrow as pa
import pytest
from test_cli import relevo_command

import relevo
from relevo.trajectories import EpisodeData, repair
from relevo.trajectories.run_folder import write

SEGMENT, SIDECAR = "segments/000000.arrow", "segments/000000.index"


@pytest.fixture(scope="module", params=["none", "zstd"])
def sound(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A run of some batches, whose episodes are those of `played`."""
    folder = tmp_path_factory.mktemp("sound")
    with relevo.RunWriter(folder / "run", compression=request.param) as writer:
        for number in range(40):
            writer.add(*played(number), terminated=True, number=number, policy_runs=[(0, f"p{number % 3}", number)])
    assert relevo.open_run(folder / "run").verify()["batches"] > 3
    return folder / "run"


def played(number: int) -> tuple[Any, Any, Any]:
    """Observations, actions and rewards of an episode of 1 MB, which its number tells."""
    steps = 50 + number
    observations = np.arange((steps + 1) * 5_000, dtype=np.float32).reshape(steps + 1, 5_000) + number
    return observations, np.full(steps, number), np.arange(steps, dtype=np.float64) * number


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(sound, tmp_path / "run")


def read(folder: Path) -> set[int]:
    """The numbers of the episodes that can be read, each of which is right; damage may be told in between."""
    numbers: list[int] = []
    found = relevo.open_run(folder).episodes()
    while True:
        try:
            episode = next(found)
        except StopIteration:
            break
        except relevo.TrajectoryError as error:
            assert str(folder) in str(error)  # noqa: PT017
            continue
        observations, actions, rewards = played(episode.number)
        np.testing.assert_array_equal(episode.observations, observations)
        np.testing.assert_array_equal(episode.actions, actions)
        np.testing.assert_array_equal(episode.rewards, rewards)
        assert (episode.terminated, episode.complete) == (True, True)
        assert episode.policy_runs == [(0, f"p{episode.number % 3}", episode.number)]
        numbers.append(episode.number)
    assert len(numbers) == len(set(numbers))
    return set(numbers)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path, at: float) -> None:
    """Changes one byte, at this share of the file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 0x10
    path.write_bytes(data)


def flip_in(path: Path, text: bytes) -> None:
    """Changes one byte within the first of these texts."""
    data = path.read_bytes()
    assert text in data
    path.write_bytes(data.replace(text, text[:-1] + bytes([text[-1] ^ 1]), 1))


def cut(path: Path, at: float) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * at))


def foreign(path: Path) -> None:
    with pa.ipc.new_file(path.with_name("000007.arrow"), pa.schema([("x", pa.int64())])) as file:
        file.write_table(pa.table({"x": [1, 2]}))


# What is done to the run, how many episodes must be left at least, and whether something is lost.
DAMAGE: dict[str, tuple[Callable[[Path], object], int, bool]] = {
    "a flipped byte in a batch": (lambda run: flip(run / SEGMENT, 0.5), 25, True),
    "a flipped byte in the schema": (lambda run: flip(run / SEGMENT, 0.00001), 40, False),
    "a flipped byte in the footer": (lambda run: flip(run / SEGMENT, 0.9999999), 40, False),
    "a flipped byte in the sidecar": (lambda run: flip(run / SIDECAR, 0.5), 40, False),
    "a flipped byte at the sidecar's beginning": (lambda run: flip(run / SIDECAR, 0.001), 40, False),
    "a flipped byte at the sidecar's end": (lambda run: flip(run / SIDECAR, 0.999), 40, False),
    "a flipped byte in the names of policies": (lambda run: flip_in(run / SIDECAR, b'["p'), 40, False),
    "a segment that was cut": (lambda run: cut(run / SEGMENT, 0.6), 15, True),
    "a sidecar that was cut": (lambda run: cut(run / SIDECAR, 0.6), 40, False),
    "no sidecar": (lambda run: (run / SIDECAR).unlink(), 40, False),
    "an empty sidecar": (lambda run: cut(run / SIDECAR, 0.0), 40, False),
    "a foreign file": (lambda run: foreign(run / SEGMENT), 40, True),
    "a file that is no Arrow": (lambda run: (run / "segments" / "000003.arrow").write_bytes(b"no" * 99), 40, True),
}


@pytest.mark.parametrize(("damage", "least", "lost"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_told_and_repaired(damage: Callable[[Path], object], least: int, lost: bool, folder: Path) -> None:
    damage(folder)
    told: list[int] = []
    report = relevo.open_run(folder).verify(told.append)
    assert not report["sound"]
    assert report["problems"] or report["lost"]
    assert all(str(folder) in text for text in [*report["problems"], *report["lost"]])
    assert told[-1] == report["bytes"]
    readable = read(folder)
    assert len(readable) >= least
    assert (bool(report["lost"]), len(readable) < 40) == (lost, least < 40)
    assert repair(folder) == report
    assert read(folder) == readable
    after = relevo.open_run(folder)
    assert after.problems == []
    assert after.verify()["sound"]
    index = after.index()
    assert index["number"].tolist() == sorted(readable)
    assert index["policy"].tolist() == [f"p{number % 3}" for number in sorted(readable)]
    assert index["highest_policy_version"].tolist() == sorted(readable)
    returns = [float(played(number)[2].sum()) for number in sorted(readable)]
    assert index["episode_return"].tolist() == returns
    before = contents(folder)
    assert repair(folder)["sound"]
    assert contents(folder) == before
    # Other programs can open what is left.
    with pa.ipc.open_file(folder / SEGMENT) as file:
        assert file.read_all()["episode"].num_chunks == after.verify()["batches"]


def test_what_is_sound_is_left_alone(folder: Path) -> None:
    before = contents(folder)
    report = relevo.open_run(folder).verify()
    assert (report["sound"], report["problems"], report["lost"], report["unclosed_segments"]) == (True, [], [], 0)
    assert repair(folder) == report
    assert contents(folder) == before
    assert read(folder) == set(range(40))


def test_every_flipped_byte_is_noticed(sound: Path, tmp_path: Path) -> None:
    """At random places of the segment and of its sidecar: verifying tells it, and no episode is wrong."""
    random = np.random.default_rng(1)
    small = tmp_path / "run"
    write((EpisodeData.of(relevo.open_run(sound).episode(number)) for number in (3,)), small, **PLAIN)
    for name in (SEGMENT, SIDECAR):
        original = (small / name).read_bytes()
        for at in random.integers(0, len(original), 150).tolist():
            data = bytearray(original)
            data[at] ^= 1 << int(random.integers(8))
            (small / name).write_bytes(data)
            assert not relevo.open_run(small).verify()["sound"], (name, at)
            assert read(small) <= {3}
        (small / name).write_bytes(original)
    assert relevo.open_run(small).verify()["sound"]


PLAIN: dict[str, Any] = {"compression": "none", "seed": 0, "config": None, "progress": None}


def test_the_run_of_a_killed_process(tmp_path: Path) -> None:
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np, relevo, models
        from pathlib import Path
        model = models.actor_critic(Path({str(tmp_path)!r}) / "policy.onnx")
        agent = relevo.AgentBuilder().default_model(model).actor_count(4).record({str(tmp_path / "run")!r}).build()
        agent.start()
        actors = agent.actors()
        step = 0
        while True:
            actors.act(np.full((4, 2), step, np.float32))
            step += 1
            actors.observe(step, terminated=step % 10 == 0)
            if step == 5_000:
                agent.flush()
                print("flushed", flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flushed\n"
        process.send_signal(signal.SIGKILL)
    folder = tmp_path / "run"

    def numbers() -> list[int]:
        found = []
        for episode in relevo.open_run(folder).episodes():
            assert len(episode) == 10
            first = int(np.asarray(episode.observations)[0, 0])
            np.testing.assert_array_equal(episode.rewards, np.arange(first + 1, first + 11))
            found.append(episode.number)
        return found

    before = numbers()
    assert len(before) >= 2_000
    report = relevo.open_run(folder).verify()
    assert (report["sound"], report["unclosed_segments"]) == (True, 1)
    with pytest.raises(pa.ArrowInvalid):
        pa.ipc.open_file(folder / SEGMENT)
    repair(folder)
    assert numbers() == before
    with pa.ipc.open_file(folder / SEGMENT) as file:
        assert len(set(file.read_all()["episode"].to_pylist())) == len(before)
    after = contents(folder)
    assert repair(folder)["unclosed_segments"] == 0
    assert contents(folder) == after


@pytest.mark.parametrize("segment_bytes", [1 << 30, 1 << 20])
def test_a_long_episode_of_which_a_part_is_lost(tmp_path: Path, segment_bytes: int) -> None:
    """It lies in several batches, or segments; what comes before the lost one stays, as after a crash."""
    model = models.linear(tmp_path / "policy.onnx", np.ones((20_000, 2)) / 1e6)
    folder = tmp_path / "run"
    builder = relevo.AgentBuilder().default_model(model).actor_count(2)
    with builder.record(folder, segment_bytes=segment_bytes).build() as agent:
        actors = agent.actors()
        for step in range(300):
            actors.act(np.full((2, 20_000), step, np.float32))
            # The first actor plays one episode, the other one of each ten steps.
            actors.observe(step, terminated=np.array([step == 299, step % 10 == 9]))
    run = relevo.open_run(folder)
    sound = {episode.number: EpisodeData.of(episode) for episode in run.episodes()}
    assert sorted(map(len, sound.values())) == [10] * 30 + [300]
    segments = sorted((folder / "segments").glob("*.arrow"))
    assert len(segments) == (1 if segment_bytes == 1 << 30 else run.verify()["batches"])
    flip(segments[len(segments) // 2], 0.5)
    report = relevo.open_run(folder).verify()
    assert ["is damaged" in text for text in report["lost"]] == [True]
    assert repair(folder) == report
    after = relevo.open_run(folder)
    assert (after.problems, after.verify()["sound"]) == ([], True)
    left = {episode.number: EpisodeData.of(episode) for episode in after.episodes()}
    assert 15 < len(left) < 31
    for number, episode in left.items():
        if len(sound[number]) == 10:
            episodes.assert_same(sound[number], episode)
        else:
            steps = len(episode)
            assert 50 < steps < 250
            assert (episode.complete, episode.terminated) == (False, False)
            for name in ("observations", "actions", "rewards"):
                np.testing.assert_array_equal(getattr(episode, name), getattr(sound[number], name)[:steps])
    assert sum(len(batch["acted"]) for batch in after.steps()) == sum(
        len(episode) + episode.complete for episode in left.values()
    )
    before = contents(folder)
    assert repair(folder)["sound"]
    assert contents(folder) == before


def test_a_run_that_is_written_is_not_repaired(tmp_path: Path) -> None:
    with (
        relevo.RunWriter(tmp_path / "run"),
        pytest.raises(relevo.TrajectoryError, match="another writer records into the folder"),
    ):
        repair(tmp_path / "run")


def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, reason in (("empty", "not a run folder"), ("nowhere", "there is no such folder")):
        for command in ("verify", "repair", "info"):
            done = relevo_command("trajectories", command, tmp_path / name)
            assert (done.returncode, done.stdout) == (1, "")
            assert reason in done.stderr
        with pytest.raises(relevo.TrajectoryError, match=reason):
            repair(tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"]
    assert not list((tmp_path / "empty").iterdir())


def test_the_commands(folder: Path) -> None:
    done = relevo_command("trajectories", "verify", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sound   yes" in done.stdout
    assert json.loads(relevo_command("trajectories", "info", folder, "--json").stdout)["problems"] == []
    assert "nothing was to be done" in relevo_command("trajectories", "repair", folder).stdout
    flip(folder / SEGMENT, 0.5)
    cut(folder / SIDECAR, 0.999)
    done = relevo_command("trajectories", "verify", folder)
    assert (done.returncode, done.stderr) == (1, "")
    assert "sound        no" in done.stdout
    assert f"relevo trajectories repair {folder}" in done.stdout
    done = relevo_command("trajectories", "verify", folder, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["sound"]) == (1, False)
    assert any("is damaged" in text for text in report["lost"])
    # An export of it is refused, and leaves nothing.
    done = relevo_command("trajectories", "export", folder, folder.with_name("out"), "--to", "csv")
    assert (done.returncode, "is damaged" in done.stderr) == (1, True)
    assert not folder.with_name("out").exists()
    done = relevo_command("trajectories", "repair", folder, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, report)
    assert relevo_command("trajectories", "verify", folder).returncode == 0


def test_info_of_a_damaged_run(folder: Path) -> None:
    cut(folder / SEGMENT, 0.6)
    done = relevo_command("trajectories", "info", folder)
    assert (done.returncode, "relevo trajectories repair" in done.stdout) == (0, True)
    shown = json.loads(relevo_command("trajectories", "info", folder, "--json").stdout)
    assert shown["episodes"] == len(read(folder)) < 40
    assert "000000.arrow" in shown["problems"][0]


def test_a_repair_that_ends_between_its_two_moves(folder: Path, tmp_path: Path) -> None:
    damaged = bytearray((folder / SEGMENT).read_bytes())
    damaged[len(damaged) // 2] ^= 0x40
    (folder / SEGMENT).write_bytes(damaged)
    repaired = shutil.copytree(folder, tmp_path / "repaired")
    report = repair(repaired)
    lost = [number for number in range(40) if number not in read(repaired)]
    assert report["lost_episodes"] == len(lost)
    assert report["lost_steps"] == sum(len(played(number)[1]) for number in lost)
    kept = read(repaired)
    assert 0 < len(kept) < 40
    # What was damaged is still there for whoever wants to try.
    assert (repaired / f"{SEGMENT}.damaged").read_bytes() == damaged
    # The segment has been moved to its place, and the sidecar not yet.
    workshop = folder / "segments/repair"
    workshop.mkdir()
    shutil.copy(repaired / SEGMENT, folder / SEGMENT)
    shutil.copy(repaired / SIDECAR, workshop / "000000.index")
    assert relevo.open_run(folder).verify()["sound"]
    assert read(folder) == kept
    assert repair(folder)["sound"]
    assert (folder / SIDECAR).read_bytes() == (repaired / SIDECAR).read_bytes()
    assert read(folder) == kept
    # The segment is still in the workshop: what lies there counts for nothing.
    again = shutil.copytree(repaired, tmp_path / "again")
    (again / "segments/repair").mkdir()
    shutil.copy(repaired / SEGMENT, again / "segments/repair/000000.arrow")
    (again / "segments/repair/000000.index").write_bytes(b"")
    assert read(again) == kept
