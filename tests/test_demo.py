"""What the demo verifies, it would also find broken."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    import relevo


@pytest.fixture
def demo(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "examples"))
    for name in ("demo", "cartpole_policy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import demo  # type: ignore[import-not-found]

    monkeypatch.setattr(demo, "STEPS", 40_000)
    return demo  # type: ignore[no-any-return]


@pytest.fixture
def policy(demo: ModuleType, tmp_path: Path) -> Path:
    path: Path = demo.write_cartpole_policy(tmp_path / "policy.onnx")
    return path


@pytest.fixture
def result(demo: ModuleType, policy: Path, tmp_path: Path) -> relevo.CollectResult:
    came: relevo.CollectResult = demo.record(policy, tmp_path / "run")
    return came


def test_the_policy_balances(result: relevo.CollectResult) -> None:
    assert result.mean_return == 500
    assert result.episodes == 64


def test_a_good_run_is_verified(demo: ModuleType, policy: Path, result: relevo.CollectResult, tmp_path: Path) -> None:
    assert len(demo.verify(policy, tmp_path / "run", result)) == 3


def test_actions_of_another_policy_are_noticed(demo: ModuleType, result: relevo.CollectResult, tmp_path: Path) -> None:
    other = demo.write_cartpole_policy(tmp_path / "other.onnx", push_right=(0.1, 0.3, 3.0, 0.9))
    with pytest.raises(AssertionError, match="actions"):
        demo.verify(other, tmp_path / "run", result)


def test_a_missing_step_is_noticed(
    demo: ModuleType, policy: Path, result: relevo.CollectResult, tmp_path: Path
) -> None:
    one_more = dataclasses.replace(result, steps=result.steps + 1)
    with pytest.raises(AssertionError, match="steps were recorded"):
        demo.verify(policy, tmp_path / "run", one_more)
