"""Model backends of other packages: a small one in C, found by its entry point, and ones that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from backend_sites import LINEAR, run, site


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site(tmp_path_factory.mktemp("linear") / "site")


LOAD = """
    import sys, relevo
    try:
        relevo.ModelModule.load_from_path(sys.argv[1])
    except relevo.RelevoError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "policy.linear"
    path.write_text(LINEAR)
    return str(path)


def test_a_file_of_the_backend_runs(linear: Path, model: str) -> None:
    code = """
        import sys, numpy as np, relevo
        for model in (
            relevo.ModelModule.load_from_path(sys.argv[1]),
            relevo.ModelModule.load_from_bytes(open(sys.argv[1], "rb").read()),
        ):
            assert model.format == "linear"
            x = np.array([[1, 2], [3, 4], [0, 0]], np.float32)
            expected = x @ np.array([[1, 2, 3], [4, 5, 6]], np.float32) + np.array([0.5, 0, -0.5], np.float32)
            np.testing.assert_array_equal(model.forward({"obs": x})["logits"], expected)
            assert (model.contract.batch, model.contract.producer) == ("dynamic", "a text editor")
            assert "written by hand" in model.contract.notes
        with relevo.AgentBuilder().default_model(model).actor_count(3).build() as agent:
            batch = agent.actors().act(x, deterministic=True)
            np.testing.assert_array_equal(batch.action, expected.argmax(1))
        print("ran")
    """
    assert run(linear, code, model) == "ran"


def test_it_is_not_looked_for_before_a_file_needs_it(linear: Path, model: str) -> None:
    code = """
        import sys, relevo
        assert "linear_backend" not in sys.modules
        relevo.ModelModule.load_from_path(sys.argv[1])
        assert "linear_backend" in sys.modules
        print("lazy")
    """
    assert run(linear, code, model) == "lazy"


def test_failures_become_relevos_errors(linear: Path, model: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.linear"
    broken.write_text(LINEAR[:20])
    code = """
        import sys, numpy as np, relevo
        def failure(call):
            try:
                call()
            except relevo.RelevoError as error:
                print(type(error).__name__, error)
        failure(lambda: relevo.ModelModule.load_from_path(sys.argv[2]))
        failure(lambda: relevo.ModelModule.load_from_path(sys.argv[1], device="cuda"))
        model = relevo.ModelModule.load_from_path(sys.argv[1])
        failure(lambda: model.forward({"obs": np.full((1, 2), 1000, np.float32)}))
        print(model.forward({"obs": np.zeros((1, 2), np.float32)})["logits"].tolist())
    """
    lines = run(linear, code, model, str(broken)).splitlines()
    assert lines[0] == f"ModelLoadError cannot load {broken}: it ends within the weights; export it again"
    assert lines[1].startswith("DeviceUnavailableError linear models run on the cpu alone")
    assert lines[2] == "InferenceError 1000 is too much"
    assert lines[3] == "[[0.5, 0.0, -0.5]]"


def test_a_table_of_another_version_is_refused(tmp_path: Path, model: str) -> None:
    told = run(site(tmp_path / "site", "-DVERSION=7"), LOAD, model)
    assert told.startswith(f"ModelLoadError cannot load {model}: the backend `linear` of the package relevo-linear")
    assert "version 7" in told
    assert "version 1" in told
    assert "pip install --upgrade relevo" in told


DEVICES = "import relevo; print(relevo._core.devices()['linear'])"


def test_its_devices_are_told(linear: Path) -> None:
    assert run(linear, DEVICES) == "[('cpu', None), ('cuda:0', 'linear models run on the cpu alone; wait')]"


def test_a_table_from_before_there_were_devices(tmp_path: Path, model: str) -> None:
    older = site(tmp_path / "site", "-DSIZE=offsetof(relevo_backend,devices)")
    assert run(older, LOAD, model) == ""
    assert run(older, DEVICES) == "[('cpu', None)]"


def test_a_description_from_before_there_were_input_devices(tmp_path: Path, model: str) -> None:
    size = "offsetof(relevo_description,input_device)"
    assert run(site(tmp_path / "site", f"-DDESCRIPTION_SIZE={size}"), LOAD, model) == ""
    told = run(site(tmp_path / "shorter", f"-DDESCRIPTION_SIZE={size}-8"), LOAD, model)
    assert told.startswith(f"ModelLoadError cannot load {model}: the backend linear describes it wrongly")


def test_a_table_that_is_too_short_is_refused(tmp_path: Path, model: str) -> None:
    told = run(site(tmp_path / "site", "-DSIZE=offsetof(relevo_backend,release_failure)"), LOAD, model)
    assert told.startswith("ModelLoadError")
    assert "gives a table of" in told
    assert "pip install --upgrade relevo-linear" in told


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("def backend():\n    raise ImportError('its library is missing')", "its library is missing"),
        ("def backend():\n    return 3", "it gives a int, not a PyCapsule named relevo.model_backend.v1"),
        ("raise RuntimeError('no such machine')", "no such machine"),
        (
            """
            import datetime
            def backend():
                return datetime.datetime_CAPI
            """,
            "it gives a PyCapsule of another name",
        ),
    ],
)
def test_an_entry_point_that_fails_says_why(tmp_path: Path, model: str, module: str, told: str) -> None:
    said = run(site(tmp_path / "site", module=module), LOAD, model)
    assert said.startswith("ModelLoadError")
    assert "relevo-linear" in said
    assert told in said


def test_onnx_does_not_care(tmp_path: Path) -> None:
    broken = site(tmp_path / "site", module="raise SystemError('never imported')")
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"")
    assert "never imported" not in run(broken, LOAD, str(path))


def test_the_doctor_tells_of_it(linear: Path, tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['relevo', 'doctor', '--json']; from relevo.cli import main; main()"
    found = {finding["name"]: finding for finding in json.loads(run(linear, code))["findings"]}
    assert (found["linear"]["state"], found["linear"]["found"]) == ("ok", "relevo-linear: 0.1")
    broken = site(tmp_path / "site", module="def backend():\n    raise ImportError('gone; pip install it')")
    found = {finding["name"]: finding for finding in json.loads(run(broken, code))["findings"]}
    assert (found["linear"]["state"], found["linear"]["remedy"]) == ("mind", "pip install it")
