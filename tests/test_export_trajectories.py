"""Runs in the formats of other tools, and back: every field of every episode."""

from __future__ import annotations

import csv
import dataclasses
import json
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import episodes
import models
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import relevo
from relevo import trajectories
from relevo.trajectories import EpisodeData
from relevo.trajectories.table import batches_of, episodes_of

SORTED = [("episode", "ascending"), ("step", "ascending")]


@pytest.fixture
def run(tmp_path: Path) -> relevo.Run:
    return episodes.recorded(tmp_path)


@pytest.fixture
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("minari", reason="Minari is not installed")
    pytest.importorskip("h5py", reason="h5py is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def source(run: relevo.Run) -> dict[int | None, EpisodeData]:
    return {episode.number: EpisodeData.of(episode) for episode in run.episodes()}


def assert_read_back(run: relevo.Run, read: Iterator[EpisodeData]) -> None:
    expected = source(run)
    for episode in read:
        episodes.assert_same(expected.pop(episode.number), episode)
    assert not expected


def made(number: int = 0, steps: int = 3, **changes: Any) -> EpisodeData:
    """An episode out of thin air."""
    given: dict[str, Any] = {
        "observations": np.arange(2 * (steps + 1), dtype=np.float32).reshape(-1, 2),
        "actions": np.arange(steps),
        "rewards": np.arange(steps, dtype=np.float64),
        "rewards_known": np.ones(steps, np.bool_),
        "terminated": True,
        "truncated": False,
        "complete": True,
        "policies": ["default"] * steps,
        "policy_versions": np.full(steps, 2**64 - 1, np.uint64),
        "timestamps": np.datetime64("2026-11-30T12:00", "ns") + np.arange(steps),
        "actor_id": uuid.UUID(int=7),
        "number": number,
    }
    return EpisodeData(**(given | changes))


AWKWARD = {
    "one step": made(steps=1),
    "no final observation": made(observations=np.zeros((3, 2), np.float32)),
    "unfinished": made(observations=np.zeros((3, 2), np.float32), complete=False, terminated=False),
    "images": made(observations=np.arange(4 * 12, dtype=np.uint8).reshape(4, 2, 2, 3)),
    "scalars": made(observations=np.array([0.1, np.nan, np.inf, -0.0])),
    "booleans": made(observations=np.eye(4, dtype=np.bool_), actions=np.eye(3, dtype=np.bool_)),
    "half floats": made(observations=np.linspace(0, 1, 8, dtype=np.float16).reshape(4, 2)),
    "several observations and actions": made(
        observations={"camera": np.ones((4, 2, 2), np.uint8), "vitesse é": np.ones(4)},
        actions={"move": np.arange(3), "aim": np.ones((3, 2), np.float32)},
    ),
    "masks": made(action_masks=np.array([[1, 0], [0, 1], [1, 1]], np.uint8)),
    "columns of one's own": made(
        extras={"goal": np.ones((3, 2), np.float16), "note": ["", "é", "ab"], "lost": np.array([True, False, True])},
        texts={"mission": ["a", "", "ü", "end"]},
    ),
    "everything": made(
        action_masks=np.ones((3, 2), np.uint8),
        log_probs=np.array([-0.1, -np.inf, np.nan], np.float32),
        values=np.array([np.float32(1) / 3, 1e-30, -0.0], np.float32),
        rewards_known=np.array([True, False, True]),
        rewards=np.array([np.nan, np.nan, np.inf]),
        policies=["a", "ü", "a"],
    ),
}


def test_parquet_holds_everything(run: relevo.Run, tmp_path: Path) -> None:
    result = trajectories.to_parquet(run, tmp_path / "run.parquet")
    assert (result.paths, result.episodes, result.steps) == ((tmp_path / "run.parquet",), 12, 46)
    assert_read_back(run, trajectories.from_parquet(tmp_path / "run.parquet"))
    assert json.loads(pq.read_schema(tmp_path / "run.parquet").metadata[b"relevo.run"]) == run.info
    with pytest.raises(relevo.ConfigError, match="there already"):
        trajectories.to_parquet(run, tmp_path / "run.parquet")


def test_parquet_has_the_rows_of_the_run_folder(run: relevo.Run, tmp_path: Path) -> None:
    trajectories.to_parquet(run, tmp_path / "run.parquet")
    written = pq.read_table(tmp_path / "run.parquet")
    with pa.ipc.open_file(run.path / "segments" / "000000.arrow") as file:
        segment = file.read_all()
    assert written.schema.equals(segment.schema)
    rows = [table.take(pc.sort_indices(table.select(["episode", "step"]), SORTED)) for table in (written, segment)]
    # As JSON: NaN is NaN there.
    one, other = (json.dumps(table.to_pylist(), default=str) for table in rows)
    assert one == other


def test_parquet_of_several_sets_of_columns(tmp_path: Path) -> None:
    narrow = models.actor_critic(tmp_path / "narrow.onnx")
    wide = models.linear(tmp_path / "wide.onnx", np.ones((5, 3)))
    builder = relevo.AgentBuilder().default_model(narrow).policy("wide", wide).actor_count(2)
    with builder.record(tmp_path / "run").build() as agent:
        played = agent.actors(), agent.actors(agent.new_actors(2, policy="wide"))
        for step in range(8):
            for actors, width in zip(played, (2, 5), strict=True):
                actors.act(np.zeros((2, width), np.float32))
                actors.observe(1.0, terminated=step % 4 == 3)
    run = relevo.open_run(tmp_path / "run")
    result = trajectories.to_parquet(run, tmp_path / "run.parquet")
    assert sorted(path.name for path in result.paths) == ["run-1.parquet", "run.parquet"]
    assert_read_back(run, (episode for path in result.paths for episode in trajectories.from_parquet(path)))


@pytest.mark.parametrize("episode", AWKWARD.values(), ids=AWKWARD)
def test_every_kind_of_episode_passes_through_a_table(episode: EpisodeData) -> None:
    others = [dataclasses.replace(episode, number=number) for number in (3, 1)]
    batches = list(batches_of([episode, *others]))
    assert len(batches) == 1
    # As parts of three rows, too: an episode may go on in the next batch.
    rows = batches[0].num_rows
    for parts in (batches, [batches[0].slice(start, 3) for start in range(0, rows, 3)]):
        for expected, read in zip([episode, *others], episodes_of(parts), strict=True):
            episodes.assert_same(expected, read)


def test_episodes_with_other_columns_get_batches_of_their_own() -> None:
    kinds = list(AWKWARD.values())
    mixed = [dataclasses.replace(episode, number=number) for number, episode in enumerate([*kinds, *kinds])]
    read = [episode for batch in batches_of(mixed) for episode in episodes_of([batch])]
    for expected, episode in zip(mixed, read, strict=True):
        episodes.assert_same(expected, episode)


def test_tables_that_are_no_episodes() -> None:
    table = pa.Table.from_batches(batches_of([made(0), made(1)]))

    def read(changed: pa.Table) -> list[EpisodeData]:
        return list(episodes_of(changed.to_batches()))

    assert len(read(table)) == 2
    with pytest.raises(relevo.TrajectoryError, match=r"columns reward, action are missing; there are actor_id"):
        read(table.drop_columns(["reward", "action"]))
    with pytest.raises(relevo.TrajectoryError, match="row 1: step 1 of an episode was expected, but step 2 came"):
        read(pa.concat_tables([table.slice(0, 1), table.slice(2)]))
    with pytest.raises(relevo.TrajectoryError, match="row 6: episode 0 goes on after others' rows"):
        read(pa.concat_tables([table.slice(0, 2), table.slice(4), table.slice(2, 2)]))
    text = table.set_column(table.schema.get_field_index("action"), "action", pa.array(["left"] * 8))
    with pytest.raises(relevo.TrajectoryError, match="column action must hold numbers or tensors of them"):
        read(text)
    without = pa.array([None] * 4 + [[0.0, 0.0]] * 4, pa.list_(pa.float32(), 2))
    with pytest.raises(relevo.TrajectoryError, match=r"row 0: .* steps without observation"):
        read(table.set_column(table.schema.get_field_index("observation"), "observation", without))


def test_parquet_of_others(tmp_path: Path) -> None:
    table = pa.table(
        {
            "episode": [4, 4, 9],
            "step": [0, 1, 0],
            "observation": pa.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], pa.list_(pa.float32(), 2)),
            "action": pa.array([1, 0, 1], pa.int8()),
            "reward": pa.array([1.0, None, 2.0]),
            "terminated": [False, True, False],
            "truncated": [False, False, False],
        }
    )
    pq.write_table(table, tmp_path / "others.parquet")
    one, other = trajectories.from_parquet(tmp_path / "others.parquet")
    assert (one.number, one.terminated, one.complete, other.complete) == (4, True, True, False)
    np.testing.assert_array_equal(one.observations, np.arange(4, dtype=np.float32).reshape(2, 2))
    assert one.rewards_known.tolist() == [True, False]
    assert (one.episode_return, one.policies, one.timestamps, one.actor_id) == (1.0, ["", ""], None, None)


def test_what_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no Parquet")
    for name in ("text.parquet", "nowhere.parquet"):
        with pytest.raises(relevo.TrajectoryError, match=name):
            list(trajectories.from_parquet(tmp_path / name))


def test_a_failing_export_leaves_nothing(run: relevo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(tmp_path.iterdir())

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    for write in (trajectories.to_parquet, trajectories.to_csv):
        with pytest.raises(KeyboardInterrupt):
            write(run, tmp_path / "out", progress=stopped)
        assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(relevo.TrajectoryError, match="cannot be written"):
        trajectories.to_parquet(run, tmp_path / "nowhere" / "out")
    monkeypatch.setattr("relevo.trajectories.packages.importlib.import_module", _not_installed)
    with pytest.raises(relevo.ConfigError, match=r'pip install "relevo\[parquet\]"'):
        trajectories.to_parquet(run, tmp_path / "out")
    with pytest.raises(relevo.ConfigError, match=r'pip install "relevo\[minari\]"'):
        trajectories.to_minari(run, "test-v0")


def _not_installed(name: str) -> None:
    raise ImportError(f"No module named {name!r}")


def test_policies_that_take_turns_are_told_step_by_step(tmp_path: Path, minari_folder: Path) -> None:
    model = models.linear(tmp_path / "policy.onnx", np.eye(2))
    builder = relevo.AgentBuilder().default_model(model).policy("rival", model)
    with builder.record(tmp_path / "run").build() as agent:
        for step, policy in enumerate(["rival", "rival", "default", "rival", "default"]):
            agent.actors().act(np.zeros((1, 2), np.float32))
            agent.actors().observe(1.0, terminated=step == 4, final_obs=np.ones((1, 2), np.float32))
            agent.assign(agent.get_actor_ids(), policy)
    run = relevo.open_run(tmp_path / "run")
    (episode,) = source(run).values()
    assert episode.policies == ["default", "rival", "rival", "default", "rival"]
    trajectories.to_parquet(run, tmp_path / "run.parquet")
    assert_read_back(run, trajectories.from_parquet(tmp_path / "run.parquet"))
    trajectories.to_csv(run, tmp_path / "csv")
    assert_read_back(run, trajectories.from_csv(tmp_path / "csv"))
    trajectories.to_minari(run, "turns-v0")
    assert_read_back(run, trajectories.from_minari("turns-v0"))
    assert minari_folder.is_dir()


def test_csv_holds_everything(run: relevo.Run, tmp_path: Path) -> None:
    result = trajectories.to_csv(run, tmp_path / "csv")
    assert (result.paths, result.episodes, result.steps) == ((tmp_path / "csv",), 12, 46)
    assert sorted(path.name for path in (tmp_path / "csv").iterdir())[:2] == [
        "episode_000000.csv",
        "episode_000001.csv",
    ]
    assert_read_back(run, trajectories.from_csv(tmp_path / "csv"))
    with pytest.raises(relevo.ConfigError, match="there already"):
        trajectories.to_csv(run, tmp_path / "csv")


@pytest.mark.parametrize("episode", AWKWARD.values(), ids=AWKWARD)
def test_every_kind_of_episode_passes_through_csv(episode: EpisodeData, tmp_path: Path) -> None:
    trajectories.to_run([episode], tmp_path / "run")
    trajectories.to_csv(relevo.open_run(tmp_path / "run"), tmp_path / "csv")
    (read,) = trajectories.from_csv(tmp_path / "csv")
    episodes.assert_same(episode, read)


def test_csv_has_rewards_where_relayrl_has_them(run: relevo.Run, tmp_path: Path) -> None:
    trajectories.to_csv(run, tmp_path / "csv")
    with (tmp_path / "csv" / "episode_000000.csv").open(newline="") as file:
        header, *rows = list(csv.reader(file))
    parts = [
        f"{name}_{field}" for name in ("obs", "act", "mask") for field in ("dtype", "shape", "f32", "f64", "binary")
    ]
    assert header == ["backend", "actor_id", "timestamp", *parts, "reward", "done", "aux_data"]
    lines = [dict(zip(header, row, strict=True)) for row in rows]
    episode = source(run)[0]
    # The reward of the action before; the last row has no action, and is the one that is done.
    assert [float(line["reward"]) for line in lines] == [0.0, *episode.rewards]
    assert [line["done"] for line in lines] == ["false"] * 4 + ["true"]
    assert [bool(line["act_binary"]) for line in lines] == [True] * 4 + [False]
    assert {(line["obs_dtype"], line["obs_shape"], line["backend"]) for line in lines} == {
        ("NdArray(F32)", "[2]", "NdArray")
    }
    first = lines[0]
    observed = np.array(json.loads(first["obs_f32"]), np.float32)
    np.testing.assert_array_equal(observed, np.asarray(episode.observations)[0])
    assert np.frombuffer(bytes(json.loads(first["act_binary"])), "<i8").tolist() == [np.asarray(episode.actions)[0]]
    aux = json.loads(first["aux_data"])
    assert aux["policy"] == {"String": "default"}
    assert all(len(value) == 1 and set(value) <= {"String", "I64", "F32", "Bool"} for value in aux.values())


def test_csv_of_relayrl(tmp_path: Path) -> None:
    actor = uuid.UUID(int=9)
    header = (
        "backend,actor_id,timestamp,obs_dtype,obs_shape,obs_f32,obs_f64,obs_binary,act_dtype,act_shape,act_f32,act_f64,"
        "act_binary,mask_dtype,mask_shape,mask_f32,mask_f64,mask_binary,reward,done,aux_data"
    )
    tensors = 'NdArray(F32),[2],"[1.0,2.0]",,,NdArray(I32),[1],,,"[3,0,0,0]",NdArray(Bool),[2],,,"[1,0]"'
    ours = '"{""score"":{""F32"":7.5}}"'
    (tmp_path / "a.csv").write_text(
        f"{header}\nNdArray,{actor},1700000000,{tensors},0,false,{ours}\n"
        f"NdArray,{actor},1700000001,{tensors},1.5,false,\n,{actor},1700000002,,,,,,,,,,,,,,,,-2,true,\n"
    )
    (episode,) = trajectories.from_csv(tmp_path / "a.csv")
    assert (len(episode), episode.actor_id, episode.terminated, episode.complete) == (2, actor, True, True)
    assert episode.rewards.tolist() == [1.5, -2.0]
    np.testing.assert_array_equal(episode.observations, np.array([[1, 2], [1, 2]], np.float32))
    np.testing.assert_array_equal(episode.actions, np.array([[3], [3]], np.int32))
    assert episode.action_masks is not None
    assert episode.action_masks.tolist() == [[1, 0], [1, 0]]
    assert not episode.has_final_observation
    assert episode.timestamps is not None
    assert str(episode.timestamps[1]) == "2023-11-14T22:13:21.000000000"


def test_csv_that_is_no_episode(run: relevo.Run, tmp_path: Path) -> None:
    trajectories.to_csv(run, tmp_path / "csv")
    whole = (tmp_path / "csv" / "episode_000000.csv").read_text()
    broken = tmp_path / "broken.csv"
    for change, message in (
        (whole.replace("reward,done", "reward,ended"), "line 1: the columns done are missing"),
        (whole.replace("NdArray(F32)", "NdArray(F33)", 1), "line 2: the tensor type 'NdArray.F33.' is not known"),
        (whole.replace(",true,", ",yes,"), "line 6: done must be true or false, but 'yes' came"),
        (whole[: len(whole) - 40], "line 6"),
        (whole.replace("[2]", "[3]", 1), "line 2: cannot reshape"),
        (whole.splitlines()[0] + "\n", "there must be rows with an action"),
    ):
        assert change != whole
        broken.write_text(change)
        with pytest.raises(relevo.TrajectoryError, match=message):
            list(trajectories.from_csv(broken))
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        with pytest.raises(relevo.TrajectoryError, match=folder):
            list(trajectories.from_csv(tmp_path / folder))


def test_csv_cannot_hold_every_type(tmp_path: Path) -> None:
    trajectories.to_run([made(observations=np.zeros((4, 2), np.uint16))], tmp_path / "run")
    with pytest.raises(relevo.TrajectoryError, match="no tensors of uint16; write Arrow or Parquet"):
        trajectories.to_csv(relevo.open_run(tmp_path / "run"), tmp_path / "csv")
    assert not (tmp_path / "csv").exists()


def test_minari_holds_every_episode_that_ended(run: relevo.Run, minari_folder: Path) -> None:
    import minari

    result = trajectories.to_minari(run, "tests/demo-v3", description="a test")
    assert (result.paths, result.episodes, result.steps, result.left_out) == (
        (minari_folder / "tests" / "demo-v3",), 10, 40, 2,
    )  # fmt: skip
    expected = source(run)
    read = list(trajectories.from_minari("tests/demo-v3"))
    assert len(read) == 10
    for episode in read:
        episodes.assert_same(expected[episode.number], episode)
    dataset = minari.load_dataset("tests/demo-v3")
    assert (dataset.total_episodes, dataset.total_steps) == (10, 40)
    assert str(dataset.action_space) == "Discrete(2)"
    assert dataset.observation_space.contains(np.zeros(2, np.float32))
    assert dataset.storage.metadata["relevo"]["run_id"] == run.info["run_id"]
    with pytest.raises(relevo.ConfigError, match="there already"):
        trajectories.to_minari(run, "tests/demo-v3")


HELD = {name: episode for name, episode in AWKWARD.items() if episode.has_final_observation}


@pytest.mark.parametrize("episode", HELD.values(), ids=HELD)
def test_every_kind_of_episode_passes_through_minari(
    episode: EpisodeData, minari_folder: Path, run: relevo.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [episode, dataclasses.replace(episode, number=1)]
    monkeypatch.setattr("relevo.trajectories.minari_dataset.read_run", lambda _run: iter(pair))
    trajectories.to_minari(run, "awkward-v0")
    for expected, read in zip(pair, trajectories.from_minari("awkward-v0"), strict=True):
        episodes.assert_same(expected, read)
    assert minari_folder.is_dir()


def test_what_minari_cannot_hold(minari_folder: Path, run: relevo.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(*given: EpisodeData, **options: Any) -> None:
        monkeypatch.setattr("relevo.trajectories.minari_dataset.read_run", lambda _run: iter(given))
        trajectories.to_minari(run, "bad-v0", **options)

    with pytest.raises(relevo.TrajectoryError, match="no episode has a final observation"):
        export(AWKWARD["no final observation"])
    with pytest.raises(relevo.TrajectoryError, match="episode 1 of policy default has other observations or actions"):
        export(made(), made(1, observations=np.zeros((4, 3), np.float32)))
    with pytest.raises(relevo.TrajectoryError, match="no slashes"):
        export(made(observations={"arm/left": np.zeros(4)}))
    with pytest.raises(relevo.TrajectoryError, match="there is no episode"):
        export(made(), policy="rival")
    with pytest.raises(relevo.ConfigError, match="observation space has"):
        export(made(), env="CartPole-v1")
    with pytest.raises(relevo.ConfigError, match="Nowhere-v0 cannot be made"):
        export(made(), env="Nowhere-v0")
    for name in ("no version", "demo"):
        with pytest.raises(relevo.ConfigError, match="is no name of a Minari dataset"):
            trajectories.to_minari(run, name)
    with pytest.raises(relevo.ConfigError, match="there is no Minari dataset bad-v0"):
        list(trajectories.from_minari("bad-v0"))
    assert not list(minari_folder.glob("bad*"))


def test_minari_with_the_spaces_of_an_environment(
    minari_folder: Path, run: relevo.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium
    import minari

    balanced = made(observations=np.zeros((4, 4), np.float32), actions=np.array([0, 1, 0]))
    monkeypatch.setattr("relevo.trajectories.minari_dataset.read_run", lambda _run: iter([balanced]))
    trajectories.to_minari(run, "cartpole/test-v0", env="CartPole-v1")
    dataset = minari.load_dataset("cartpole/test-v0")
    assert dataset.observation_space == gymnasium.make("CartPole-v1").observation_space
    assert dataset.spec.env_spec.id == "CartPole-v1"
    assert minari_folder.is_dir()


def test_minari_of_others(minari_folder: Path) -> None:
    import minari
    from gymnasium import spaces

    nested = spaces.Dict({"arm": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3))), "t": spaces.Box(0, 1)})
    buffer = minari.data_collector.EpisodeBuffer(
        observations={"arm": (np.zeros((3, 2), np.float32), np.arange(3)), "t": np.ones((3, 1), np.float32)},
        actions=np.array([1, 0]),
        rewards=[1.0, 2.0],
        terminations=[False, False],
        truncations=[False, True],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it asks for an author, a link and more
        minari.create_dataset_from_buffers(
            "others/nested-v1", [buffer], observation_space=nested, action_space=spaces.Discrete(2)
        )
    (episode,) = trajectories.from_minari("others/nested-v1")
    assert isinstance(episode.observations, dict)
    assert set(episode.observations) == {"arm.0", "arm.1", "t"}
    assert (episode.truncated, episode.complete, episode.policies, episode.timestamps) == (True, True, ["", ""], None)
    assert episode.rewards.tolist() == [1.0, 2.0]
    assert minari_folder.is_dir()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"actions": np.array([0, 2**63 - 1, 5])}, None),
        ({"actions": np.array([0, 2**64 - 1, 5], np.uint64)}, None),
        ({"extras": {"a/b": np.arange(3)}}, "no slashes"),
        ({"texts": {"mission": ["a", "b\0c", "d", "e"]}}, "Minari cannot hold the run"),
    ],
)
def test_what_minari_cannot_hold_is_told(
    changes: dict[str, Any], told: str | None, tmp_path: Path, minari_folder: Path
) -> None:
    trajectories.to_run([made(**changes)], tmp_path / "run")
    run = relevo.open_run(tmp_path / "run")
    if told is None:
        trajectories.to_minari(run, "large-v0")
        (read,) = trajectories.from_minari("large-v0")
        np.testing.assert_array_equal(np.asarray(read.actions), changes["actions"])
    else:
        with pytest.raises(relevo.TrajectoryError, match=told):
            trajectories.to_minari(run, "large-v0")
        assert not list(minari_folder.glob("large-v0*"))


def test_some_of_a_run_s_episodes_are_written_and_what_is_no_run_is_refused(run: relevo.Run, tmp_path: Path) -> None:
    trajectories.to_run(run.episodes(numbers=[3, 5]), tmp_path / "some")
    assert sorted(source(relevo.open_run(tmp_path / "some"))) == [3, 5]
    for write in (trajectories.to_parquet, trajectories.to_csv):
        with pytest.raises(relevo.ConfigError, match="an export takes a run"):
            write(run.episodes(), tmp_path / "none")  # type: ignore[arg-type]
