"""Two launchers' variables at once: the innermost decides, and `explain` says what was ignored."""

from __future__ import annotations

import pytest

from hvdtrain.topology import detect_topology, explain

STEP_OF_ONE = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_NTASKS": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
STEP_OF_AGENTS = {**STEP_OF_ONE, "SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "2"} | {
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
MPIRUN_OF_FOUR = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPIRUN_OF_TWO_AGENTS = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
TORCHRUN_OF_EIGHT = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "6",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
HOROVODRUN = {
    "HOROVOD_RANK": "2",
    "HOROVOD_SIZE": "3",
    "HOROVOD_LOCAL_RANK": "2",
    "HOROVOD_LOCAL_SIZE": "3",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
}


@pytest.mark.parametrize(
    ("outer", "inner", "platform", "expected"),
    [
        (STEP_OF_ONE, MPIRUN_OF_FOUR, "Open MPI", ("mpirun", 3, 4, 3, 4)),
        (STEP_OF_ONE, HOROVODRUN, "Horovod", ("horovodrun", 2, 3, 2, 3)),
        (MPIRUN_OF_FOUR, HOROVODRUN, "Horovod", ("horovodrun", 2, 3, 2, 3)),
        (STEP_OF_ONE, {"PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI", ("pmi", 1, 2, 0, 1)),
        (STEP_OF_AGENTS, TORCHRUN_OF_EIGHT, "torchrun", ("torchrun", 6, 8, 2, 4)),
        (MPIRUN_OF_TWO_AGENTS, TORCHRUN_OF_EIGHT, "torchrun", ("torchrun", 6, 8, 2, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, TORCHRUN_OF_EIGHT, "torchrun", ("torchrun", 6, 8, 2, 4)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, MPIRUN_OF_FOUR, "Open MPI", ("mpirun", 3, 4, 3, 4)),
    ],
)
def test_the_innermost_launcher_decides(
    outer: dict[str, str], inner: dict[str, str], platform: str, expected: tuple[str, int, int, int, int]
) -> None:
    t = detect_topology(outer | inner)
    assert (t.launcher, t.rank, t.size, t.local_rank, t.local_size) == expected
    assert [item.platform for item in explain(outer | inner) if item.used] == [platform]
    ignored = [item for item in explain(outer | inner) if not item.used]
    assert [item.why for item in ignored] == [f"{platform} comes first: it is inside, or says the same"]


def test_agents_of_torchrun_keep_their_own_node_facts_and_no_hosts() -> None:
    t = detect_topology(STEP_OF_AGENTS | TORCHRUN_OF_EIGHT)
    assert (t.node_rank, t.num_nodes, t.hosts) == (1, 2, ())


def test_rank_and_world_size_exported_from_slurm_take_the_rest_from_the_step() -> None:
    for exported in ({"RANK": "1", "WORLD_SIZE": "2"}, {"WORLD_SIZE": "2"}):
        t = detect_topology(STEP_OF_AGENTS | exported)
        assert (t.launcher, t.rank, t.size, t.local_rank, t.local_size) == ("torchrun", 1, 2, 0, 1)
        assert (t.node_rank, t.num_nodes, t.hosts) == (1, 2, ("n1", "n2"))


@pytest.mark.parametrize(
    "inner",
    [
        {"TORCHELASTIC_RUN_ID": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1"},
        {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"},
    ],
)
def test_the_steps_hosts_are_not_taken_where_nodes_may_be_numbered_otherwise(inner: dict[str, str]) -> None:
    assert detect_topology(STEP_OF_AGENTS | {"RANK": "1", "WORLD_SIZE": "2"} | inner).hosts == ()


def test_lists_that_do_not_fit_the_step_are_not_used() -> None:
    of_the_job = {"SLURM_TASKS_PER_NODE": "3,1", "SLURM_NODELIST": "n[1-4]"}
    step = {name: value for name, value in STEP_OF_AGENTS.items() if not name.endswith(("PER_NODE", "NODELIST"))}
    t = detect_topology(step | of_the_job)
    assert (t.local_size, t.source["local_size"]) == (1, "assumed: every node has the same number of processes")
    assert t.hosts == ()


def test_hosts_only_platforms_decide_nothing() -> None:
    env = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    env |= {"PBS_JOBID": "7.head", "LSB_MCPU_HOSTS": "a 4 b 4"}
    assert detect_topology(env).launcher == "single"
    assert [(item.platform, item.used, item.why) for item in explain(env)] == [
        ("PBS", False, "describes hosts, not ranks"),
        ("LSF", False, "describes hosts, not ranks"),
        ("SageMaker", False, "describes hosts, not ranks"),
        ("Kubernetes", False, "describes hosts, not ranks"),
        ("single process", True, "no launcher's variables describe this process, so it is the only one"),
    ]


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292"])
def test_special_steps_of_slurm_are_no_tasks(step: str) -> None:
    env = {"SLURM_STEP_ID": step, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert detect_topology(env).launcher == "single"
    slurm = explain(env)[0]
    assert (
        slurm.why == f"SLURM_STEP_ID={step} is the batch script's, an extern or an interactive step, not one of tasks"
    )


def test_explain_shows_topology_variables_only() -> None:
    env = HOROVODRUN | {"AWS_SECRET_ACCESS_KEY": "hidden", "SLURM_JWT": "hidden", "HOROVOD_SECRET_KEY": "hidden"}
    assert "hidden" not in repr(explain(env))
