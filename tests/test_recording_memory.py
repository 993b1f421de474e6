"""What recording takes of memory does not grow with the run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import models
import numpy as np
import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the process's memory is read from /proc")
def test_open_episodes_share_the_cap_of_what_is_kept_in_memory(tmp_path: Path) -> None:
    """Sixteen endless episodes of images, 220 MB in all, beside a cap of 16 MB."""
    policy = models.linear(tmp_path / "policy.onnx", np.zeros((7056, 2)))
    program = f"""
        import numpy as np, relevo
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
        builder = relevo.AgentBuilder().default_model({str(policy)!r}).actor_count(16)
        builder.keep_in_memory(10, bytes=16 << 20)
        with builder.record({str(tmp_path / "run")!r}, compression="zstd", fsync="never").build() as agent:
            actors, obs = agent.actors(), np.zeros((16, 7056), np.float32)
            actors.act(obs)
            actors.observe(1.0)
            before = most = resident()
            for step in range(490):
                actors.act(obs)
                actors.observe(1.0)
                most = max(most, resident())
            print(most - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) < 180, done.stdout
