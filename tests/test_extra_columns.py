"""Columns of the user's own, and observations that are texts: in memory, on disk, in Arrow, and in what others read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import models
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import relevo

ACTORS = 3


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.ones((4, 2)))


def builder(policy: Path) -> relevo.AgentBuilder:
    return (
        relevo.AgentBuilder()
        .default_model(policy)
        .actor_count(ACTORS)
        .seed(1)
        .extra("goal", "float32", (2,))
        .extra("level", "int16")
        .extra("note", "utf8")
        .text_observation("mission")
    )


def note(step: int, actor: int) -> str:
    return "é" * (step % 4) + f"{step}/{actor}"


def given(step: int) -> dict[str, Any]:
    return {
        "goal": np.arange(ACTORS * 2, dtype=np.float32).reshape(ACTORS, 2) + step,
        "level": np.arange(ACTORS, dtype=np.int16) + step,
        "note": [note(step, actor) for actor in range(ACTORS)],
    }


def observation(step: int) -> dict[str, Any]:
    return {"obs": np.full((ACTORS, 4), step, np.float32), "mission": [f"go to {step}" for _ in range(ACTORS)]}


def play(actors: relevo.Actors, steps: int, ends: int) -> None:
    """Episodes of `ends` steps; the last is left open."""
    for step in range(steps):
        actors.act(observation(step), extra=given(step))
        ended = (step + 1) % ends == 0
        final = {"obs": np.full((ACTORS, 4), 100.0 + step, np.float32), "mission": [f"done {step}"] * ACTORS}
        actors.observe(np.ones(ACTORS), terminated=ended, final_obs=final if ended else None)


def check(episode: Any, actors: list[UUID]) -> tuple[int, int]:
    """Checks it, an Episode or an EpisodeData, against what was given; returns its first step and its actor."""
    begin, actor = map(int, episode.extras["note"][0].lstrip("é").split("/"))
    assert episode.actor_id == actors[actor]
    steps = range(begin, begin + len(episode))
    np.testing.assert_array_equal(episode.extras["goal"], np.stack([given(step)["goal"][actor] for step in steps]))
    np.testing.assert_array_equal(episode.extras["level"], [step + actor for step in steps])
    assert episode.extras["level"].dtype == np.int16
    assert episode.extras["note"] == [note(step, actor) for step in steps]
    missions = [f"go to {step}" for step in steps]
    if episode.has_final_observation:
        missions.append(f"done {steps[-1]}")
    assert episode.texts == {"mission": missions}
    return begin, actor


PLAYED = sorted((begin, actor) for begin in (0, 10, 20) for actor in range(ACTORS))


class Recorded(NamedTuple):
    path: Path
    actors: list[UUID]


@pytest.fixture
def run(policy: Path, tmp_path: Path) -> Recorded:
    with builder(policy).record(tmp_path / "run").build() as agent:
        play(agent.actors(), 25, 10)
        actors = agent.get_actor_ids()
        agent.shutdown()
        assert sorted(check(episode, actors) for episode in agent.trajectories()) == PLAYED
    return Recorded(tmp_path / "run", actors)


def test_every_step_has_what_was_given_with_it(run: Recorded) -> None:
    opened = relevo.open_run(run.path)
    assert sorted(check(episode, run.actors) for episode in opened.episodes()) == PLAYED
    assert sorted(check(opened.episode(number), run.actors) for number in range(9)) == PLAYED


def test_columns_of_steps(run: Recorded) -> None:
    table = pa.table(relevo.open_run(run.path).steps())
    assert table.schema.field("extra.note").type == pa.string()
    assert table.schema.field("observation.mission").type == pa.string()
    closing = [row for row in table.to_pylist() if row["action"] is None]
    assert len(closing) == 6
    assert all(row["extra.goal"] is None and row["extra.note"] is None for row in closing)
    assert sorted(row["observation.mission"] for row in closing) == ["done 19"] * 3 + ["done 9"] * 3
    batches = list(relevo.open_run(run.path).steps(["extra.level", "extra.note"]))
    assert sum(len(batch["extra.level"]) for batch in batches) == table.num_rows


def test_single_calls_and_tasks(policy: Path) -> None:
    def one(array: npt.NDArray[Any] | list[str], actor: int) -> Any:
        return array[actor : actor + 1]

    async def tasks(agent: relevo.Agent) -> None:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        for step in range(4):
            calls = []
            for actor, handle in enumerate(handles):
                obs = {name: one(array, actor) for name, array in observation(step).items()}
                extra = {name: one(array, actor) for name, array in given(step).items()}
                if step % 2:
                    handle.act(obs, extra=extra)
                else:
                    calls.append(handle.act_async(obs, extra=extra))
            await asyncio.gather(*calls)
            for handle in handles:
                handle.observe(1.0)

    with builder(policy).build() as agent:
        asyncio.run(tasks(agent))
        ids = agent.get_actor_ids()
        agent.actors(ids[::-1]).act(observation(4), extra=given(4))
        agent.shutdown()
        episodes = {episode.actor_id: episode for episode in agent.trajectories()}
    for actor, identity in enumerate(ids):
        steps = [(step, actor) for step in range(4)] + [(4, ACTORS - 1 - actor)]
        assert episodes[identity].extras["note"] == [note(*at) for at in steps]
        assert episodes[identity].extras["level"].tolist() == [sum(at) for at in steps]


def test_long_episodes_are_written_in_parts(policy: Path, tmp_path: Path) -> None:
    long = "x" * 100_000
    agent = builder(policy).record(tmp_path / "run").keep_in_memory(0).build()
    with agent:
        actors = agent.actors()
        for step in range(60):
            actors.act(observation(step), extra=given(step) | {"note": [f"{step}{long}"] * ACTORS})
            actors.observe(1.0)
    run = relevo.open_run(tmp_path / "run")
    assert len(list(pa.RecordBatchReader.from_stream(run.steps()))) > 1
    for episode in run.episodes():
        assert episode.extras["note"] == [f"{step}{long}" for step in range(60)]


def test_a_trajectory_that_is_cut_has_the_next_text_as_its_last(policy: Path) -> None:
    with builder(policy).max_trajectory_length(2).build() as agent:
        play(agent.actors(), 5, 100)
        agent.shutdown()
        first = min(agent.trajectories(), key=lambda episode: episode.number)
    assert first.truncated
    assert first.texts == {"mission": ["go to 0", "go to 1", "go to 2"]}


def test_a_call_that_is_not_recorded_needs_none(policy: Path) -> None:
    with builder(policy).build() as agent:
        actors = agent.actors()
        actors.act({"obs": np.zeros((ACTORS, 4), np.float32)}, record=False)
        play(actors, 2, 2)
        agent.flush()
        assert len(agent.trajectories()) == ACTORS


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"extra": None}, "gives no value for the extra column `goal`"),
        ({"extra": {"goal": np.zeros((ACTORS, 2), np.float32)}}, "gives no value for the extra column `level`"),
        ({"extra": given(0) | {"color": [0] * ACTORS}}, "has no extra column `color`; declare it"),
        ({"extra": given(0) | {"goal": np.zeros((ACTORS, 2))}}, "extra `goal` must be float32 of shape (3, 2)"),
        ({"extra": given(0) | {"level": np.zeros(2, np.int16)}}, "extra `level` must be int16 of shape (3,)"),
        ({"extra": given(0) | {"note": ["a"]}}, "must be a list of 3 texts"),
        ({"extra": given(0) | {"note": "abc"}}, "must be a list of texts"),
        ({"extra": given(0) | {"note": [1, 2, 3]}}, "must be a list of texts"),
        ({"obs": np.zeros((ACTORS, 4), np.float32)}, "gives no value for the text observation `mission`"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(policy: Path, change: dict[str, Any], expected: str) -> None:
    with builder(policy).build() as agent:
        with pytest.raises(relevo.ContractError) as raised:
            agent.actors().act(**({"obs": observation(0), "extra": given(0)} | change))
        assert expected in str(raised.value)
        play(agent.actors(), 2, 2)
        agent.flush()
        assert [len(episode) for episode in agent.trajectories()] == [2] * ACTORS


def test_a_call_without_any_value_names_all_columns(policy: Path) -> None:
    with builder(policy).build() as agent, pytest.raises(relevo.ContractError, match="goal, level, note, mission"):
        agent.actors().act(np.zeros((ACTORS, 4), np.float32))


def test_final_observations_need_their_text(policy: Path) -> None:
    with builder(policy).build() as agent:
        actors = agent.actors()
        actors.act(observation(0), extra=given(0))
        final = {"obs": np.zeros((ACTORS, 4), np.float32)}
        with pytest.raises(relevo.ContractError, match="has no text `mission`"):
            actors.observe(1.0, terminated=True, final_obs=final)
        objects = np.array([{"obs": row, "mission": "over"} for row in final["obs"]], dtype=object)
        actors.observe(1.0, terminated=True, final_obs=objects)
        agent.flush()
        assert [episode.texts["mission"] for episode in agent.trajectories()] == [["go to 0", "over"]] * ACTORS


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda made: made.extra("goal"), "two columns of the steps would be called `extra.goal`"),
        (lambda made: made.extra("when", "datetime64"), 'dtype of the extra column `when` is "datetime64"'),
        (lambda made: made.extra("words", "utf8", (2,)), "the texts of `words` have no shape"),
        (lambda made: made.extra(""), "takes a name that is a text"),
        (lambda made: made.extra("big", "float64", (1 << 20, 1 << 20)), "over 2^31 elements"),
    ],
)
def test_columns_that_cannot_be_are_refused(policy: Path, change: Any, expected: str) -> None:
    with pytest.raises(relevo.ConfigError) as raised:
        change(builder(policy)).build()
    assert expected in str(raised.value)


@pytest.mark.parametrize("kind", ["parquet", "csv", "run", "minari"])
def test_other_formats_give_them_back(
    run: Recorded, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = relevo.open_run(run.path)
    if kind == "parquet":
        relevo.trajectories.to_parquet(opened, tmp_path / "steps.parquet")
        read = list(relevo.trajectories.from_parquet(tmp_path / "steps.parquet"))
    elif kind == "csv":
        relevo.trajectories.to_csv(opened, tmp_path / "csv")
        read = list(relevo.trajectories.from_csv(tmp_path / "csv"))
    elif kind == "run":
        episodes = map(relevo.trajectories.EpisodeData.of, opened.episodes())
        relevo.trajectories.to_run(episodes, tmp_path / "copy")
        read = list(map(relevo.trajectories.EpisodeData.of, relevo.open_run(tmp_path / "copy").episodes()))
    else:
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        relevo.trajectories.to_minari(opened, "own/columns-v0")
        read = list(relevo.trajectories.from_minari("own/columns-v0"))
    # Minari cannot hold those that have no final observation.
    played = [of for of in PLAYED if of[0] < 20 or kind != "minari"]
    assert sorted(check(episode, run.actors) for episode in read) == played


def test_a_call_that_failed_leaves_its_values_to_no_other(tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", np.ones((4, 2)))
    with builder(policy).build() as agent:
        actors = agent.actors()
        bad = observation(0)
        # Their sum is NaN.
        bad["obs"][1] = [np.inf, -np.inf, 0, 0]
        with pytest.raises(relevo.InferenceError):
            actors.act(bad, extra=given(0))
        with pytest.raises(relevo.ContractError, match="gives no values for them"):
            actors.act(np.zeros((ACTORS, 4), np.float32))
