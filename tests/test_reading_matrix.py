"""The steps of a run in the tools that people read them with: an Arrow stream, NumPy's arrays, torch's tensors.

Each test reads a run without compression, and one of each kind of it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, get_args

import episodes
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import relevo
from relevo.record_settings import Compression
from relevo.trajectories import to_torch

FEW = ["episode", "step", "reward"]


@pytest.fixture(params=get_args(Compression))
def run(tmp_path: Path, request: pytest.FixtureRequest) -> relevo.Run:
    return episodes.recorded(tmp_path, compression=request.param)


@pytest.fixture
def plain(tmp_path: Path) -> relevo.Run:
    """Without compression."""
    return episodes.recorded(tmp_path)


@pytest.fixture
def expected(run: relevo.Run) -> dict[int, relevo.Episode]:
    return {episode.number: episode for episode in run.episodes()}


def rows(expected: dict[int, relevo.Episode]) -> int:
    return sum(len(episode) + episode.complete for episode in expected.values())


def assert_returns(found: dict[int, float], expected: dict[int, relevo.Episode]) -> None:
    """As `episode_return`, NaN for NaN; sums may come in another order."""
    assert found.keys() == expected.keys()
    for number, episode in expected.items():
        np.testing.assert_allclose(found[number], episode.episode_return, rtol=1e-12)


def test_pyarrow(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    table = pa.table(run.steps())
    assert table.num_rows == rows(expected)
    acted = table.filter(pc.is_valid(table["action"]))
    returns = acted.group_by("episode").aggregate([("reward", "sum")]).to_pydict()
    assert_returns(dict(zip(returns["episode"], returns["reward_sum"], strict=True)), expected)
    for number, episode in expected.items():
        own = acted.filter(pc.equal(acted["episode"], number)).sort_by("step")
        np.testing.assert_array_equal(
            own["observation"].combine_chunks().to_numpy_ndarray(), np.asarray(episode.observations)[: len(episode)]
        )
        assert own["actor_id"][0].as_py() == episode.actor_id
        np.testing.assert_array_equal(own["timestamp"].to_numpy(), episode.timestamps)


def test_pyarrow_batch_by_batch(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    reader = pa.RecordBatchReader.from_stream(run.steps(FEW))
    assert reader.schema.names == FEW
    assert sum(batch.num_rows for batch in reader) == rows(expected)


def test_polars(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    frame = polars.DataFrame(run.steps())
    assert frame.height == rows(expected)
    acted = frame.filter(polars.col("action").is_not_null()).sort("episode", "step")
    returns = acted.group_by("episode").agg(polars.col("reward").sum())
    assert_returns(dict(returns.iter_rows()), expected)
    for number, episode in expected.items():
        own = acted.filter(polars.col("episode") == number)
        observed = np.stack([np.asarray(row) for row in own["observation"].to_list()])
        np.testing.assert_array_equal(observed, np.asarray(episode.observations)[: len(episode)])
        assert own["policy"].unique().to_list() == episode.policies
    assert polars.DataFrame(run.steps(FEW)).columns == FEW


def test_duckdb(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("steps", run.steps())
        # Read anew by each query.
        assert database.execute("SELECT count(*) FROM steps").fetchall() == [(rows(expected),)]
        database.execute("CREATE TABLE played AS FROM steps")
        counted = database.execute("SELECT count(*) FROM played").fetchall()
        assert counted == [(rows(expected),)]
        returns = database.execute("SELECT episode, sum(reward) FROM played WHERE action IS NOT NULL GROUP BY episode")
        assert_returns(dict(returns.fetchall()), expected)
        query = "SELECT observation FROM played WHERE episode = ? AND action IS NOT NULL ORDER BY step"
        for number, episode in expected.items():
            observed = np.array([row[0] for row in database.execute(query, [number]).fetchall()], np.float32)
            np.testing.assert_array_equal(observed, np.asarray(episode.observations)[: len(episode)])


def test_pandas(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame.from_arrow(run.steps())
    assert len(frame) == rows(expected)
    acted = frame[frame["action"].notna()].sort_values(["episode", "step"])
    # pandas has one NaN for what is NaN and what is missing, so that sums pass over both.
    sums = acted.groupby("episode")["reward"].sum()
    assert sums.to_dict() == pytest.approx(
        {number: float(np.nansum(episode.rewards)) for number, episode in expected.items()}
    )
    for number, episode in expected.items():
        observed = np.stack(acted[acted["episode"] == number]["observation"].to_list())
        np.testing.assert_array_equal(observed, np.asarray(episode.observations)[: len(episode)])


def test_numpy(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    batches = list(run.steps())
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert set(columns) == {*run.steps().columns, "acted"}
    assert len(columns["acted"]) == rows(expected)
    acted = columns["acted"]
    for number, episode in expected.items():
        own = columns["episode"] == number
        observed = columns["observation"][own]
        known = episode.has_final_observation
        np.testing.assert_array_equal(observed if known else observed[: len(episode)], episode.observations)
        own &= acted
        names = {"action": "actions", "reward": "rewards", "log_prob": "log_probs", "value": "values"}
        for name, attribute in (names | {"policy_version": "policy_versions", "timestamp": "timestamps"}).items():
            recorded = np.asarray(getattr(episode, attribute))
            assert columns[name].dtype == recorded.dtype
            np.testing.assert_array_equal(columns[name][own], recorded)
        assert columns["policy"][own].tolist() == ["default"] * len(episode)
        assert {row.tobytes() for row in columns["actor_id"][own]} == {episode.actor_id.bytes}
        assert columns["step"][own].tolist() == list(range(len(episode)))
        assert columns["terminated"][own].tolist() == [False] * (len(episode) - 1) + [episode.terminated]
        assert columns["truncated"][own].tolist() == [False] * (len(episode) - 1) + [episode.truncated]
    assert np.isnan(columns["reward"][~acted]).all()


def test_torch(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in run.steps():
            tensors = to_torch(batch)
            assert set(batch) - set(tensors) == {"policy"}
            assert tensors["timestamp"].dtype == torch.int64
            for name, array in batch.items():
                if name in tensors and name != "timestamp":
                    np.testing.assert_array_equal(tensors[name].numpy(), array)
            for row in torch.nonzero(tensors["acted"]).ravel().tolist():
                episode, step = expected[int(tensors["episode"][row])], int(tensors["step"][row])
                assert tensors["observation"][row].tolist() == np.asarray(episode.observations)[step].tolist()
                assert tensors["action"][row].item() == np.asarray(episode.actions)[step]
                count += 1
    assert count == sum(map(len, expected.values()))


COPIED = {"reward", "log_prob", "value", "terminated", "truncated", "policy", "acted"}
"""Numbers of which some are missing, booleans, texts."""


def address(array: Any) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def test_without_compression_nothing_is_copied_that_need_not_be(plain: relevo.Run) -> None:
    for once, again in zip(plain.steps(), plain.steps(), strict=True):
        shared = {name for name in once if address(once[name]) == address(again[name])}
        assert shared == set(once) - COPIED
        assert not any(once[name].flags.writeable for name in shared)
    tables = pa.table(plain.steps()), pa.table(plain.steps())
    for name in tables[0].column_names:
        one, other = ([buffer and buffer.address for buffer in table[name].chunk(0).buffers()] for table in tables)
        assert one == other, name
    once, again = plain.episode(3), plain.episode(3)
    assert address(once.observations) == address(again.observations)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (batch,) = plain.steps(["observation", "action", "timestamp"])
    tensors = to_torch(batch)
    assert all(tensors[name].data_ptr() == address(array) for name, array in batch.items())
    assert tensors["observation"].dtype == torch.float32


def test_arrays_outlive_the_run(tmp_path: Path) -> None:
    (batch,) = episodes.recorded(tmp_path).steps(["observation"])
    before = batch["observation"].copy()
    (tmp_path / "run" / "segments" / "000000.arrow").unlink()
    np.testing.assert_array_equal(batch["observation"], before)


@pytest.mark.parametrize("compression", get_args(Compression))
def test_filters(tmp_path: Path, compression: Compression) -> None:
    run = episodes.recorded(tmp_path, compression=compression, versions=3)
    everything = list(run.episodes())
    assert {int(version) for episode in everything for version in episode.policy_versions} == {1, 2, 3}
    infinite = float("inf")

    def versions(episode: relevo.Episode) -> set[int]:
        return set(episode.policy_versions.tolist())

    cases: list[tuple[dict[str, Any], Any]] = [
        ({"numbers": 3}, lambda episode: episode.number == 3),
        ({"numbers": [9, 2, 2, 1000]}, lambda episode: episode.number in {2, 9}),
        ({"numbers": range(4, 8)}, lambda episode: 4 <= episode.number < 8),
        ({"numbers": np.array([5, 1])}, lambda episode: episode.number in {1, 5}),
        ({"numbers": []}, lambda _: False),
        ({"policy_versions": 2}, lambda episode: 2 in versions(episode)),
        ({"policy_versions": (2, None)}, lambda episode: max(versions(episode)) >= 2),
        ({"policy_versions": (None, 1)}, lambda episode: min(versions(episode)) <= 1),
        ({"returns": (0.0, 10.0)}, lambda episode: 0 <= episode.episode_return <= 10),
        ({"returns": (1e299, None)}, lambda episode: episode.episode_return >= 1e299),
        ({"returns": infinite}, lambda episode: episode.episode_return == infinite),
        (
            {"numbers": range(20), "policy_versions": 1, "returns": (-1e9, None)},
            lambda episode: episode.number < 20 and 1 in versions(episode) and episode.episode_return >= -1e9,
        ),
    ]
    for given, wanted in cases:
        chosen = [episode.number for episode in everything if wanted(episode)]
        assert len(chosen) < len(everything), given
        assert chosen or given == {"numbers": []}, given
        assert [episode.number for episode in run.episodes(**given)] == chosen
        numbers = pa.table(run.steps(["episode", "reward"], **given))["episode"].unique().to_pylist()
        assert sorted(numbers) == sorted(chosen), given
        arrays = [batch["episode"] for batch in run.steps(["episode", "action"], **given)]
        assert sorted(set(np.concatenate([np.empty(0, np.uint64), *arrays]).tolist())) == sorted(chosen)
    # Rows of a selection that begins in the midst of a batch are those of its episodes.
    for number in (0, 7, 13):
        episode = run.episode(number)
        rows = list(run.steps(numbers=number))
        acted = np.concatenate([batch["acted"] for batch in rows])
        observed = np.concatenate([batch["observation"] for batch in rows])
        np.testing.assert_array_equal(observed[acted], np.asarray(episode.observations)[: len(episode)])


def test_columns_that_are_not_there(plain: relevo.Run) -> None:
    with pytest.raises(relevo.ContractError, match="no column `rewards`; they have: action, actor_id"):
        plain.steps(["rewards"])
    assert plain.steps(["value", "step"]).columns == ["value", "step"]
    assert pa.table(plain.steps([])).num_columns == 0
