"""Exports: what is written gives what the original gives, and Relevo knows it by its names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import relevo
import relevo.export

torch = pytest.importorskip("torch", reason="torch is not installed: exports are made by it")
pytest.importorskip("onnxruntime")

import torch_modules  # noqa: E402 : it needs torch

EXPORTS = {"onnx": relevo.export.to_onnx, "pt": relevo.export.to_torchscript}
BOX = gym.spaces.Box(-10, 10, (4,), np.float32)


def can_load(suffix: str) -> bool:
    return suffix == "onnx" or any(name == "torchscript" for name, *_ in relevo._core.other_backends())


@pytest.fixture(params=EXPORTS)
def form(request: pytest.FixtureRequest) -> str:
    if not can_load(request.param):
        pytest.skip("relevo-torch is not installed: it loads TorchScript")
    return str(request.param)


@pytest.fixture
def export(form: str, tmp_path: Path) -> Iterator[Callable[..., relevo.export.ExportReport]]:
    """Exports into a file that the agent of a test then serves."""

    def run(source: Any, *arguments: Any, **options: Any) -> relevo.export.ExportReport:
        path = tmp_path / f"policy.{form}"
        report = EXPORTS[form](source, path, *arguments, **options)
        assert report.path == path
        assert report.contract is not None
        assert report.contract.batch == "dynamic"
        assert report.contract.random_ops == []
        assert report.largest_difference <= 5e-5
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        return report

    return run


def outputs(report: relevo.export.ExportReport, *observations: Any) -> dict[str, Any]:
    model = relevo.ModelModule.load_from_path(report.path)
    names = [tensor.name for tensor in model.contract.inputs]
    return model.forward(dict(zip(names, observations, strict=True)))


def shapes(report: relevo.export.ExportReport) -> dict[str, tuple[int, ...]]:
    assert report.contract is not None
    return {tensor.name: tensor.row_shape for tensor in report.contract.inputs}


def test_a_module_with_named_outputs(export: Callable[..., relevo.export.ExportReport]) -> None:
    module = torch_modules.ActorCritic()
    report = export(module, BOX, outputs=["logits", "value"])
    assert report.roles == {"obs": "observation", "logits": "logits", "value": "value"}
    assert report.default_head == "categorical"
    assert report.bounds is None
    assert module.training
    rows = np.random.default_rng(5).standard_normal((6, 4)).astype(np.float32)
    with torch.no_grad():
        logits, value = module.eval()(torch.from_numpy(rows))
    found = outputs(report, rows)
    np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
    np.testing.assert_allclose(found["value"], value, atol=1e-5)


def test_observations_stand_for_a_space(export: Callable[..., relevo.export.ExportReport]) -> None:
    report = export(torch_modules.ActorCritic(), np.zeros((2, 4)), outputs=["logits", "value"])
    assert shapes(report) == {"obs": (4,)}


def test_a_branch_on_values_is_scripted(form: str, tmp_path: Path) -> None:
    module = torch_modules.Branching()
    if form == "onnx":
        # The exporter keeps the branch of a scripted function.
        report = relevo.export.to_onnx(module, tmp_path / "policy.onnx", BOX, outputs=["logits"])
    else:
        report = relevo.export.to_torchscript(module, tmp_path / "policy.pt", BOX, outputs=["logits"])
    large = np.full((1, 4), 9, np.float32)
    np.testing.assert_allclose(
        outputs(report, large)["logits"], module.large(torch.from_numpy(large)).detach(), atol=1e-5, rtol=1e-5
    )


def test_what_no_trace_and_no_script_does_is_refused_and_nothing_written(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"policy.{form}"
    path.write_bytes(b"the one before")
    with pytest.raises(
        relevo.ExportError, match=r"a trace would keep one answer .*bool\(obs.*line \d+.*; scripted, it fails"
    ):
        EXPORTS[form](torch_modules.Unscriptable(), path, BOX, outputs=["logits"])
    assert path.read_bytes() == b"the one before"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_dict_of_observations(export: Callable[..., relevo.export.ExportReport]) -> None:
    space = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (3, 8, 8), np.uint8), "speed": gym.spaces.Box(-1, 1, (2,), np.float32)}
    )
    module = torch_modules.DictModule()
    report = export(module, space)
    assert report.roles == {"image": "observation", "speed": "observation", "logits": "logits"}
    assert report.contract is not None
    assert [tensor.dtype for tensor in report.contract.inputs] == ["uint8", "float32"]
    image, speed = np.full((2, 3, 8, 8), 200, np.uint8), np.ones((2, 2), np.float32)
    with torch.no_grad():
        expected = module({"image": torch.from_numpy(image), "speed": torch.from_numpy(speed)})["logits"]
    np.testing.assert_allclose(outputs(report, image, speed)["logits"], expected, atol=1e-5)


def test_a_cleanrl_agent_for_images(export: Callable[..., relevo.export.ExportReport]) -> None:
    report = export(torch_modules.CleanRLDiscrete(), gym.spaces.Box(0, 255, (2, 8, 8), np.uint8))
    assert report.roles == {"obs": "observation", "logits": "logits", "value": "value"}
    assert report.contract is not None
    assert report.contract.inputs[0].dtype == "uint8"


def test_a_cleanrl_agent_with_continuous_actions(export: Callable[..., relevo.export.ExportReport]) -> None:
    report = export(torch_modules.CleanRLContinuous(), BOX)
    assert report.roles == {"obs": "observation", "mean": "mean", "log_std": "log_std", "value": "value"}
    assert report.default_head == "gaussian"
    np.testing.assert_allclose(outputs(report, np.zeros((1, 4), np.float32))["log_std"].reshape(-1), [-0.5, 0.25])


def test_branches_are_in_the_file(export: Callable[..., relevo.export.ExportReport]) -> None:
    report = export(torch_modules.ActorCritic(choices=5), BOX, outputs=["logits", "value"], branches=[2, 3])
    assert report.contract is not None
    assert report.contract.branches == (2, 3)
    agent = relevo.AgentBuilder().default_model(report.path)
    with agent.actor_count(3).build() as running:
        assert np.asarray(running.actors().act(np.zeros((3, 4), np.float32))).shape == (3, 2)


def test_normalisation_goes_into_the_file(export: Callable[..., relevo.export.ExportReport]) -> None:
    module = torch_modules.ActorCritic()
    statistics = relevo.Normalization([1000.0, -2.0, 0.0, 5.0], [4.0, 0.25, 1.0, 9.0], clip=3.0)
    report = export(module, BOX, outputs=["logits", "value"], normalization=statistics)
    rows = np.array([[1001.0, -2.5, 100.0, 5.0]], np.float32)
    with torch.no_grad():
        logits, _ = module.eval()(torch.tensor([[0.5, -1.0, 3.0, 0.0]]))
    np.testing.assert_allclose(outputs(report, rows)["logits"], logits, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"gives 2 tensors without names; name them by outputs="),
        ({"outputs": ["logits"]}, r"gives 2 tensors, where 1 are named: logits"),
        ({"outputs": ["logits", "value"], "observation": None}, r"what a module observes must be given"),
        ({"outputs": ["logits", "value"], "observation": np.zeros((0, 4))}, r"array of rows"),
        ({"outputs": ["logits", "value"], "normalization": relevo.Normalization([0], [1])}, r"1 means and 1 variances"),
        ({"outputs": ["logits", "value"], "normalization": "running"}, r"must be a relevo.Normalization"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = {"observation": BOX, **options}
    with pytest.raises(relevo.ConfigError, match=message):
        relevo.export.to_onnx(torch_modules.ActorCritic(), tmp_path / "policy.onnx", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_fails_on_its_observations(tmp_path: Path) -> None:
    with pytest.raises(relevo.ExportError, match=r"ActorCritic fails on obs \(1, 5\)"):
        relevo.export.to_onnx(
            torch_modules.ActorCritic(), tmp_path / "p.onnx", np.zeros((1, 5)), outputs=["logits", "value"]
        )


def test_torchscript_is_written_where_nothing_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        @staticmethod
        def load_from_bytes(*_data: Any, **_options: Any) -> None:
            raise relevo.ModelLoadError('TorchScript is loaded by another package; pip install "relevo[torch]"')

    monkeypatch.setattr(relevo.export.file, "ModelModule", Absent)
    path = tmp_path / "policy.pt"
    report = relevo.export.to_torchscript(torch_modules.ActorCritic(), path, BOX, outputs=["logits", "value"])
    assert path.stat().st_size > 0
    assert (report.contract, report.roles, report.default_head) == (None, {}, None)


def test_the_original_is_as_it_was(tmp_path: Path) -> None:
    module = torch_modules.ActorCritic()
    module.body.eval()
    before, random = [part.training for part in module.modules()], torch.get_rng_state()
    relevo.export.to_onnx(module, tmp_path / "policy.onnx", BOX, outputs=["logits", "value"])
    assert [part.training for part in module.modules()] == before
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.is_grad_enabled()


# --- Stable-Baselines3 ---


def sb3() -> Any:
    return pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")


class World(gym.Env[Any, Any]):
    """Shows random observations; every space can be had."""

    def __init__(self, observations: gym.Space[Any], actions: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.observation_space.sample(), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.1), False, {}


SPACES: dict[str, tuple[str, gym.Space[Any], dict[str, Any]]] = {
    "ppo-discrete": ("PPO", gym.spaces.Discrete(3), {}),
    "a2c-multi-discrete": ("A2C", gym.spaces.MultiDiscrete([2, 4]), {}),
    "ppo-box": ("PPO", gym.spaces.Box(np.array([-2, 0], np.float32), np.array([1, 3], np.float32)), {}),
    "ppo-noise": (
        "PPO",
        gym.spaces.Box(-1, 2, (2,)),
        {"use_sde": True, "policy_kwargs": {"squash_output": True}},
    ),
    "dqn": ("DQN", gym.spaces.Discrete(3), {}),
    "sac": ("SAC", gym.spaces.Box(np.array([-2, 0], np.float32), np.array([1, 3], np.float32)), {}),
    "sac-noise": ("SAC", gym.spaces.Box(-1, 2, (2,)), {"use_sde": True}),
    "td3": ("TD3", gym.spaces.Box(-1, 2, (2,)), {}),
    "ppo-grid": ("PPO", gym.spaces.Box(-1, 2, (2, 3), np.float32), {}),
    "sac-grid": ("SAC", gym.spaces.Box(-1, 2, (2, 3), np.float32), {}),
    "td3-grid": ("TD3", gym.spaces.Box(-1, 2, (2, 3), np.float32), {}),
    "qrdqn": ("QRDQN", gym.spaces.Discrete(3), {}),
    "ars-discrete": ("ARS", gym.spaces.Discrete(3), {}),
    "ars-box": ("ARS", gym.spaces.Box(np.array([-2, 0], np.float32), np.array([1, 3], np.float32)), {}),
    "ars-linear": ("ARS", gym.spaces.Box(-1, 2, (2,)), {"policy": "LinearPolicy"}),
}
ROLES = {
    "ppo-discrete": ({"logits": "logits", "value": "value"}, "categorical"),
    "a2c-multi-discrete": (
        {"logits": "logits", "value": "value", "discrete_action_output_shape": "constant"},
        "categorical",
    ),
    "ppo-box": ({"mean": "mean", "log_std": "log_std", "value": "value"}, "gaussian"),
    "ppo-noise": ({"mean": "mean", "log_std": "log_std", "value": "value"}, "gaussian"),
    "dqn": ({"deterministic_action": "deterministic_action", "q_values": "action_values"}, "raw"),
    "sac": ({"mean": "mean", "log_std": "log_std"}, "gaussian"),
    "sac-noise": ({"mean": "mean", "log_std": "log_std"}, "gaussian"),
    "td3": ({"action": "action"}, "raw"),
    "ppo-grid": ({"mean": "mean", "log_std": "log_std", "value": "value"}, "gaussian"),
    "sac-grid": ({"mean": "mean", "log_std": "log_std"}, "gaussian"),
    "td3-grid": ({"action": "action"}, "raw"),
    "qrdqn": ({"deterministic_action": "deterministic_action", "q_values": "action_values"}, "raw"),
    "ars-discrete": ({"deterministic_action": "deterministic_action", "q_values": "action_values"}, "raw"),
    "ars-box": ({"action": "action"}, "raw"),
    "ars-linear": ({"action": "action"}, "raw"),
}


def trained(name: str, observations: gym.Space[Any] = BOX, normalize: bool = False, **statistics: bool) -> Any:
    library = sb3()
    algorithm, actions, options = SPACES[name]
    if algorithm in {"ARS", "QRDQN"}:
        more = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
        made = getattr(more, algorithm)(options.get("policy", "MlpPolicy"), World(BOX, actions), seed=3, device="cpu")
        with torch.no_grad():
            for weights in made.policy.parameters():
                weights.normal_(std=0.5)
        return made
    if algorithm in {"PPO", "A2C"}:
        options = {"n_steps": 16, **options}
    if algorithm == "PPO":
        options = {"batch_size": 16, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = library.common.vec_env.DummyVecEnv([lambda: World(observations, actions)])
        if normalize:
            envs = library.common.vec_env.VecNormalize(envs, **statistics)
        policy = "MultiInputPolicy" if isinstance(observations, gym.spaces.Dict) else "MlpPolicy"
        model = getattr(library, algorithm)(policy, envs, seed=3, device="cpu", **options)
        # Far from where training begins, so that scores differ.
        torch.manual_seed(3)
        with torch.no_grad():
            for weights in model.policy.parameters():
                weights.add_(0.3 * torch.randn_like(weights))
        return model.learn(32)


@pytest.mark.parametrize("name", SPACES)
def test_a_stable_baselines_model(name: str, export: Callable[..., relevo.export.ExportReport]) -> None:
    """Actors that take the most likely action do what the model predicts."""
    model = trained(name)
    report = export(model)
    roles, head = ROLES[name]
    assert report.roles == {"obs": "observation", **roles}
    assert report.default_head is not None
    assert report.default_head.split(" ")[0] == head
    module = relevo.ModelModule.load_from_path(report.path)
    rows = np.random.default_rng(8).standard_normal((32, 4)).astype(np.float32)
    with relevo.AgentBuilder().default_model(module, bounds=report.bounds).actor_count(32).build() as agent:
        found = np.asarray(agent.actors().act(rows, deterministic=True))
    predicted, _ = model.predict(rows, deterministic=True)
    np.testing.assert_allclose(found, predicted, atol=1e-5)


def test_a_stable_baselines_model_brings_its_normalisation(export: Callable[..., relevo.export.ExportReport]) -> None:
    model = trained("ppo-discrete", normalize=True)
    envs = model.get_vec_normalize_env()
    report = export(model)
    rows = envs.observation_space.sample()[None] * np.ones((16, 1), np.float32)
    rows += np.random.default_rng(8).standard_normal(rows.shape).astype(np.float32)
    found = torch.from_numpy(outputs(report, rows)["logits"]).log_softmax(1)
    with torch.no_grad():
        normalised = model.policy.get_distribution(torch.from_numpy(envs.normalize_obs(rows))).distribution.logits
        as_they_are = model.policy.get_distribution(torch.from_numpy(rows)).distribution.logits
    np.testing.assert_allclose(found, normalised, atol=1e-5)
    assert not np.allclose(found, as_they_are, atol=1e-2)


def test_rewards_that_are_normalised_alone_are_no_statistics(
    export: Callable[..., relevo.export.ExportReport],
) -> None:
    model = trained("ppo-discrete", normalize=True, norm_obs=False)
    assert export(model).normalization == {}
    assert export(model, normalization=model.get_vec_normalize_env()).normalization == {}


def test_actions_of_several_axes_go_into_environments(export: Callable[..., relevo.export.ExportReport]) -> None:
    for name in ("ppo-grid", "sac-grid", "td3-grid"):
        report = export(trained(name))
        actions = SPACES[name][1]
        envs = gym.vector.SyncVectorEnv([lambda actions=actions: World(BOX, actions)] * 2)
        with relevo.AgentBuilder().default_model(report.path).actor_count(2).build() as agent:
            batch = agent.actors().act(np.zeros((2, 4), np.float32))
            assert batch.action.shape == (2, *actions.shape)
            assert all(actions.contains(action) for action in batch.action)
            assert relevo.collect(agent, envs, steps=8).steps >= 8


class Clamped(torch_modules.CleanRLContinuous):
    def get_action_and_value(self, x: Any, action: Any = None) -> tuple[Any, ...]:
        mean = self.actor_mean(x)
        probs = torch.distributions.Normal(mean, self.actor_logstd.clamp(-5, -2).expand_as(mean).exp())
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


def test_an_agent_that_acts_otherwise_than_its_parts_is_told_what_is_exported(form: str, tmp_path: Path) -> None:
    with pytest.raises(
        relevo.ExportError, match=r"otherwise than it acts: log-probability differs.*clamped deviation.*temperature"
    ):
        EXPORTS[form](Clamped(), tmp_path / f"policy.{form}", BOX)
    assert list(tmp_path.iterdir()) == []


def test_a_stable_baselines_model_of_several_observations(export: Callable[..., relevo.export.ExportReport]) -> None:
    space = gym.spaces.Dict({"place": gym.spaces.Discrete(4), "speed": gym.spaces.Box(-1, 1, (2,), np.float32)})
    report = export(trained("ppo-discrete", space))
    assert shapes(report) == {"place": (), "speed": (2,)}


def test_what_a_stable_baselines_model_knows_is_not_given_again(tmp_path: Path) -> None:
    with pytest.raises(relevo.ConfigError, match="knows its own observation, outputs"):
        relevo.export.to_onnx(trained("ppo-discrete"), tmp_path / "p.onnx", BOX, outputs=["logits", "value"])


def test_the_path_of_a_model_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(relevo.ConfigError, match=r"the path ppo\.zip came; load it first .*PPO\.load"):
        relevo.export.to_onnx("ppo.zip", tmp_path / "p.onnx")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("actions", "options"),
    [
        (gym.spaces.Discrete(3), {}),
        (gym.spaces.MultiDiscrete([2, 3]), {"enable_critic_lstm": False}),
        (gym.spaces.Box(-2, 2, (2,), np.float32), {"n_lstm_layers": 2}),
        (gym.spaces.Discrete(3), {"enable_critic_lstm": False, "shared_lstm": True}),
    ],
    ids=["discrete", "multi-discrete", "continuous", "shared"],
)
@pytest.mark.filterwarnings("ignore")
def test_recurrent_policies(
    export: Callable[..., relevo.export.ExportReport], actions: gym.Space[Any], options: dict[str, Any]
) -> None:
    """Actors of a file, one of whom begins anew, against the library's own `predict` over the same steps."""
    library = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    model = library.RecurrentPPO(
        "MlpLstmPolicy",
        World(BOX, actions),
        n_steps=8,
        batch_size=8,
        device="cpu",
        policy_kwargs={"lstm_hidden_size": 8, **options},
    )
    with torch.no_grad():
        for weights in model.policy.parameters():
            weights.normal_(std=0.7)
    report = export(model)
    assert report.contract is not None
    count = 4 if options.get("enable_critic_lstm", True) else 2
    assert [state.input for state in report.contract.states] == [
        "lstm_h_in", "lstm_c_in", "vf_lstm_h_in", "vf_lstm_c_in",
    ][:count]  # fmt: skip
    loaded = relevo.ModelModule.load_from_path(report.path)
    random, state, starts = np.random.default_rng(1), None, np.ones(4, bool)
    with relevo.AgentBuilder().default_model(loaded, bounds=report.bounds).actor_count(4).build() as agent:
        actors = agent.actors()
        for step in range(6):
            if step == 4:
                assert agent.update_model(model) == 2
            rows = random.standard_normal((4, 4)).astype(np.float32)
            expected, state = model.predict(rows, state=state, episode_start=starts, deterministic=True)
            np.testing.assert_allclose(actors.act(rows, deterministic=True).action, expected, atol=1e-4)
            starts = np.array([False, step == 2, False, False])
            actors.observe(0.0, terminated=starts)


def test_normalised_observations_of_a_recurrent_policy(export: Callable[..., relevo.export.ExportReport]) -> None:
    library = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    model = library.RecurrentPPO(
        "MlpLstmPolicy", World(BOX, gym.spaces.Discrete(2)), n_steps=8, batch_size=8, device="cpu"
    )
    statistics = relevo.Normalization([1, 2, 3, 4], [1, 4, 9, 16])
    report = export(model, normalization=statistics)
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32) * 5
    with relevo.AgentBuilder().default_model(report.path).actor_count(3).build() as agent:
        own = agent.actors().act(rows, deterministic=True).action
    normal = ((rows - statistics.mean) / np.sqrt(np.array(statistics.variance) + 1e-8)).clip(-10, 10)
    np.testing.assert_array_equal(own, model.predict(normal.astype(np.float32), deterministic=True)[0])


@pytest.mark.parametrize("make", [torch_modules.ActorCritic, torch_modules.CleanRLContinuous])
def test_weights_with_nan_are_not_written(form: str, tmp_path: Path, make: Callable[[], Any]) -> None:
    module = make()
    names = {} if make is torch_modules.CleanRLContinuous else {"outputs": ["logits", "value"]}
    name, weights = next((name, own) for name, own in module.named_parameters() if name.startswith("critic"))
    with torch.no_grad():
        weights.reshape(-1)[-1] = torch.nan
    with pytest.raises(
        relevo.ExportError, match=rf"has NaN in 1 of its weights, the first of which is {name}.*nothing"
    ):
        EXPORTS[form](module, tmp_path / f"policy.{form}", BOX, **names)
    assert list(tmp_path.iterdir()) == []


def test_a_module_without_values_is_not_written(form: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        module = torch_modules.ActorCritic()
    with pytest.raises(relevo.ExportError, match=r"no values in 6 of its weights.*`meta`.*nothing was written"):
        EXPORTS[form](module, tmp_path / f"policy.{form}", BOX, outputs=["logits", "value"])
    assert list(tmp_path.iterdir()) == []
