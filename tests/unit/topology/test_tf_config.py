"""TF_CONFIG, which a TFJob gives to its pods and users give to TensorFlow's own strategies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology, explain

THREE = {"worker": ["w0:2222", "w1:2222", "w2:2222"]}
REFUSED: list[tuple[dict[str, Any], str, int, int]] = [
    (THREE, "worker", 0, 3),
    (THREE, "worker", 1, 3),
    ({"chief": ["c:1"], "worker": ["w:1"]}, "chief", 0, 2),
    ({"chief": ["c:1"], "ps": ["p:1", "q:1"]}, "chief", 0, 3),
    ({"worker": {"0": "w0:1", "4": "w4:1"}}, "worker", 4, 2),  # TensorFlow takes indices too
    ({"worker": ["w:1"]}, "evaluator", 0, 2),  # which a TFJob does not list
]


def variables(cluster: object, kind: str = "worker", index: int = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(("cluster", "kind", "index", "count"), REFUSED)
def test_a_cluster_of_several_processes_is_refused(cluster: dict[str, Any], kind: str, index: int, count: int) -> None:
    env = variables(cluster, kind, index)
    with pytest.raises(UsageError) as caught:
        detect_topology(env)
    assert caught.value.fact == f"TF_CONFIG makes this process {kind} {index} of a cluster of {count} processes."
    assert caught.value.conflict == "Each of these processes would train a model of its own."
    assert "`hvdtrain launch ssh -H " in caught.value.hint
    assert "HOROVOD_RANK=0 and HOROVOD_SIZE=1" in caught.value.hint
    assert [(item.platform, item.used) for item in explain(env)] == [("TF_CONFIG", False)]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}', '{"environment": "cloud"}'),
        variables({"worker": ["w:1"]})["TF_CONFIG"],
        variables({"chief": ["c:1"]}, "chief")["TF_CONFIG"],
        variables({"chief": ["c:1"], "worker": []}, "chief")["TF_CONFIG"],
        '{"cluster": {"worker": ["localhost:1"]}}',
    ],
)
def test_a_cluster_of_one_process_is_a_single_process(text: str) -> None:
    t = detect_topology({"TF_CONFIG": text})
    assert (t.rank, t.size, t.launcher) == (0, 1, "single")
    assert explain({"TF_CONFIG": text})[0].why == "they tell of no other process"


@pytest.mark.parametrize("text", ["worker 1", "[]", '{"cluster": [3]}', '{"cluster": {"worker": 3}}', '"x"'])
def test_what_is_no_cluster_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        detect_topology({"TF_CONFIG": text})
    assert caught.value.fact == "TF_CONFIG is not the JSON of a cluster and a task."
    assert "stops here" in explain({"TF_CONFIG": text})[0].why


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, ("horovodrun", 1, 2)),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, ("horovodrun", 0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ("mpirun", 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("pmi", 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("torchrun", 1, 2)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, ("slurm", 1, 2)),
    ],
)
def test_a_launcher_s_own_variables_decide(inner: dict[str, str], expected: tuple[str, int, int]) -> None:
    t = detect_topology(variables(THREE, index=1) | inner)
    assert (t.launcher, t.rank, t.size) == expected
