"""Settings that torchrun reads, in a process that it did not start: they count nodes."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology, explain

TRAINER = {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
"""A pod of Kubeflow's Trainer."""
AGENT = {"TORCHELASTIC_RUN_ID": "1", "RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("changed", "several"),
    [
        ({}, "PET_NNODES=3, PET_NODE_RANK=1, PET_NPROC_PER_NODE=2"),
        ({"PET_NPROC_PER_NODE": "1"}, "PET_NNODES=3, PET_NODE_RANK=1, PET_NPROC_PER_NODE=1"),
        ({"PET_NNODES": "1:4", "PET_NODE_RANK": "0"}, "PET_NNODES=1:4, PET_NODE_RANK=0, PET_NPROC_PER_NODE=2"),
        ({"PET_NNODES": "1", "PET_NODE_RANK": "0"}, "PET_NNODES=1, PET_NODE_RANK=0, PET_NPROC_PER_NODE=2"),
    ],
)
def test_settings_for_several_processes_are_refused_without_torchrun(changed: dict[str, str], several: str) -> None:
    env = TRAINER | changed
    with pytest.raises(UsageError) as caught:
        detect_topology(env)
    assert caught.value.fact == f"{several} describe several processes, and torchrun did not start this one."
    assert caught.value.hint.startswith("start it with `torchrun -m hvdtrain`, which reads them; ")
    assert "HOROVOD_RANK=0 and HOROVOD_SIZE=1" in caught.value.hint
    assert [(item.platform, item.used) for item in explain(env)] == [("torchrun's settings", False)]


@pytest.mark.parametrize("per_node", ["1", "auto", ""])
def test_settings_for_one_process_are_one_process(per_node: str) -> None:
    env = TRAINER | {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": per_node}
    assert detect_topology(env).launcher == "single"
    assert [(item.platform, item.used, item.why) for item in explain(env)] == [
        ("torchrun's settings", False, "they tell of no other process"),
        ("single process", True, "no launcher's variables describe this process, so it is the only one"),
    ]


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (AGENT, ("torchrun", 3, 6)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, ("mpirun", 1, 3)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}, ("slurm", 1, 3)),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, ("horovodrun", 0, 1)),
    ],
)
def test_a_launcher_s_own_variables_decide(inner: dict[str, str], expected: tuple[str, int, int]) -> None:
    t = detect_topology(TRAINER | inner)
    assert (t.launcher, t.rank, t.size) == expected


@pytest.mark.parametrize("variable", ["NPROC_PER_NODE", "PET_NPROC_PER_NODE"])
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_rank_and_world_size_that_count_nodes_are_refused(variable: str, nodes: str) -> None:
    env = {"RANK": "0", "WORLD_SIZE": nodes, variable: "8", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    with pytest.raises(UsageError) as caught:
        detect_topology(env)
    assert caught.value.fact == f"RANK=0 and WORLD_SIZE={nodes} stand beside {variable}=8, without a LOCAL_RANK."
    assert f"`torchrun --nnodes {nodes} --node-rank 0 --nproc-per-node 8 " in caught.value.hint
    assert [(item.platform, item.used) for item in explain(env) if "stops" in item.why] == [("torchrun", False)]


@pytest.mark.parametrize(
    ("beside", "local"),
    [
        ({"NPROC_PER_NODE": "8", "LOCAL_RANK": "1"}, (1, 2)),
        ({"NPROC_PER_NODE": "1"}, (0, 1)),
        ({"PET_NPROC_PER_NODE": "auto", "PET_NNODES": "4", "PET_NODE_RANK": "1"}, (0, 1)),  # a PyTorchJob's default
        (
            {
                "NPROC_PER_NODE": "2",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_LOCALID": "1",
            },
            (1, 4),
        ),
    ],
)
def test_rank_and_world_size_that_count_processes_are_read(beside: dict[str, str], local: tuple[int, int]) -> None:
    t = detect_topology({"RANK": "1", "WORLD_SIZE": "4", **beside})
    assert (t.launcher, t.rank, t.size, t.local_rank) == ("torchrun", 1, 4, local[0])
