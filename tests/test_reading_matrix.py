"""The Arrow stream of `run.steps()` in the tools that people read it with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import episodes
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import relevo

pytestmark = pytest.mark.skipif(not hasattr(relevo.Run, "steps"), reason="`Run.steps` is not there yet")

FEW = ["episode", "step", "reward"]


@pytest.fixture
def run(tmp_path: Path) -> relevo.Run:
    return episodes.recorded(tmp_path)


def steps(run: relevo.Run, *columns: str) -> Any:
    """The stream; of `columns` alone, if some are named."""
    return run.steps(columns=list(columns) or None)  # type: ignore[attr-defined]


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
    table = pa.table(steps(run))
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
    reader = pa.RecordBatchReader.from_stream(steps(run, *FEW))
    assert reader.schema.names == FEW
    assert sum(batch.num_rows for batch in reader) == rows(expected)


def test_polars(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    frame = polars.DataFrame(steps(run))
    assert frame.height == rows(expected)
    acted = frame.filter(polars.col("action").is_not_null()).sort("episode", "step")
    returns = acted.group_by("episode").agg(polars.col("reward").sum())
    assert_returns(dict(returns.iter_rows()), expected)
    for number, episode in expected.items():
        own = acted.filter(polars.col("episode") == number)
        observed = np.stack([np.asarray(row) for row in own["observation"].to_list()])
        np.testing.assert_array_equal(observed, np.asarray(episode.observations)[: len(episode)])
        assert own["policy"].unique().to_list() == episode.policies
    assert polars.DataFrame(steps(run, *FEW)).columns == FEW


def test_duckdb(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("steps", pa.RecordBatchReader.from_stream(steps(run)))
        # A stream can be read once; a table as often as one likes.
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
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pa.table(steps(run)).to_pandas()
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


def test_torch(run: relevo.Run, expected: dict[int, relevo.Episode]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    count = 0
    for batch in pa.RecordBatchReader.from_stream(steps(run, "episode", "step", "observation", "action")):
        acted = batch.filter(pc.is_valid(batch["action"]))
        # A copy, as Arrow's memory cannot be written to.
        observed = torch.from_numpy(acted["observation"].to_numpy_ndarray().copy())
        actions = torch.from_numpy(acted["action"].to_numpy().copy())
        places = zip(acted["episode"].to_pylist(), acted["step"].to_pylist(), strict=True)
        for row, (number, step) in enumerate(places):
            episode = expected[number]
            assert observed[row].tolist() == np.asarray(episode.observations)[step].tolist()
            assert actions[row].item() == np.asarray(episode.actions)[step]
            count += 1
    assert count == sum(map(len, expected.values()))
