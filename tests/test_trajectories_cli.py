"""`relevo trajectories`: what it tells of runs, and what it draws."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import episodes
import models
import numpy as np
import pytest
from test_cli import relevo_command

import relevo
from relevo.trajectories.curves import return_curves
from relevo.trajectories.index import EpisodeIndex
from relevo.trajectories.plot import Plot
from relevo.trajectories.summary import Summary


@pytest.fixture
def run(tmp_path: Path) -> relevo.Run:
    return episodes.recorded(tmp_path)


def trajectories(*arguments: str | Path) -> str:
    done = relevo_command("trajectories", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def played(folder: Path, steps: int, reward: float = 1.0, policy: str = "default") -> Path:
    """A run of one actor, with an episode of each three steps."""
    model = models.linear(folder / "policy.onnx", np.eye(2))
    with relevo.AgentBuilder().policy(policy, model).seed(1).record(folder / "run").build() as agent:
        actors = agent.actors()
        for step in range(steps):
            actors.act(np.zeros((1, 2), np.float32))
            actors.observe(reward, terminated=step % 3 == 2)
    return folder / "run"


def test_info_with_json(run: relevo.Run) -> None:
    shown = json.loads(trajectories("info", run.path, "--json"))
    recorded = list(run.episodes())
    ended = [episode for episode in recorded if episode.complete]
    assert (shown["episodes"], shown["steps"]) == (len(recorded), sum(map(len, recorded))) == (12, 46)
    assert (shown["terminated"], shown["truncated"], shown["unfinished"]) == (8, 2, 2)
    finite = [episode.episode_return for episode in ended if np.isfinite(episode.episode_return)]
    assert shown["returns_not_finite"] == len(ended) - len(finite)
    assert shown["returns"]["mean"] == pytest.approx(np.mean(finite))
    assert shown["returns"]["median"] == pytest.approx(np.median(finite))
    assert (shown["lengths"]["min"], shown["lengths"]["max"]) == (4, 4)
    rewards = np.concatenate([episode.rewards for episode in recorded])
    known = [episode.rewards_known for episode in recorded]
    missing = sum(int((~own).sum()) for own in known if own is not None)
    assert shown["rewards_missing"] == missing == 2
    assert shown["rewards_nan"] == np.isnan(rewards).sum() - missing
    assert shown["rewards_infinite"] == np.isinf(rewards).sum()
    assert shown["bytes"] == sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
    assert shown["bytes_per_step"] == pytest.approx(shown["bytes"] / 46)
    assert (shown["seed"], shown["run_id"], shown["segments"]) == (3, run.info["run_id"], 1)
    (version,) = shown["versions"]
    assert version.pop("mean_return") == pytest.approx(np.mean(finite))
    assert version == {"policy": "default", "version": 1, "episodes": 10, "steps": 46}
    assert 0 < len(finite) < len(ended)


def test_info_counts_strange_rewards(tmp_path: Path) -> None:
    for reward, name in ((float("nan"), "rewards_nan"), (float("inf"), "rewards_infinite")):
        folder = tmp_path / name
        folder.mkdir()
        shown = json.loads(trajectories("info", played(folder, 9, reward), "--json"))
        assert shown[name] == 9
        assert (shown["returns"], shown["returns_not_finite"]) == (None, 3)
        assert "NaN or infinite in all 3" in trajectories("info", folder / "run")


def test_info_for_people(run: relevo.Run) -> None:
    shown = trajectories("info", run.path)
    for words in (
        "12: 8 terminated, 2 truncated, 2 unfinished",
        "4 each",
        "2 never came",
        "bytes a step",
        "in 1 segment",
    ):
        assert words in shown


def test_info_of_a_run_that_holds_nothing(tmp_path: Path) -> None:
    model = models.linear(tmp_path / "policy.onnx", np.eye(2))
    with relevo.AgentBuilder().default_model(model).record(tmp_path / "run").build():
        pass
    shown = json.loads(trajectories("info", tmp_path / "run", "--json"))
    assert (shown["episodes"], shown["steps"], shown["returns"], shown["bytes_per_step"]) == (0, 0, None, None)
    assert "No episode is recorded yet" in trajectories("info", tmp_path / "run")
    trajectories("plot", tmp_path / "run")
    assert {path.name for path in tmp_path.glob("run.*")} == {"run.png", "run.html"}
    done = relevo_command("trajectories", "show", tmp_path / "run", "--episode", "0")
    assert (done.returncode, done.stderr.strip()[-17:]) == (1, "; it has none yet")


def test_info_tells_versions_apart(tmp_path: Path) -> None:
    model = models.linear(tmp_path / "policy.onnx", np.eye(2))
    with relevo.AgentBuilder().default_model(model).record(tmp_path / "run").build() as agent:
        actors = agent.actors()
        for version in range(1, 21):
            if version > 1:
                agent.update_model(model)
            for step in range(4):
                actors.act(np.zeros((1, 2), np.float32))
                actors.observe(version, terminated=step == 3)
    shown = json.loads(trajectories("info", tmp_path / "run", "--json"))
    assert [own["version"] for own in shown["versions"]] == list(range(1, 21))
    assert [own["mean_return"] for own in shown["versions"]] == [4.0 * version for version in range(1, 21)]
    text = trajectories("info", tmp_path / "run")
    assert "… 8 more" in text
    assert re.findall(r"default +(\d+) ", text) == [*map(str, range(1, 7)), *map(str, range(15, 21))]


@pytest.mark.parametrize("name", ["pölicy 策略", "[red]x[/red]", "a$b$c_{d", "<b>&"])
def test_names_of_every_kind(tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"r {name.replace('/', '')}"
    folder.mkdir()
    run = played(folder, 7, policy=name)
    assert name in trajectories("info", run)
    assert name in trajectories("show", run, "--episode", "0")
    trajectories("plot", run)
    page = run.with_name("run.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    assert (folder / "run.png").stat().st_size > 10_000


def test_show_leaves_rows_out_and_says_so(run: relevo.Run) -> None:
    text = trajectories("show", run.path, "--episode", "0")
    episode = next(episode for episode in run.episodes() if episode.number == 0)
    rows = re.findall(r"^ +(\d+) ", text, re.MULTILINE)
    assert rows == ["0", "1", "2", "3"]
    assert f"{np.asarray(episode.observations)[-1][0]:.4g}" in text
    assert str(episode.actor_id) in text
    abridged = trajectories("show", run.path, "--episode", "0", "--rows", "3")
    assert re.findall(r"^ +(\d+) ", abridged, re.MULTILINE) == ["0", "1"]
    assert "2 rows left out" in abridged


def test_show_with_json_gives_every_number(run: relevo.Run) -> None:
    for episode in run.episodes():
        shown = json.loads(trajectories("show", run.path, "--episode", str(episode.number), "--json"))
        known = episode.rewards_known
        came = [True] * len(episode) if known is None else known.tolist()
        names = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}
        rewards = [names.get(reward, reward) for reward in shown["rewards"]]
        assert [reward is not None for reward in rewards] == came
        np.testing.assert_array_equal(np.array(rewards, np.float64), episode.rewards)
        np.testing.assert_array_equal(np.array(shown["observations"], np.float32), episode.observations)
        assert shown["actions"] == episode.actions.tolist()
        assert np.array([time[:-1] for time in shown["timestamps"]], "datetime64[ns]").tolist() == (
            episode.timestamps.tolist()
        )
        assert (shown["complete"], shown["steps"]) == (episode.complete, len(episode))
        if episode.number >= 3:
            break


def test_an_episode_that_is_not_there(run: relevo.Run) -> None:
    done = relevo_command("trajectories", "show", run.path, "--episode", "12")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "has no episode 12; it has 0 to 11" in done.stderr


def test_plot_writes_a_picture_and_a_page_that_needs_nothing(run: relevo.Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    trajectories("plot", run.path)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    # Nothing is fetched: no scripts, style sheets, images or fonts; only names of XML's vocabularies.
    assert not re.search(r"<(script|link|img|iframe)|url\((?!#)|@import", page)
    images = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(images) == 3
    for image in images:
        ET.fromstring(image)  # noqa: S314  (our own page)
    assert "without" in images[0]
    assert "terminated: 8" in images[1]
    (tmp_path / "only").mkdir()
    trajectories("plot", run.path, "--out", tmp_path / "only" / "a.html")
    assert [path.name for path in (tmp_path / "only").iterdir()] == ["a.html"]
    for out, code in (("a.jpg", 2), (Path("nowhere") / "a.png", 1)):
        assert relevo_command("trajectories", "plot", run.path, "--out", tmp_path / out).returncode == code


def test_plot_without_matplotlib(run: relevo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A module that cannot be imported stands before the one that can.
    (tmp_path / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = relevo_command("trajectories", "plot", run.path)
    assert done.returncode == 1
    assert 'pip install "relevo[plot]"' in done.stderr
    assert not (tmp_path / "run.png").exists()


def test_export(run: relevo.Run, tmp_path: Path) -> None:
    shown = json.loads(trajectories("export", run.path, tmp_path / "a.parquet", "--to", "parquet", "--json"))
    assert shown == {"paths": [str(tmp_path / "a.parquet")], "episodes": 12, "steps": 46, "left_out": 0}
    assert len(list(relevo.trajectories.from_parquet(tmp_path / "a.parquet"))) == 12
    assert "12 episodes, 46 steps" in trajectories("export", run.path, tmp_path / "csv", "--to", "csv")
    done = relevo_command("trajectories", "export", run.path, tmp_path / "csv", "--to", "csv")
    assert (done.returncode, "is there already" in done.stderr) == (1, True)
    done = relevo_command("trajectories", "export", run.path, tmp_path / "b", "--to", "csv", "--env", "CartPole-v1")
    assert (done.returncode, "--env and --policy are for" in done.stderr) == (2, True)


def test_export_to_minari(run: relevo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari", reason="Minari is not installed")
    pytest.importorskip("h5py", reason="h5py is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    text = trajectories("export", run.path, "demo/a-v0", "--to", "minari", "--policy", "default")
    for words in ("10 episodes, 40 steps", "2 episodes, whose final observation is not known", "from_minari"):
        assert words in text


@pytest.fixture
def index() -> Callable[[int], EpisodeIndex]:
    """An index of so many episodes, out of thin air: returns grow from 0 to 1 with much noise, over 50 versions."""

    def make(count: int) -> EpisodeIndex:
        random = np.random.default_rng(0)
        steps = random.integers(1, 500, count)
        times = np.datetime64("2026-11-30", "ns") + np.arange(count) * 1000
        ends = random.random(count) < 0.5
        return EpisodeIndex(
            numbers=np.arange(count, dtype=np.uint64),
            steps=steps,
            returns=np.linspace(0, 1, count) + random.normal(size=count),
            terminated=ends,
            truncated=~ends,
            complete=np.ones(count, np.bool_),
            policies=np.zeros(count, np.int64),
            versions=np.linspace(1, 50, count).astype(np.uint64),
            begins=times,
            ends=times,
            rewards_missing=np.zeros(count, np.int64),
            rewards_nan=np.zeros(count, np.int64),
            rewards_infinite=np.zeros(count, np.int64),
            policy_names=["default"],
        )

    return make


def test_curves_of_few_episodes_are_those_episodes(index: Callable[[int], EpisodeIndex]) -> None:
    few = index(1_000)
    strange = few.returns.copy()
    strange[[5, 70]] = np.nan, np.inf
    shuffled = np.random.default_rng(1).permutation(1_000)
    curves = return_curves(dataclasses.replace(few, returns=strange)[shuffled])
    assert curves.left_out == 2
    assert curves.band is None
    drawn = np.delete(np.arange(1_000), [5, 70])
    np.testing.assert_array_equal(np.concatenate([points.returns for points in curves.points]), strange[drawn])
    np.testing.assert_array_equal(np.concatenate([points.at for points in curves.points]), np.cumsum(few.steps)[drawn])
    (average,) = curves.averages
    assert average.episodes == 100
    expected = np.convolve(strange[drawn], np.ones(100) / 100, "valid")
    np.testing.assert_allclose(average.returns, expected, atol=1e-12)


def test_curves_of_a_million_episodes_stay_small(index: Callable[[int], EpisodeIndex], tmp_path: Path) -> None:
    many = index(1_000_000)
    curves = return_curves(many)
    assert sum(len(points.at) for points in curves.points) < 300
    (average,) = curves.averages
    assert len(average.at) <= 2_000
    assert np.abs(average.returns - np.linspace(0, 1, len(average.returns))).max() < 0.05
    assert curves.band is not None
    low, high = curves.band[1:]
    # Eight tenths of a normal distribution.
    assert np.allclose(high - low, 2 * 1.2816, atol=0.1)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot = Plot("many", many, curves, [], 0)
    plot.save_png(tmp_path / "many.png")
    assert sum(len(image) for image, _ in plot.images()) < 500_000


def test_the_index_is_that_of_the_episodes(run: relevo.Run) -> None:
    index = EpisodeIndex.of(run)
    recorded = sorted(run.episodes(), key=lambda episode: episode.number)
    assert index.numbers.tolist() == [episode.number for episode in recorded]
    assert index.steps.tolist() == [len(episode) for episode in recorded]
    np.testing.assert_array_equal(index.returns, [episode.episode_return for episode in recorded])
    np.testing.assert_array_equal(index.begins, [episode.timestamps[0] for episode in recorded])
    np.testing.assert_array_equal(index.ends, [episode.timestamps[-1] for episode in recorded])
    for name in ("terminated", "truncated", "complete"):
        assert getattr(index, name).tolist() == [getattr(episode, name) for episode in recorded]
    came = [np.isnan(episode.rewards) & (True if (k := episode.rewards_known) is None else k) for episode in recorded]
    assert index.rewards_nan.tolist() == [int(own.sum()) for own in came]
    assert index.rewards_missing.sum() == 2
    assert [index.policy_names[policy] for policy in index.policies] == ["default"] * 12
    assert set(index.versions.tolist()) == {1}
    assert Summary.of(run, index[index.complete]).unfinished == 0
