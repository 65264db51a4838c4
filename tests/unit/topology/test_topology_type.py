"""The type: what it refuses, and how it compares itself with Horovod's own answer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import hvdtrain.topology
from hvdtrain.topology import Topology, detect_topology

WORLD = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_public_names() -> None:
    assert hvdtrain.topology.__all__ == ["Evidence", "Topology", "detect_topology", "explain"]


def test_single() -> None:
    t = Topology.single()
    assert (t.rank, t.size, t.local_rank, t.local_size, t.node_rank, t.num_nodes) == (0, 1, 0, 1, 0, 1)
    assert (t.launcher, t.is_root, t.is_distributed, t.hosts) == ("single", True, False, ())


def test_root_and_distributed() -> None:
    t = detect_topology(WORLD)
    assert (t.is_root, t.is_distributed) == (False, True)


@pytest.mark.parametrize("numbers", [(1, 1, 0, 1), (-1, 2, 0, 1), (0, 2, 2, 2), (0, 2, 0, 3), (0, 0, 0, 0)])
def test_contradictory_numbers_are_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="size"):
        Topology(*numbers)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ((0, 1, 0, 1), "RANK=3"),
        ((3, 5, 1, 2), "WORLD_SIZE=4"),
        ((3, 4, 2, 2), "LOCAL_RANK=1"),
        ((3, 4, 1, 4), "LOCAL_WORLD_SIZE=2"),
    ],
)
def test_a_disagreement_names_the_variable(answer: tuple[int, int, int, int], named: str) -> None:
    t = detect_topology(WORLD)
    assert t.disagreement(3, 4, 1, 2) is None
    assert t.disagreement(3, 4, 0, 2) is None  # another order on the same node, as under Open MPI 5's default mapping
    sentence = t.disagreement(*answer)
    assert sentence is not None
    assert named in sentence


def test_assumed_local_facts_give_way_to_horovods_and_stated_ones_do_not() -> None:
    assumed = detect_topology({"PMI_RANK": "3", "PMI_SIZE": "4"})
    assert (assumed.local_rank, assumed.local_size) == (0, 1)
    assert assumed.disagreement(3, 4, 1, 2) is None
    assert assumed.disagreement(2, 4, 1, 2) is not None
    completed = assumed.completed(1, 2)
    assert (completed.local_rank, completed.local_size) == (1, 2)
    assert completed.disagreement(3, 4, 0, 1) is not None
    stated = detect_topology(WORLD)
    assert stated.completed(0, 4) is stated


_MEASURE = """
import json, sys, time
import dataclasses, difflib, re, typing          # the standard library that it needs
begin = time.process_time()
import hvdtrain.topology
cpu = time.process_time() - begin
print(json.dumps({"cpu": cpu, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def test_importing_is_light() -> None:
    runs = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", _MEASURE], capture_output=True, text=True, timeout=60, check=True)
        runs.append(json.loads(done.stdout))
    heavy = {"torch", "tensorflow", "keras", "horovod", "numpy", "rich", "jsonargparse", "data_sharding"}
    assert not heavy & set(runs[0]["modules"])
    assert min(run["cpu"] for run in runs) < 0.050  # 0.016 on an idle core
