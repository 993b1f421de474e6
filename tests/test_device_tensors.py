"""Observations on the policy's device are read there, and copied to the host only where something else needs them.

No machine needs a GPU for this: the backend in C and the tensors say that theirs is one (`backends/`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_sites import LINEAR, SOURCES, run, site

pytestmark = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy asks for another device from 2.1 on"
)

PRELUDE = """
import ctypes, json, os, sys
import numpy as np
import relevo
import linear_backend
from far_tensors import FarArray, FarTensor, alive

here = os.path.dirname(linear_backend.__file__)
in_place = ctypes.CDLL(os.path.join(here, "liblinear.so")).linear_in_place
in_place.restype = ctypes.c_size_t
values = np.array([[1, 0], [0, 1], [-3, 1]], np.float32)

def builder(device="cuda:0", actors=3, **options):
    made = relevo.AgentBuilder().default_device(device).actor_count(actors).keep_in_memory(0)
    return made.default_model(sys.argv[1], head="raw", **options)

def refusal(call):
    try:
        call()
    except relevo.RelevoError as error:
        return type(error).__name__ + ": " + str(error)

def tell(**told):
    print(json.dumps(told))

class Count:
    '''How often a call read on the device, and copied to the host.'''
    def __enter__(self):
        self.before = in_place()
        return self
    def __exit__(self, *raised):
        self.read = in_place() - self.before
"""
EXPECTED = (np.array([[1, 0], [0, 1], [-3, 1]]) @ np.array([[1, 2, 3], [4, 5, 6]]) + [0.5, 0, -0.5]).tolist()


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = site(tmp_path_factory.mktemp("linear") / "site", "-DGPU")
    shutil.copy(SOURCES / "far_tensors.py", folder)
    (folder / "policy.linear").write_text(LINEAR)
    return folder


def told(gpu: Path, code: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(gpu, PRELUDE + code, str(gpu / "policy.linear")))
    return answer


def test_without_a_recording_nothing_is_copied(gpu: Path) -> None:
    code = """
with builder().build() as agent:
    actors, tensor = agent.actors(), FarArray(values)
    with Count() as count:
        actions = [actors.act(tensor).action.tolist() for _ in range(3)]
    with Count() as of_array:
        same = actors.act(values).action.tolist()
tell(actions=actions, same=same, read=count.read, of_array=of_array.read, copies=tensor.copies, streams=tensor.streams,
     kept=len(alive))
"""
    seen = told(gpu, code)
    assert seen["actions"] == [EXPECTED] * 3
    assert seen["same"] == EXPECTED
    assert (seen["read"], seen["of_array"], seen["copies"]) == (3, 0, 0)
    assert seen["streams"] == [1, 1, 1], "the default stream, in DLPack's terms"
    assert seen["kept"] == 0, "the memory is let go of after the call"


def test_a_recording_takes_one_copy(gpu: Path) -> None:
    code = """
with builder().keep_in_memory(9).build() as agent:
    actors, tensor, unrecorded = agent.actors(), FarArray(values), FarArray(values * 2)
    with Count() as count:
        actions = actors.act(tensor).action.tolist()
    actors.observe(np.ones(3), terminated=True)
    with Count() as unrecorded_count:
        actors.act(unrecorded, record=False)
    actors.observe(np.ones(3), terminated=True)
    agent.pause_recording()
    paused = FarArray(values * 3)
    actors.act(paused)
    actors.observe(np.ones(3), terminated=True)
    episodes = agent.trajectories()
tell(actions=actions, read=count.read, copies=tensor.copies, unrecorded=[unrecorded_count.read, unrecorded.copies],
     paused=paused.copies, recorded=[episode.observations[0].tolist() for episode in episodes])
"""
    seen = told(gpu, code)
    assert seen["actions"] == EXPECTED
    assert (seen["read"], seen["copies"]) == (1, 1)
    assert seen["unrecorded"] == [1, 0]
    assert seen["paused"] == 0
    assert sorted(seen["recorded"]) == sorted([[1, 0], [0, 1], [-3, 1]])


def test_what_is_refused_is_refused_alike(gpu: Path) -> None:
    code = """
spoilt, infinite = values.copy(), values.copy()
spoilt[1, 0], infinite[2, 1] = np.nan, np.inf
given = [spoilt, values.astype(np.float64), values[:2], values[0], values[:, :1].copy(), infinite, values * 1000]
with builder().build() as agent:
    actors = agent.actors()
    there, here = ([refusal(lambda: actors.act(kind(array))) for array in given] for kind in (FarArray, np.array))
tell(there=there, here=here)
"""
    seen = told(gpu, code)
    assert seen["there"] == seen["here"]
    assert all(seen["here"])
    assert "holds NaN at element 0" in seen["here"][0]
    assert "alone, it fails for actor" in seen["here"][-1]
    assert "gave an infinite action" in seen["here"][-2], "infinity is no fault of an observation"


def test_what_cannot_be_read_there_is_copied_once(gpu: Path) -> None:
    code = """
def copied(agent, tensor, of=None, expected=values):
    with agent:
        actors = agent.actors(of and of(agent))
        with Count() as count:
            actions = actors.act(tensor).action
    return [tensor.copies, count.read, len(actions)]

plain = lambda: builder().build()
normalized = builder(normalization=relevo.Normalization([0.0, 0.0], [1.0, 1.0])).build()
two = builder().policy("other", sys.argv[1], head="raw").build()
two.assign(two.get_actor_ids()[:1], "other")
tell(
    blind=copied(plain(), FarTensor(values)),
    strided=copied(plain(), FarArray(np.asfortranarray(values))),
    other_device=copied(builder("cpu").build(), FarArray(values)),
    normalized=copied(normalized, FarArray(values)),
    two=copied(two, FarArray(values)),
    one=copied(plain(), FarArray(values[:1]), of=lambda agent: agent.get_actor_ids()[:1]),
)
"""
    seen = told(gpu, code)
    assert seen.pop("one") == [1, 0, 1]
    assert seen.pop("blind") == [1, 1, 3], "what nothing looked through is looked through on the host"
    assert list(seen.values()) == [[1, 0, 3]] * 4


def test_entries_of_a_dict_and_awaited_calls(gpu: Path) -> None:
    code = """
import asyncio, copy
FarArray.__deepcopy__ = lambda self, memo: self
with builder().build() as agent:
    actors, tensor = agent.actors(), FarArray(values)
    with Count() as count:
        actions = [actors.act(given).action.tolist() for given in ({"obs": tensor}, (tensor,))]
        async def awaited():
            return await actors.act_async(tensor)
        actions.append(asyncio.run(awaited()).action.tolist())
tell(actions=actions, read=count.read, copies=tensor.copies)
"""
    assert told(gpu, code) == {"actions": [EXPECTED] * 3, "read": 3, "copies": 0}
